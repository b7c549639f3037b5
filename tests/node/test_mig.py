"""Static MIG as an administrator makes, changes and removes it, seen at the running plugin."""

from __future__ import annotations

import re
from typing import Any

import pytest

from nvmlsim.gpus import SimulatedGpu
from tests.cluster.api import wait_until
from tests.harness.claims import create_claim, result
from tests.harness.devices import gpu_name, value
from tests.harness.plugin import PluginNode, free_address
from tests.harness.probes import Probes
from tests.node.conftest import MakeNode

CHANGING_CALLS = (
    "nvmlDeviceSetMigMode",
    "nvmlDeviceCreateGpuInstance",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceDestroy",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlGpuInstanceCreateComputeInstanceWithPlacement",
    "nvmlComputeInstanceDestroy",
)


def capability_nodes(node: PluginNode, gpu: SimulatedGpu, uuid: str) -> list[str]:
    """The nodes below /dev/nvidia-caps that a MIG device has, as the kernel's files tell them."""
    for gi in gpu.gpu_instances:
        for ci in gi.compute_instances:
            if ci.uuid == uuid:
                folder = node.gpus.root / f"proc/driver/nvidia/capabilities/gpu{gpu.minor}/mig/gi{gi.id}"
                texts = [(path / "access").read_text() for path in (folder, folder / f"ci{ci.id}")]
                minors = [re.search(r"DeviceFileMinor: (\d+)", text) for text in texts]
                return [f"/dev/nvidia-caps/nvidia-cap{minor[1]}" for minor in minors if minor]
    raise AssertionError(f"{gpu.uuid} has no MIG device {uuid}")


def mig_devices(devices: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: device for name, device in devices.items() if value(device, "type") == "mig"}


def test_b070_b074_b076_instances_of_an_administrator_are_devices_and_stay_as_they_are(
    make_node: MakeNode,
) -> None:
    node = make_node("hgx-h100", mig={0: ["1g.10gb"] * 7})
    node.start()
    gpu = node.gpus.gpus()[0]
    devices = node.wait_published(14)
    migs = mig_devices(devices)

    assert sorted(value(device, "uuid") for device in migs.values()) == sorted(gpu.mig_uuids)
    assert {value(device, "parentUUID") for device in migs.values()} == {gpu.uuid}
    assert {value(device, "profile") for device in migs.values()} == {"1g.10gb"}
    assert gpu.uuid not in {value(device, "uuid") for device in devices.values()}

    first, second = sorted(migs)[:2]
    claim = create_claim(node.api, [result(first, node.name, "one"), result(second, node.name, "two")])
    assert node.kubelet.prepare_one(claim).error == ""
    assert node.device_nodes(claim.uid) == {
        name: ["/dev/nvidia0", *capability_nodes(node, gpu, value(migs[name], "uuid"))]
        for name in (first, second)
    }
    assert node.kubelet.unprepare_one(claim).error == ""

    assert node.stop() == 0
    assert {call: node.gpus.calls().get(call, 0) for call in CHANGING_CALLS} == dict.fromkeys(
        CHANGING_CALLS, 0
    )
    assert node.gpus.gpus()[0].mig_uuids == gpu.mig_uuids


def test_b073_capability_nodes_come_from_proc_where_the_host_has_none(make_node: MakeNode) -> None:
    node = make_node("hgx-h100", mig={0: ["3g.40gb"]})
    capabilities = node.gpus.root / "dev/nvidia-caps"
    for path in capabilities.iterdir():
        path.unlink()
    capabilities.rmdir()
    node.start()
    gpu = node.gpus.gpus()[0]
    [name] = mig_devices(node.wait_published(8))
    claim = create_claim(node.api, [result(name, node.name)])

    assert node.kubelet.prepare_one(claim).error == ""

    [device] = node.cdi_spec(claim.uid)["devices"]
    nodes = device["containerEdits"]["deviceNodes"]
    paths = [entry["path"] for entry in nodes]
    assert paths == ["/dev/nvidia0", *capability_nodes(node, gpu, gpu.mig_uuids[0])]
    for entry in nodes[1:]:
        assert entry["type"] == "c"
        assert entry["major"] > 0
        assert entry["path"] == f"/dev/nvidia-caps/nvidia-cap{entry['minor']}"
    assert node.kubelet.unprepare_one(claim).error == ""

    folder = node.gpus.root / f"proc/driver/nvidia/capabilities/gpu0/mig/gi{gpu.gpu_instances[0].id}"
    (folder / "ci0/access").unlink()
    again = create_claim(node.api, [result(name, node.name)])
    assert str(folder / "ci0/access") in node.kubelet.prepare_one(again).error
    assert node.cdi_files() == []
    assert node.claims_in_store() == {}


def test_several_compute_instances_of_one_gpu_instance_are_claimed_apart(make_node: MakeNode) -> None:
    node = make_node("hgx-h100", mig={0: ["1c.3g.40gb", "1g.10gb"]})
    node.start()
    gpu = node.gpus.gpus()[0]
    devices = node.wait_published(11)
    parts = [name for name, device in devices.items() if value(device, "profile") == "1c.3g.40gb"]
    assert len(parts) == 3
    claims = {name: create_claim(node.api, [result(name, node.name)]) for name in parts}

    answers = node.kubelet.prepare(*claims.values())

    assert {answer.error for answer in answers.values()} == {""}
    for name, claim in claims.items():
        uuid = value(devices[name], "uuid")
        assert node.device_nodes(claim.uid) == {name: ["/dev/nvidia0", *capability_nodes(node, gpu, uuid)]}


def test_b071_idle_instances_that_come_and_go_are_followed_with_one_write_each(make_node: MakeNode) -> None:
    node = make_node("hgx-h100", mig={0: ["3g.40gb"]})
    probes = Probes(free_address())
    node.start(http_address=probes.address)
    node.wait_published(8)

    made = node.gpus.create_mig(0, "1g.10gb")
    devices = node.wait_published(9)
    assert {value(device, "profile") for device in mig_devices(devices).values()} == {"3g.40gb", "1g.10gb"}
    node.gpus.destroy_mig(0, made.id)
    left = node.wait_published(8)

    assert {value(device, "profile") for device in mig_devices(left).values()} == {"3g.40gb"}
    assert probes.metric("gpudra_slice_writes_total", verb="create") == 1
    assert probes.metric("gpudra_slice_writes_total", verb="update") == 2
    assert probes.metric("gpudra_slice_writes_total", verb="delete") == 0


def test_b071_an_instance_in_use_stays_published_until_it_is_unprepared(make_node: MakeNode) -> None:
    node = make_node("hgx-h100", mig={0: ["3g.40gb", "1g.10gb"]})
    node.start()
    gpu = node.gpus.gpus()[0]
    devices = node.wait_published(9)
    held, idle = sorted(mig_devices(devices), key=lambda name: value(devices[name], "profile"), reverse=True)
    claim = create_claim(node.api, [result(held, node.name)])
    assert node.kubelet.prepare_one(claim).error == ""

    for instance in gpu.gpu_instances:
        node.gpus.destroy_mig(0, instance.id)
    without_idle = node.wait_published(8)
    assert without_idle[held] == devices[held]
    assert idle not in without_idle

    node.gpus.set_mig_mode(0, False)
    other = next(name for name in without_idle if name != held)
    wait_until(
        lambda: value(node.published()[other], "nvlinkPeers") > value(without_idle[other], "nvlinkPeers"),
        "the others see the whole GPU again, over NVLink",
        10.0,
    )
    assert set(node.published()) == set(without_idle), "the whole GPU must not be given out beside its part"
    another = create_claim(node.api, [result(held, node.name)])
    assert f"device {held} " in node.kubelet.prepare_one(another).error

    assert node.kubelet.unprepare_one(claim).error == ""
    whole = gpu_name(gpu.pci_bus_id)
    wait_until(lambda: whole in node.published(), "the whole GPU is published", 10.0)
    assert held not in node.published()


def test_instances_made_on_a_whole_gpu_in_use_are_offered_after_its_unprepare(make_node: MakeNode) -> None:
    node = make_node("a100-pcie-pair")
    node.start()
    devices = node.wait_published(2)
    gpu = node.gpus.gpus()[0]
    name = gpu_name(gpu.pci_bus_id)
    claim = create_claim(node.api, [result(name, node.name)])
    assert node.kubelet.prepare_one(claim).error == ""

    node.gpus.set_mig_mode(0)
    made = node.gpus.create_mig(0, "3g.40gb")
    node.wait_log("found 2 GPUs, 2 devices to offer, driver", 10.0)
    other = next(other for other in devices if other != name)
    wait_until(lambda: value(node.published()[other], "nvlinkPeers") == 0, "the link is gone", 10.0)
    assert set(node.published()) == set(devices), "what lies on a GPU in use is not offered"

    assert node.kubelet.unprepare_one(claim).error == ""
    wait_until(lambda: name not in node.published(), "the whole GPU is withdrawn", 10.0)
    [mig] = mig_devices(node.published()).values()
    assert value(mig, "uuid") == made.compute_instances[0].uuid


def test_b072_a_gpu_in_mig_mode_without_instances_is_not_offered_and_told_once(make_node: MakeNode) -> None:
    node = make_node("hgx-h100")
    node.gpus.set_mig_mode(2)
    gpu = node.gpus.gpus()[2]
    probes = Probes(free_address())
    node.start(http_address=probes.address)
    devices = node.wait_published(7)

    assert gpu.uuid not in {value(device, "uuid") for device in devices.values()}
    assert probes.metric("gpudra_mig_gpus_without_instances") == 1
    hint = "nvidia-smi mig -cgi"
    node.gpus.set_mig_mode(3)
    node.wait_published(6)
    assert [
        line.count(gpu.uuid) for line in node.log().splitlines() if hint in line and gpu.uuid in line
    ] == [1]
    wait_until(
        lambda: [
            text for text in node.api.events(node.name) if "MigWithoutInstances" in text and gpu.uuid in text
        ],
        "an event on the Node",
        10.0,
    )
    assert probes.metric("gpudra_mig_gpus_without_instances") == 2

    node.gpus.create_mig(2, "7g.80gb")
    node.gpus.set_mig_mode(3, False)
    node.wait_published(8)
    assert probes.metric("gpudra_mig_gpus_without_instances") == 0


@pytest.mark.parametrize("rescan", ["600", "1"])
def test_b075_mig_mode_turned_on_between_allocation_and_prepare(make_node: MakeNode, rescan: str) -> None:
    node = make_node("dgx-a100-80")
    node.start(rescan_seconds=rescan)
    name = sorted(node.wait_published(8))[0]
    gpu = node.gpus.gpus()[0]
    claim = create_claim(node.api, [result(name, node.name)])
    node.gpus.set_mig_mode(0)
    if rescan == "1":
        node.wait_published(7)

    error = node.kubelet.prepare_one(claim).error

    assert f"MIG mode is on for GPU {gpu.uuid}" in error
    assert name in error
    assert node.cdi_files() == []
    assert node.claims_in_store() == {}
    node.wait_published(7)

    if rescan == "1":
        node.gpus.set_mig_mode(0, False)
        node.wait_published(8)
        assert node.kubelet.prepare_one(claim).error == ""
