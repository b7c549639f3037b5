"""Prepare and unprepare over the plugin's real sockets: what each kind of claim gets."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from kubeletplugin.api import dra_v1beta1_pb2
from kubeletplugin.api.dra_v1beta1_pb2_grpc import DRAPluginStub as V1beta1Stub
from tests.cluster.controlplane import ControlPlane
from tests.harness.claims import Claim, create_claim, delete_claim, opaque, result
from tests.harness.plugin import PluginNode, plugin_node


@pytest.fixture(scope="module")
def node(control_plane: ControlPlane) -> Iterator[PluginNode]:
    """An eight-GPU H100 node whose plugin runs through all tests of this file."""
    with plugin_node(control_plane) as made:
        made.start()
        made.wait_published(8)
        yield made


@pytest.fixture(autouse=True)
def nothing_is_left(node: PluginNode) -> Iterator[None]:
    yield
    assert (node.claims_in_store(), node.cdi_files()) == ({}, [])


def gpus(node: PluginNode) -> list[str]:
    return sorted(node.published())


def test_a_whole_gpu_is_published_prepared_and_given_back(node: PluginNode) -> None:
    info = node.kubelet.register()
    assert (info.type, info.name) == ("DRAPlugin", "gpu.nvidia.com")
    assert list(info.supported_versions) == ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
    name = gpus(node)[0]
    claim = create_claim(node.api, [result(name, node.name)])

    answer = node.kubelet.prepare_one(claim)

    assert answer.error == ""
    assert [(list(d.request_names), d.pool_name, d.device_name) for d in answer.devices] == [
        (["gpu"], node.name, name)
    ]
    assert answer.cdi_ids == [f"gpudra.io/claim={claim.uid}-{name}"]
    assert node.device_nodes(claim.uid) == {name: ["/dev/nvidia0"]}
    assert node.claims_in_store() == {claim.uid: "prepared"}

    assert node.kubelet.unprepare_one(claim).error == ""
    assert node.cdi_files() == []
    assert node.claims_in_store() == {}


def test_a_repeated_prepare_gives_the_same_answer_and_writes_nothing(node: PluginNode) -> None:
    claim = create_claim(node.api, [result(gpus(node)[1], node.name)])
    first = node.kubelet.prepare_one(claim)
    file = node.cdi_root / node.cdi_files()[0]
    written = file.stat()

    assert node.kubelet.prepare_one(claim) == first
    assert first.error == ""
    again = file.stat()
    assert (again.st_ino, again.st_mtime_ns) == (written.st_ino, written.st_mtime_ns)
    node.kubelet.unprepare_one(claim)


def test_several_requests_of_one_claim_each_get_their_own_device(node: PluginNode) -> None:
    first, second, third = gpus(node)[:3]
    results = [
        result(first, node.name, "big"),
        result(second, node.name, "small"),
        result(third, node.name, "small"),
    ]
    claim = create_claim(node.api, results)
    answer = node.kubelet.prepare_one(claim)

    assert {d.device_name: list(d.request_names) for d in answer.devices} == {
        first: ["big"],
        second: ["small"],
        third: ["small"],
    }
    assert len(set(answer.cdi_ids)) == 3
    assert len(node.cdi_files()) == 1
    node.kubelet.unprepare_one(claim)


def test_the_chosen_subrequest_is_answered_with_the_name_of_its_request(node: PluginNode) -> None:
    name = gpus(node)[0]
    claim = create_claim(node.api, [result(name, node.name, "any/second-best")])
    answer = node.kubelet.prepare_one(claim)
    assert [list(d.request_names) for d in answer.devices] == [["any"]], answer.error
    node.kubelet.unprepare_one(claim)


def test_a_config_for_the_subrequest_or_for_its_request_is_used(node: PluginNode) -> None:
    name = gpus(node)[0]
    wrong = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "MigDeviceConfig"}
    for target in ("any/second-best", "any"):
        claim = create_claim(
            node.api, [result(name, node.name, "any/second-best")], configs=[opaque(wrong, [target])]
        )
        assert "MigDeviceConfig" in node.kubelet.prepare_one(claim).error
    other = create_claim(
        node.api, [result(name, node.name, "any/second-best")], configs=[opaque(wrong, ["any/best"])]
    )
    assert node.kubelet.prepare_one(other).error == ""
    node.kubelet.unprepare_one(other)


def test_a_share_id_comes_back_with_its_device(node: PluginNode) -> None:
    share = str(uuid.uuid4())
    claim = create_claim(node.api, [result(gpus(node)[0], node.name, shareID=share)])
    answer = node.kubelet.prepare_one(claim)
    assert [d.share_id for d in answer.devices] == [share], answer.error
    node.kubelet.unprepare_one(claim)


def test_the_old_contract_answers_as_the_new_one(node: PluginNode) -> None:
    claim = create_claim(node.api, [result(gpus(node)[0], node.name)])
    message = dra_v1beta1_pb2.Claim(namespace=claim.namespace, uid=claim.uid, name=claim.name)
    with grpc.insecure_channel(f"unix:{node.sockets()[0]}") as channel:
        stub = V1beta1Stub(channel)
        request = dra_v1beta1_pb2.NodePrepareResourcesRequest(claims=[message])
        entry = stub.NodePrepareResources(request, timeout=45).claims[claim.uid]
        new = node.kubelet.prepare_one(claim)
        assert [list(d.cdi_device_ids) for d in entry.devices] == [new.cdi_ids]
        gone = stub.NodeUnprepareResources(
            dra_v1beta1_pb2.NodeUnprepareResourcesRequest(claims=[message]), timeout=45
        )
        assert gone.claims[claim.uid].error == ""


def test_b045_no_config_and_a_config_for_another_driver_mean_the_defaults(node: PluginNode) -> None:
    plain = create_claim(node.api, [result(gpus(node)[0], node.name)])
    foreign = create_claim(
        node.api,
        [result(gpus(node)[1], node.name)],
        configs=[opaque({"apiVersion": 7, "kind": []}, driver="nic.example.com")],
    )
    answers = node.kubelet.prepare(plain, foreign)
    assert [answers[claim.uid].error for claim in (plain, foreign)] == ["", ""]
    node.kubelet.unprepare(plain, foreign)


def test_b046_a_claim_shared_by_containers_and_pods_is_one_device_until_one_unprepare(
    node: PluginNode,
) -> None:
    name = gpus(node)[0]
    claim = create_claim(node.api, [result(name, node.name)])
    pods = [{"resource": "pods", "name": f"pod-{n}", "uid": str(uuid.uuid4())} for n in range(2)]
    node.api.patch(
        "resource.k8s.io/v1",
        "ResourceClaim",
        claim.name,
        {"status": {"reservedFor": pods}},
        subresource="status",
    )
    answers = [node.kubelet.prepare_one(claim) for _ in pods]
    assert answers[0] == answers[1]
    assert answers[0].names == [name]
    assert node.cdi_files() == [f"gpudra.io-claim_{claim.uid}.json"]
    assert node.kubelet.unprepare_one(claim).error == ""
    assert node.cdi_files() == []


def test_b047_unprepare_of_what_is_not_prepared_succeeds_also_twice_at_once(node: PluginNode) -> None:
    never = Claim("default", "never", str(uuid.uuid4()))
    claim = create_claim(node.api, [result(gpus(node)[0], node.name)])
    node.kubelet.prepare_one(claim)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(node.kubelet.unprepare_one, [never, never, *[claim] * 6]))
    assert {answer.error for answer in answers} == {""}
    assert node.kubelet.unprepare_one(claim).error == ""


def test_b052_two_prepares_of_one_claim_at_once_are_carried_out_once(node: PluginNode) -> None:
    claim = create_claim(node.api, [result(name, node.name) for name in gpus(node)[:2]])
    connections = [node.connect() for _ in range(6)]
    try:
        with ThreadPoolExecutor(len(connections)) as pool:
            answers = list(pool.map(lambda kubelet: kubelet.prepare_one(claim), connections))
    finally:
        for connection in connections:
            connection.close()
    assert answers[0].error == ""
    assert all(answer == answers[0] for answer in answers)
    assert len(node.cdi_files()) == 1
    node.kubelet.unprepare_one(claim)


def test_b054_each_claim_of_a_call_has_its_own_answer(node: PluginNode) -> None:
    first, second = gpus(node)[:2]
    good = create_claim(node.api, [result(first, node.name)])
    bad = create_claim(node.api, [result("gpu-0000-ff-00-0", node.name)])
    other = create_claim(node.api, [result(second, node.name)])

    answers = node.kubelet.prepare(good, bad, other)

    assert set(answers) == {good.uid, bad.uid, other.uid}
    assert answers[good.uid].names == [first]
    assert answers[other.uid].names == [second]
    assert "gpu-0000-ff-00-0" in answers[bad.uid].error
    assert answers[bad.uid].devices == ()
    assert sorted(node.claims_in_store()) == sorted([good.uid, other.uid])
    gone = node.kubelet.unprepare(good, bad, other)
    assert {uid: answer.error for uid, answer in gone.items()} == dict.fromkeys(answers, "")


def test_b054_an_empty_call_succeeds_with_an_empty_answer(node: PluginNode) -> None:
    assert node.kubelet.prepare() == {}
    assert node.kubelet.unprepare() == {}


def test_b062_a_pod_made_and_deleted_again_and_again_leaves_nothing(node: PluginNode) -> None:
    before = node.published()
    name = gpus(node)[0]
    for _ in range(10):
        claim = create_claim(node.api, [result(name, node.name)])
        assert node.kubelet.prepare_one(claim).names == [name]
        assert node.kubelet.unprepare_one(claim).error == ""
        delete_claim(node.api, claim)
        assert (node.claims_in_store(), node.cdi_files()) == ({}, [])
    last = create_claim(node.api, [result(name, node.name)])
    assert node.kubelet.prepare_one(last).names == [name]
    node.kubelet.unprepare_one(last)
    assert node.published() == before


def test_results_of_another_driver_are_left_to_it(node: PluginNode) -> None:
    name = gpus(node)[0]
    nic = {"request": "nic", "driver": "nic.example.com", "pool": "nics", "device": "nic0"}
    claim = create_claim(node.api, [nic, result(name, node.name)])
    assert node.kubelet.prepare_one(claim).names == [name]
    node.kubelet.unprepare_one(claim)


def test_names_at_their_length_limits(node: PluginNode) -> None:
    namespace = "n" * 63
    node.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    request = "r" * 63
    claim = create_claim(
        node.api,
        [result(gpus(node)[0], node.name, request)],
        name=".".join(["c" * 62] * 4) + "c",
        namespace=namespace,
    )
    answer = node.kubelet.prepare_one(claim)
    assert [list(d.request_names) for d in answer.devices] == [[request]], answer.error
    assert node.kubelet.unprepare_one(claim).error == ""


def test_200_claims_at_once_are_all_answered(node: PluginNode) -> None:
    names = gpus(node)
    claims = [create_claim(node.api, [result(names[n % 8], node.name)]) for n in range(200)]
    with ThreadPoolExecutor(200) as pool:
        answers = list(pool.map(node.kubelet.prepare_one, claims))
    prepared = [claim for claim, answer in zip(claims, answers, strict=True) if not answer.error]
    refused = [answer.error for answer in answers if answer.error]
    assert len(prepared) == 8
    assert [error for error in refused if " is in use by claim " not in error] == []
    with ThreadPoolExecutor(200) as pool:
        gone = list(pool.map(node.kubelet.unprepare_one, claims))
    assert {answer.error for answer in gone} == {""}


def test_32_results_in_one_claim(control_plane: ControlPlane) -> None:
    mig = {position: ["1g.10gb"] * 7 for position in range(5)}
    with plugin_node(control_plane, mig=mig) as node:
        node.start()
        names = [name for name in sorted(node.wait_published(5 * 7 + 3)) if "mig" in name][:32]
        results = [result(name, node.name, f"r{n}") for n, name in enumerate(names)]
        claim = create_claim(node.api, results)
        answer = node.kubelet.prepare_one(claim)
        assert (answer.error, sorted(answer.names)) == ("", names)
        assert len(set(answer.cdi_ids)) == 32
        assert len(node.cdi_spec(claim.uid)["devices"]) == 32
        assert node.kubelet.unprepare_one(claim).error == ""
