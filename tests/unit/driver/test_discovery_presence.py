"""Whether a device is still there, asked through the real binding on the simulated library."""

from __future__ import annotations

from dataclasses import replace

import pytest

from driver.devices import Device, offered_devices
from driver.migoffer import MigPolicy
from driver.nodepolicy import NodePolicy
from driver.presence import DeviceChanged, DevicePresenceError, verify
from tests.unit.driver.conftest import OpenedNode, OpenNode


def _devices(node: OpenedNode) -> tuple[Device, ...]:
    return offered_devices(node.discover(), NodePolicy(mig=MigPolicy.STATIC), {})


@pytest.mark.parametrize("machine", ["t4x4", "hgx-h100", "gb200-tray"])
def test_whole_gpus_are_there(open_node: OpenNode, machine: str) -> None:
    node = open_node(machine)
    for device in _devices(node):
        verify(node.nvml, device)


def test_mig_devices_are_there(open_node: OpenNode) -> None:
    node = open_node("a100-pcie-pair", mig={0: ["1c.3g.40gb", "1g.10gb"]})
    devices = _devices(node)
    assert len(devices) == 5
    for device in devices:
        verify(node.nvml, device)


def test_b017_swapped_card_is_refused(open_node: OpenNode) -> None:
    node = open_node("t4x4")
    device = _devices(node)[1]
    before = replace(device, gpu=replace(device.gpu, uuid="GPU-old"))
    with pytest.raises(DeviceChanged) as caught:
        verify(node.nvml, before)
    assert (
        str(caught.value)
        == f"device {device.name}: it had UUID GPU-old, and now {device.uuid} is in its place"
    )
    assert [caught.value.old_uuid, caught.value.new_uuid] == ["GPU-old", device.uuid]


def test_a_gpu_that_is_gone_is_refused(open_node: OpenNode) -> None:
    node = open_node("t4x4")
    device = _devices(node)[0]
    gone = replace(device, gpu=replace(device.gpu, pci=replace(device.gpu.pci, bus=0xEE)))
    with pytest.raises(DevicePresenceError, match=r"there is no GPU at 0000:ee:00\.0 any more"):
        verify(node.nvml, gone)


def test_b075_a_gpu_whose_mig_mode_was_turned_on_is_refused_as_a_whole(open_node: OpenNode) -> None:
    node = open_node("hgx-h100")
    device = _devices(node)[0]
    node.simulated.set_mig_mode(0)
    verify(node.nvml, device)
    node.simulated.create_mig(0, "1g.10gb")
    with pytest.raises(DevicePresenceError, match=f"MIG mode is on for GPU {device.uuid}"):
        verify(node.nvml, device)


def test_b075_on_ampere_mig_mode_is_not_turned_off(open_node: OpenNode) -> None:
    node = open_node("a100-pcie-pair")
    device = _devices(node)[0]
    node.simulated.set_mig_mode(0)
    with pytest.raises(DevicePresenceError, match=f"MIG mode is on for GPU {device.uuid}"):
        verify(node.nvml, device)


def test_a_mig_device_that_was_destroyed_is_refused(open_node: OpenNode) -> None:
    node = open_node("a100-pcie-pair", mig={0: ["1g.10gb"]})
    device = _devices(node)[0]
    assert device.mig is not None
    node.simulated.destroy_mig(0, device.mig.gpu_instance_id)
    with pytest.raises(
        DevicePresenceError, match=f"MIG device {device.uuid} .* is gone from GPU {device.gpu.uuid}"
    ):
        verify(node.nvml, device)


def test_b017_a_mig_device_that_was_made_again_is_another(open_node: OpenNode) -> None:
    node = open_node("a100-pcie-pair", mig={0: ["1g.10gb"]})
    device = _devices(node)[0]
    assert device.mig is not None
    node.simulated.destroy_mig(0, device.mig.gpu_instance_id)
    node.simulated.create_mig(0, "1g.10gb", device.mig.placement.start)
    with pytest.raises(DeviceChanged) as caught:
        verify(node.nvml, device)
    assert caught.value.old_uuid == device.uuid
