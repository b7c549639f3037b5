"""A lost store, while a partition that was made for a claim is in use."""

from __future__ import annotations

from tests.cluster.api import wait_until
from tests.harness.apiproxy import Refusal, api_proxy
from tests.harness.claims import create_claim, result
from tests.node.conftest import MakeNode

PARTITION = "gpu-0000-1b-00-0-mig-3g40gb-4"
ADMINISTRATORS = "gpu-0000-43-00-0-mig-1g10gb-6"


def test_b063_after_a_lost_store_only_what_was_made_for_a_claim_is_destroyed_with_it(
    make_node: MakeNode,
) -> None:
    node = make_node("hgx-h100")
    node.gpus.set_mig_mode(1)
    node.gpus.create_mig(1, "1g.10gb", 6)
    node.start(mig="dynamic")
    claims = []
    for device in (PARTITION, ADMINISTRATORS):
        claim = create_claim(node.api, [result(device, node.name)])
        assert node.kubelet.prepare_one(claim).error == ""
        claims.append(claim)
        node.api.wait_for(
            "resource.k8s.io/v1",
            "ResourceClaim",
            claim.name,
            lambda found: found["status"].get("devices"),
            "its devices noted",
        )
    before = [gpu.mig_uuids for gpu in node.gpus.gpus()]

    node.kill()
    for path in node.data_path.glob("state.db*"):
        path.unlink()
    node.start(mig="dynamic")

    wait_until(lambda: len(node.claims_in_store()) == 2, "both claims, rebuilt", 15)
    assert [gpu.mig_uuids for gpu in node.gpus.gpus()] == before
    for claim in claims:
        assert node.kubelet.prepare_one(claim).error == ""
        assert node.kubelet.unprepare_one(claim).error == ""
    assert [gpu.mig_uuids for gpu in node.gpus.gpus()] == [[], before[1], [], [], [], [], [], []]
    assert node.claims_in_store() == {}
    assert node.cdi_files() == []


def test_b063_after_a_lost_store_the_api_server_is_waited_for_and_no_instance_is_left_behind(
    make_node: MakeNode,
) -> None:
    node = make_node("hgx-h100")
    node.start(mig="dynamic")
    claim = create_claim(node.api, [result(PARTITION, node.name)])
    assert node.kubelet.prepare_one(claim).error == ""
    node.api.wait_for(
        "resource.k8s.io/v1",
        "ResourceClaim",
        claim.name,
        lambda found: found["status"].get("devices"),
        "its devices noted",
    )
    node.kill()
    for path in node.data_path.glob("state.db*"):
        path.unlink()
    with api_proxy(node.control_plane, "away") as proxy:
        proxy.intercept = lambda request: (
            Refusal(503, "ServiceUnavailable") if "resourceclaims" in request.path else None
        )
        node.start(mig="dynamic", kubeconfig=str(proxy.kubeconfig))
        assert "is not known yet" in node.kubelet.unprepare_one(claim).error
        assert node.gpus.gpus()[0].mig_uuids != []
        assert node.claims_in_store() == {}
        proxy.intercept = None
        wait_until(lambda: node.claims_in_store() == {claim.uid: "prepared"}, "the claim, rebuilt", 20)
        assert node.kubelet.unprepare_one(claim).error == ""
        assert node.gpus.gpus()[0].mig_uuids == []
        node.stop()
