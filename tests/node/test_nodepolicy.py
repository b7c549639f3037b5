"""A node policy in a file: what is published by it, when a change of it holds, and shares of one device."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from driver.quantity import parse_quantity
from tests.cluster.api import wait_until
from tests.cluster.controlplane import ControlPlane
from tests.cluster.fixtures import require
from tests.cluster.requirements import control_plane_missing
from tests.harness.apiproxy import Request, api_proxy
from tests.harness.claims import Claim, create_claim, delete_claim, result
from tests.harness.devices import gpu_name
from tests.harness.nodepolicies import policy_file, write_policy, write_policy_text
from tests.harness.plugin import PluginNode, free_address, plugin_node
from tests.harness.probes import Probes
from tests.harness.steppednode import Stepped, wait_holds
from tests.node.conftest import MakeNode
from tests.unit.driver.slicevalidator import violations

ONE_H100: dict[str, Any] = {"gpus": [{"model": "h100-sxm5-80gb"}]}
WITHOUT_SHARES = ["--feature-gates=DRAConsumableCapacity=false"]
PARTITIONS_AND_WHOLE = 25 + 1
GIB = 1024**3

Devices = dict[str, dict[str, Any]]


def start(node: PluginNode, *entries: Mapping[str, Any], **flags: str) -> None:
    node.flags["config"] = str(write_policy(node, *entries))
    node.flags.update({name.replace("_", "-"): value for name, value in flags.items()})
    node.start()


def names(node: PluginNode) -> list[str]:
    return [gpu_name(gpu.pci_bus_id) for gpu in node.gpus.gpus()]


def is_shared(device: Mapping[str, Any]) -> bool:
    return device.get("allowMultipleAllocations", False) is True


def wait_shared(node: PluginNode, *shared: str) -> Devices:
    """Wait until exactly these devices are published as shared ones; returns all devices."""

    def look() -> bool:
        published = node.published()
        return bool(published) and {one for one, device in published.items() if is_shared(device)} == {
            *shared
        }

    wait_until(look, f"shared devices {shared}, published are {node.published().keys()}", 20)
    return node.published()


def default(device: Mapping[str, Any], capacity: str) -> Any:
    """What a claim takes of it that does not ask for it."""
    return device["capacity"][capacity]["requestPolicy"]["default"]


def share(node: PluginNode, device: str, share_id: str, **consumed: str) -> dict[str, Any]:
    """An allocation result as the scheduler writes it for a share."""
    return result(device, node.name, shareID=share_id, consumedCapacity=consumed)


def share_of(node: PluginNode, device: str, **consumed: str) -> Claim:
    return create_claim(node.api, [share(node, device, str(uuid.uuid4()), **consumed)])


def events(node: PluginNode, reason: str) -> list[str]:
    return [text for text in node.api.events(node.name) if text.startswith(f"{reason}: ")]


def wait_event(node: PluginNode, reason: str, *words: str) -> str:
    def look() -> str | None:
        return next((text for text in events(node, reason) if all(word in text for word in words)), None)

    return wait_until(look, f"an event {reason} with {words}, there are {node.api.events(node.name)}", 15)


def test_b102_shares_are_stored_with_their_request_policies(make_node: MakeNode) -> None:
    node = make_node("t4x4")
    gpus = names(node)
    start(
        node,
        {"gpus": [0], "shares": 5},
        {"gpus": [node.gpus.gpu(1).uuid], "shares": "memory"},
        {"gpus": ["Tesla T4"], "shares": "unlimited"},
    )
    devices = wait_shared(node, *gpus)
    specs = [item["spec"] for item in node.slices()]
    assert violations(specs) == []
    total = devices[gpus[0]]["capacity"]["memory"]["value"]
    assert devices[gpus[0]]["capacity"]["shares"] == {
        "value": "5",
        "requestPolicy": {"default": "1", "validRange": {"min": "1", "max": "5", "step": "1"}},
    }
    memory = devices[gpus[1]]["capacity"]["memory"]
    assert parse_quantity(memory["requestPolicy"]["default"]) == GIB
    assert parse_quantity(memory["requestPolicy"]["validRange"]["max"]) == parse_quantity(total)
    assert [default(devices[name], "memory") for name in gpus] == ["0", "1Gi", "0", "0"]
    assert [default(devices[name], "shares") for name in gpus] == ["1", "0", "0", "0"]
    assert all(default(devices[name], "encoders") == "0" for name in gpus)
    versions = [item["metadata"]["resourceVersion"] for item in node.slices()]
    node.restart()
    time.sleep(2.0)
    assert [item["metadata"]["resourceVersion"] for item in node.slices()] == versions


def test_a_layout_and_shared_partitions_come_and_go_without_a_restart(make_node: MakeNode) -> None:
    node = make_node("hgx-h100", **ONE_H100)
    (gpu,) = names(node)
    start(node, mig="dynamic")
    node.wait_published(PARTITIONS_AND_WHOLE)
    process = node.process

    write_policy(node, {"layout": {"3g.40gb": 1, "1g.10gb": 2}, "profiles": {"1g.10gb": {"shares": 4}}})
    ones = [f"{gpu}-mig-1g10gb-{start}" for start in (4, 5)]
    devices = wait_shared(node, *ones)
    assert devices.keys() == {*ones, f"{gpu}-mig-3g40gb-0"}
    assert violations([item["spec"] for item in node.slices()]) == []
    assert [default(devices[name], "shares") for name in ones] == ["1", "1"]

    write_policy(node, {"shares": 3})
    devices = wait_shared(node, gpu)
    assert len(devices) == PARTITIONS_AND_WHOLE
    assert violations([item["spec"] for item in node.slices()]) == []
    write_policy(node, {"mig": "off"})
    wait_until(lambda: node.published().keys() == {gpu}, "the whole GPU alone", 15)
    write_policy(node, {"layout": {"7g.80gb": 2}})
    assert gpu.replace("gpu-0000-", "0000:")[:7] in wait_event(node, "LayoutImpossible", "2 of 7g.80gb")
    node.wait_published(PARTITIONS_AND_WHOLE)
    assert node.process is process


def test_existing_mig_devices_are_shared(make_node: MakeNode) -> None:
    node = make_node("hgx-h100", mig={0: ["1g.10gb", "3g.40gb"]}, **ONE_H100)
    start(node, {"profiles": {"1g.10gb": {"shares": "memory"}}})
    devices = node.wait_published(2)
    (shared,) = [name for name, device in devices.items() if is_shared(device)]
    assert "1g10gb" in shared
    assert violations([item["spec"] for item in node.slices()]) == []


def test_a_bad_file_keeps_the_last_good_one_and_says_so(make_node: MakeNode) -> None:
    node = make_node("t4x4")
    gpus = names(node)
    address = free_address()
    start(node, {"gpus": [0], "shares": 5}, http_address=address)
    probes = Probes(address)
    before = wait_shared(node, gpus[0])
    assert probes.metric("gpudra_node_policy_valid") == 1
    write_policy(node, {"gpus": [0], "shares": 500})
    told = wait_event(node, "NodePolicyInvalid", "spec.entries.0.shares: 500", "from 2 to 256")
    assert str(policy_file(node)) in told
    assert probes.metric("gpudra_node_policy_valid") == 0
    policy_file(node).unlink()
    wait_event(node, "NodePolicyInvalid", "cannot be read")
    write_policy_text(node, "spec: [")
    wait_event(node, "NodePolicyInvalid", "is no YAML document")
    assert node.published() == before
    write_policy(node, {"gpus": [1], "shares": 5})
    wait_shared(node, gpus[1])
    assert probes.metric("gpudra_node_policy_valid") == 1
    assert len(events(node, "NodePolicyInvalid")) == 3

    # At the start there is nothing that held before.
    write_policy(node, {"gpus": [0], "shares": 500})
    node.stop()
    process = node.start(wait=False)
    assert process.wait(20) == 2
    assert "--config" in node.log()
    assert "spec.entries.0.shares: 500" in node.log()


def test_a_change_waits_until_the_device_is_free(make_node: MakeNode) -> None:
    node = make_node("t4x4")
    gpus = names(node)
    start(node, {"gpus": [1], "shares": 5})
    wait_shared(node, gpus[1])
    alone = create_claim(node.api, [result(gpus[0], node.name)])
    first, second = (share_of(node, gpus[1], shares="1") for _ in range(2))
    assert {answer.error for answer in node.kubelet.prepare(alone, first, second).values()} == {""}

    write_policy(node, {"gpus": [0, 2], "shares": 2}, {"gpus": [1], "shares": "memory"})
    # What is free changes at once, what is held stays as it is for whoever has it.
    devices = wait_shared(node, gpus[1], gpus[2])
    assert default(devices[gpus[1]], "shares") == "1"
    wait_event(node, "PolicyWaits", gpus[0], f"claim default/{alone.name}")
    wait_event(node, "PolicyWaits", gpus[1], "several claims hold it")
    node.restart()
    assert wait_shared(node, gpus[1], gpus[2]).keys() == devices.keys()

    # Meanwhile the old way goes on.
    third = share_of(node, gpus[1], shares="1")
    assert node.kubelet.prepare_one(third).error == ""
    assert {answer.error for answer in node.kubelet.prepare(alone, first).values()} == {""}
    beside = share_of(node, gpus[0], shares="1")
    assert "in use as a whole" in node.kubelet.prepare_one(beside).error

    assert node.kubelet.unprepare_one(alone).error == ""
    wait_shared(node, *gpus[:3])
    assert node.kubelet.prepare_one(beside).error == ""
    whole = create_claim(node.api, [result(gpus[1], node.name)])
    assert "in use in shares" in node.kubelet.prepare_one(whole).error
    assert {answer.error for answer in node.kubelet.unprepare(first, second).values()} == {""}
    assert default(wait_shared(node, *gpus[:3])[gpus[1]], "shares") == "1"
    assert node.kubelet.unprepare_one(third).error == ""
    wait_until(lambda: default(node.published()[gpus[1]], "memory") == "1Gi", "shares of memory", 15)
    assert node.kubelet.unprepare_one(beside).error == ""


def test_b014_a_gpu_is_excluded_by_the_file(make_node: MakeNode) -> None:
    node = make_node("t4x4")
    gpus = names(node)
    start(node, {"gpus": [node.gpus.gpu(2).pci_bus_id], "exclude": True})
    assert node.wait_published(3).keys() == {gpus[0], gpus[1], gpus[3]}
    claim = create_claim(node.api, [result(gpus[2], node.name)])
    assert "is excluded" in node.kubelet.prepare_one(claim).error
    write_policy(node)
    node.wait_published(4)
    assert node.kubelet.prepare_one(claim).error == ""
    write_policy(node, {"gpus": ["T4"], "exclude": True})
    assert node.wait_published(1).keys() == {gpus[2]}
    wait_event(node, "PolicyWaits", "does not offer", gpus[2], f"claim default/{claim.name}")
    assert node.kubelet.prepare_one(claim).error == ""
    assert node.kubelet.unprepare_one(claim).error == ""
    node.wait_published(0)


def test_an_excluded_gpu_whose_shares_are_held_gives_out_no_more(make_node: MakeNode) -> None:
    node = make_node("t4x4")
    gpus = names(node)
    start(node, {"shares": 5})
    wait_shared(node, *gpus)
    held = share_of(node, gpus[0], shares="1")
    assert node.kubelet.prepare_one(held).error == ""
    write_policy(node, {"gpus": [0], "exclude": True}, {"shares": 5})

    def places() -> Any:
        return node.published()[gpus[0]]["capacity"]["shares"]

    none_left = {"value": "0", "requestPolicy": {"default": "1"}}
    wait_until(lambda: places() == none_left, "no place that is left", 15)
    assert is_shared(node.published()[gpus[0]]), "or it could be given out as a whole"
    wait_event(node, "PolicyWaits", "does not offer", gpus[0], f"claim default/{held.name}")
    late = share_of(node, gpus[0], shares="1")
    assert "is excluded" in node.kubelet.prepare_one(late).error
    assert node.kubelet.prepare_one(held).error == ""
    write_policy(node, {"shares": 5})
    wait_until(lambda: places()["value"] == "5", "all places again", 15)
    write_policy(node, {"gpus": [0], "exclude": True})
    wait_until(lambda: places() == none_left, "no place that is left", 15)
    assert node.kubelet.unprepare_one(held).error == ""
    node.wait_published(3)


def test_what_has_no_effect_is_told_once(make_node: MakeNode) -> None:
    node = make_node("t4x4")
    start(node, {"gpus": ["H100"], "shares": 2}, {"profiles": {"1g.10gb": {"shares": 2}}}, exclude="99,0")
    node.wait_published(3)
    wait_event(node, "PolicyWithoutEffect", "--exclude: '99' selects no GPU")
    wait_event(node, "PolicyWithoutEffect", "spec.entries.0.gpus: 'H100' selects no GPU")
    wait_event(node, "PolicyWithoutEffect", "spec.entries.1.profiles.1g.10gb")
    write_policy(node, {"gpus": [1], "shares": 2})
    wait_shared(node, names(node)[1])
    node.wait_log("over: node policy, field spec.entries.0.gpus: 'H100'")
    assert len(events(node, "PolicyWithoutEffect")) == 3
    assert node.log().count("--exclude: '99'") == 1


def test_b104_two_claims_have_shares_of_one_gpu(make_node: MakeNode) -> None:
    node = make_node("t4x4")
    gpu = names(node)[0]
    start(node, {"shares": "memory"})
    wait_shared(node, *names(node))
    ids = [str(uuid.uuid4()) for _ in range(2)]
    amounts = {ids[0]: "4Gi", ids[1]: "2Gi"}
    claims = {one: create_claim(node.api, [share(node, gpu, one, memory=amounts[one])]) for one in ids}
    answers = node.kubelet.prepare(*claims.values())
    for share_id, claim in claims.items():
        answer = answers[claim.uid]
        (device,) = answer.devices
        assert (answer.error, device.device_name, device.share_id) == ("", gpu, share_id)
        assert answer.cdi_ids == [f"gpudra.io/claim={claim.uid}-{gpu}-share-{share_id}"]
        ((name, nodes),) = node.device_nodes(claim.uid).items()
        assert (name, "/dev/nvidia0" in nodes) == (f"{gpu}-share-{share_id}", True)
        (edits,) = [device["containerEdits"] for device in node.cdi_spec(claim.uid)["devices"]]
        limit = int(parse_quantity(amounts[share_id]))
        variable = f"GPU_MEMORY_LIMIT_BYTES_{gpu.upper().replace('-', '_')}"
        assert f"{variable}={limit}" in edits["env"]
        wait_until(lambda: status(node, claim), "status.devices", 15)  # noqa: B023
        (told,) = status(node, claim)
        assert (told["device"], told["shareID"]) == (gpu, share_id)
        assert told["data"]["uuid"] == node.gpus.gpu(0).uuid
    first, second = claims.values()
    assert node.kubelet.unprepare_one(first).error == ""
    assert node.claims_in_store() == {second.uid: "prepared"}
    assert node.kubelet.prepare_one(second) == answers[second.uid]
    assert node.kubelet.unprepare_one(second).error == ""
    assert (node.claims_in_store(), node.cdi_files()) == ({}, [])


def status(node: PluginNode, claim: Claim) -> list[dict[str, Any]]:
    found = node.api.get("resource.k8s.io/v1", "ResourceClaim", claim.name, claim.namespace)
    devices: list[dict[str, Any]] = found["status"].get("devices") or []
    return devices


def without_shares(request: Request, body: bytes) -> bytes:
    """What a server stores without the gate DRAConsumableCapacity."""
    if not request.is_slice_write or not body:
        return body
    written = json.loads(body)
    for device in (written.get("spec") or {}).get("devices") or []:
        device.pop("allowMultipleAllocations", None)
        for capacity in device["capacity"].values():
            capacity.pop("requestPolicy", None)
    return json.dumps(written).encode()


@pytest.fixture(params=["a proxy that drops the fields", "a server without the gate"])
def forgetful(
    request: pytest.FixtureRequest, make_node: MakeNode, control_plane: ControlPlane
) -> Iterator[PluginNode]:
    """A node whose API server stores no shared devices."""
    if "proxy" in request.param:
        with api_proxy(control_plane, "forgetful") as proxy:
            proxy.rewrite = without_shares
            node = make_node("t4x4")
            node.kubeconfig = proxy.kubeconfig
            yield node
            node.stop()
        return
    require(control_plane_missing())
    with ControlPlane(api_server_arguments=WITHOUT_SHARES) as own, plugin_node(own, "t4x4") as node:
        yield node


def test_b103_without_consumable_capacity_devices_are_published_exclusive(forgetful: PluginNode) -> None:
    node = forgetful
    start(node, {"shares": 5})
    devices = node.wait_published(4)
    told = wait_event(node, "SharesWithheld", "DRAConsumableCapacity")
    assert "one claim at a time" in told
    assert not any(is_shared(device) for device in devices.values())
    assert violations([item["spec"] for item in node.slices()]) == []
    versions = [item["metadata"]["resourceVersion"] for item in node.slices()]
    write_policy(node, {"shares": "memory"})
    node.wait_log("has changed: 1 entries hold now")
    claim = create_claim(node.api, [result(names(node)[0], node.name)])
    assert node.kubelet.prepare_one(claim).error == ""
    assert node.kubelet.unprepare_one(claim).error == ""
    assert [item["metadata"]["resourceVersion"] for item in node.slices()] == versions
    assert len(events(node, "SharesWithheld")) == 1
    assert events(node, "SliceFieldsDropped") == []


@pytest.mark.parametrize("device", ["", "-mig-1g10gb-0"])
def test_killed_between_two_shares_both_work_and_nothing_leaks(make_node: MakeNode, device: str) -> None:
    node = make_node("hgx-h100", **ONE_H100)
    name = f"{names(node)[0]}{device}"
    start(node, {"shares": 4, "profiles": {"1g.10gb": {"shares": 4}}}, mig="dynamic")
    node.wait_published(PARTITIONS_AND_WHOLE)
    first, second, third = (share_of(node, name, shares="1") for _ in range(3))
    answer = node.kubelet.prepare_one(first)
    assert answer.error == ""
    made = instances(node)
    assert len(made) == (1 if device else 0)
    node.kill()
    node.start()
    assert node.kubelet.prepare_one(second).error == ""
    assert instances(node) == made, "the second share has the instance of the first"
    assert node.kubelet.prepare_one(first) == answer
    node.kill()
    node.start()
    assert node.kubelet.prepare_one(third).error == ""
    assert node.claims_in_store() == {claim.uid: "prepared" for claim in (first, second, third)}
    assert node.kubelet.unprepare_one(first).error == ""
    assert instances(node) == made
    node.kill()
    node.start()
    for claim in (second, third):
        assert instances(node) == made
        assert node.kubelet.unprepare_one(claim).error == ""
    assert (instances(node), node.claims_in_store(), node.cdi_files()) == (set(), {}, [])
    for claim in (first, second, third):
        delete_claim(node.api, claim)


def instances(node: PluginNode) -> set[tuple[int, str]]:
    """The GPU instances and the MIG devices in them."""
    return {
        (instance.id, compute.uuid)
        for gpu in node.gpus.gpus()
        for instance in gpu.gpu_instances
        for compute in instance.compute_instances
    }


def test_killed_at_every_step_of_the_second_share(make_node: MakeNode) -> None:
    node = make_node("hgx-h100", **ONE_H100)
    name = f"{names(node)[0]}-mig-1g10gb-0"
    stepped = Stepped(node)
    start(node, {"profiles": {"1g.10gb": {"shares": 4}}}, mig="dynamic")
    node.wait_published(PARTITIONS_AND_WHOLE)
    first, second = (share_of(node, name, shares="1") for _ in range(2))
    answer = node.kubelet.prepare_one(first)
    made = instances(node)
    assert (answer.error, len(made)) == ("", 1)
    seen = set()
    for step in stepped.crashes(lambda: node.kubelet.prepare_one(second)):
        seen.add(step)
        assert instances(node) == made, step
        assert node.kubelet.prepare_one(second).error == "", step
        assert node.kubelet.prepare_one(first) == answer, step
        assert node.kubelet.unprepare_one(second).error == "", step
        assert instances(node) == made, step
        wait_holds(node, [first], step, instances=1)
    assert any("COMMIT" in step for step in seen)
    assert {answer.error for answer in node.kubelet.unprepare(first, second).values()} == {""}
    assert instances(node) == set()
    wait_holds(node, [], "the end")
