"""What NVML refuses, loses or garbles, through the real binding on the simulated library."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from driver.devices import offered_devices
from driver.inventory import Gpu, Inventory, UnreadableField
from driver.migoffer import MigPolicy
from driver.nodepolicy import NodePolicy
from driver.nvml import Nvml, NvmlError, NvmlUnavailable
from driver.presence import DeviceChanged, DevicePresenceError, verify
from driver.resourceslices import published, slice_specs
from tests.unit.driver.conftest import OpenNode
from tests.unit.driver.slicevalidator import violations

_NOT_SUPPORTED, _FUNCTION_NOT_FOUND, _GPU_IS_LOST, _UNKNOWN = 3, 13, 15, 999

_EMPTY: dict[str, tuple[str, dict[str, Any]]] = {
    "nvmlDeviceGetName": ("productName", {"product_name": ""}),
    "nvmlDeviceGetBrand": ("brand", {"brand": ""}),
    "nvmlDeviceGetArchitecture": ("architecture", {"architecture": ""}),
    "nvmlDeviceGetCudaComputeCapability": ("cudaComputeCapability", {"compute_capability": "0.0.0"}),
    "nvmlDeviceGetMemoryInfo": ("memory", {"memory_bytes": 0}),
    "nvmlDeviceGetMinorNumber": ("minor", {"minor": None}),
    "nvmlDeviceGetAddressingMode": ("addressingMode", {"addressing_mode": ""}),
    "nvmlDeviceGetNumGpuCores": ("multiprocessors", {}),
    "nvmlDeviceGetGpuFabricInfoV": ("fabricClique", {}),
    "nvmlDeviceGetVirtualizationMode": ("virtualizationMode", {}),
    "nvmlDeviceGetNvLinkVersion": ("nvlinkVersion", {}),
    "nvmlDeviceGetNvLinkRemoteDeviceType": ("nvlinkRemote", {}),
    "nvmlDeviceGetNvLinkRemotePciInfo_v2": ("nvlinkRemote", {}),
    "nvmlDeviceGetNvLinkState": ("nvlink", {}),
    "nvmlDeviceGetGpuInstanceProfileInfoV": ("engines", {"profiles": ()}),
    "nvmlDeviceGetGpuInstancePossiblePlacements_v2": ("migProfiles", {"profiles": ()}),
    "nvmlDeviceGetFieldValues": ("resetlessMig", {}),
}
_UNSUPPORTED_IS_AN_ANSWER = {
    "nvmlDeviceGetAddressingMode",
    "nvmlDeviceGetNumGpuCores",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetVirtualizationMode",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetGpuInstanceProfileInfoV",
    "nvmlDeviceGetGpuInstancePossiblePlacements_v2",
    "nvmlDeviceGetFieldValues",
}


def _without_computed(gpu: Gpu) -> Gpu:
    return replace(gpu, nvlink=None, engines=replace(gpu.engines, multiprocessors=0))


def _check_pool(inventory: Inventory) -> None:
    devices = [
        published(device, inventory)
        for device in offered_devices(inventory, NodePolicy(mig=MigPolicy.STATIC), {})
    ]
    assert len({frozenset(device["attributes"]) for device in devices}) == 1
    specs = slice_specs(devices, "node-1", "node-1")
    assert violations([spec | {"pool": spec["pool"] | {"generation": 1}} for spec in specs]) == []


@pytest.mark.parametrize("code", [_NOT_SUPPORTED, _UNKNOWN, _FUNCTION_NOT_FOUND])
@pytest.mark.parametrize("symbol", sorted(_EMPTY))
def test_b002_a_query_that_fails_costs_one_field_of_one_gpu(
    open_node: OpenNode, symbol: str, code: int
) -> None:
    node = open_node("hgx-h100")
    before = node.discover()
    node.simulated.set_return(symbol, code, gpu=1)
    after = node.discover()
    field, empty = _EMPTY[symbol]
    expected = [
        replace(gpu, **(empty if gpu.index == 1 else {}), engines=after.gpus[gpu.index].engines)
        for gpu in before.gpus
    ]
    if symbol == "nvmlDeviceGetGpuInstanceProfileInfoV":
        assert [gpu.engines.decoders for gpu in after.gpus] == [7, 0, 7, 7, 7, 7, 7, 7]
    else:
        assert [gpu.engines for gpu in after.gpus] == [gpu.engines for gpu in before.gpus]
    assert [_without_computed(gpu) for gpu in after.gpus] == [_without_computed(gpu) for gpu in expected]
    if (code == _NOT_SUPPORTED and symbol in _UNSUPPORTED_IS_AN_ANSWER) or (
        code == _FUNCTION_NOT_FOUND and symbol == "nvmlDeviceGetFieldValues"
    ):
        assert after.unreadable_fields == ()
    else:
        assert {(failure.gpu, failure.field.partition("[")[0]) for failure in after.unreadable_fields} == {
            (before.gpus[1].uuid, field)
        }
        assert f"({code})" in after.unreadable_fields[0].reason
    _check_pool(after)


def test_b001_memory_that_nvml_does_not_tell_is_zero(open_node: OpenNode) -> None:
    node = open_node("a100-pcie-pair")
    node.simulated.set_return("nvmlDeviceGetMemoryInfo", _NOT_SUPPORTED, gpu=0)
    inventory = node.discover()
    devices = [
        published(device, inventory)
        for device in offered_devices(inventory, NodePolicy(mig=MigPolicy.STATIC), {})
    ]
    assert [device["capacity"]["memory"]["value"] for device in devices] == ["0", "81920Mi"]
    assert inventory.unreadable_fields == (
        UnreadableField(inventory.gpus[0].uuid, "memory", "nvmlDeviceGetMemoryInfo: NOT_SUPPORTED (3)"),
    )


def test_b003_of_a_gpu_only_name_uuid_and_address_are_known(open_node: OpenNode) -> None:
    node = open_node("hgx-h100")
    for symbol in [*_EMPTY, "nvmlDeviceGetMigMode"]:
        if symbol != "nvmlDeviceGetName":
            node.simulated.set_return(symbol, _NOT_SUPPORTED, gpu=0)
    inventory = node.discover()
    bare = inventory.gpus[0]
    assert [bare.product_name, bare.architecture, bare.memory_bytes, bare.mig_capable] == [
        "NVIDIA H100 80GB HBM3",
        "",
        0,
        False,
    ]
    _check_pool(inventory)


def test_b003_without_an_address_a_gpu_is_set_aside_by_its_uuid(open_node: OpenNode) -> None:
    node = open_node("t4x4")
    uuid = node.simulated.gpus()[3].uuid
    node.simulated.set_return("nvmlDeviceGetPciInfo_v3", _NOT_SUPPORTED, gpu=3)
    inventory = node.discover()
    assert len(inventory.gpus) == 3
    (unreadable,) = inventory.unreadable_gpus
    assert [unreadable.gpu, unreadable.reason] == [uuid, "nvmlDeviceGetPciInfo_v3: NOT_SUPPORTED (3)"]
    assert inventory.waiting_for_driver == 0


@pytest.mark.parametrize("code", [_GPU_IS_LOST, _UNKNOWN])
def test_b004_a_gpu_without_handle_does_not_hide_the_others(open_node: OpenNode, code: int) -> None:
    node = open_node("t4x4")
    node.simulated.set_return("nvmlDeviceGetHandleByIndex_v2", code, gpu=2)
    inventory = node.discover()
    assert [gpu.index for gpu in inventory.gpus] == [0, 1, 3]
    assert [gpu.gpu for gpu in inventory.unreadable_gpus] == ["index 2"]
    assert f"({code})" in inventory.unreadable_gpus[0].reason
    assert inventory.waiting_for_driver == 0


@pytest.mark.parametrize("symbol", [*sorted(_EMPTY), "nvmlDeviceGetUUID", "nvmlDeviceGetMigMode"])
def test_b004_a_gpu_lost_at_any_query_is_set_aside(open_node: OpenNode, symbol: str) -> None:
    node = open_node("hgx-h100")
    node.simulated.set_return(symbol, _GPU_IS_LOST, gpu=2)
    inventory = node.discover()
    assert [gpu.index for gpu in inventory.gpus] == [0, 1, 3, 4, 5, 6, 7]
    (unreadable,) = inventory.unreadable_gpus
    assert unreadable.reason == f"{symbol}: GPU_IS_LOST (15)"


def test_b004_a_gpu_off_the_bus(open_node: OpenNode) -> None:
    node = open_node("t4x4")
    device = offered_devices(node.discover(), NodePolicy(mig=MigPolicy.STATIC), {})[2]
    node.simulated.lose(2)
    inventory = node.discover()
    assert [len(inventory.gpus), len(inventory.unreadable_gpus)] == [3, 1]
    with pytest.raises(DevicePresenceError, match=rf"{device.name}: .*GPU_IS_LOST \(15\)"):
        verify(node.nvml, device)


def test_b007_gpus_come_and_go(open_node: OpenNode) -> None:
    node = open_node("t4x4")
    device = offered_devices(node.discover(), NodePolicy(mig=MigPolicy.STATIC), {})[1]
    node.simulated.unplug(1)
    without = node.discover()
    assert [str(gpu.pci) for gpu in without.gpus] == ["0000:17:00.0", "0000:57:00.0", "0000:77:00.0"]
    assert without.unreadable_gpus == ()
    with pytest.raises(DevicePresenceError, match=device.name):
        verify(node.nvml, device)
    node.simulated.plug("t4", pci="0000:37:00.0", uuid="GPU-0e0e0e0e-0000-0000-0000-000000000000")
    assert [str(gpu.pci) for gpu in node.discover().gpus][1] == "0000:37:00.0"
    with pytest.raises(DeviceChanged, match="GPU-0e0e0e0e"):
        verify(node.nvml, device)


def test_a_dead_link_splits(open_node: OpenNode) -> None:
    node = open_node("a100-pcie-pair")
    together = node.discover()
    assert len({gpu.nvlink.domain for gpu in together.gpus if gpu.nvlink}) == 1
    for link in range(12):
        node.simulated.set_link(0, link, active=False)
    split = node.discover()
    assert [gpu.nvlink.domain for gpu in split.gpus if gpu.nvlink] == [gpu.uuid for gpu in split.gpus]
    assert [gpu.nvlink.links for gpu in split.gpus if gpu.nvlink] == [0, 12]


def test_b008_not_supported_means_no_mig(open_node: OpenNode) -> None:
    node = open_node("t4x4")
    inventory = node.discover()
    assert {(gpu.mig_capable, gpu.mig_enabled) for gpu in inventory.gpus} == {(False, False)}
    assert inventory.unreadable_fields == ()
    assert not [
        symbol for symbol in node.simulated.calls() if "Mig" in symbol and symbol != "nvmlDeviceGetMigMode"
    ]
    assert not [symbol for symbol in node.simulated.calls() if "Instance" in symbol]


def test_b010_a_vgpu_is_a_whole_device_that_cannot_be_partitioned(open_node: OpenNode) -> None:
    node = open_node("hgx-h100")
    node.simulated.set_gpu(0, virtualization=2)
    gpu = node.discover().gpus[0]
    assert [gpu.is_vgpu, gpu.mig_capable, gpu.mig_enabled] == [True, False, False]


def test_b015_one_mig_device_that_cannot_be_read_hides_no_other(open_node: OpenNode) -> None:
    node = open_node("a100-pcie-pair", mig={0: ["1g.10gb"] * 7})
    node.simulated.set_return("nvmlDeviceGetAttributes_v2", _UNKNOWN, times=1)
    inventory = node.discover()
    assert [len(gpu.mig_devices) for gpu in inventory.gpus] == [6, 0]
    (failure,) = inventory.unreadable_fields
    assert failure.field.startswith("migDevices[")
    assert failure.reason == "nvmlDeviceGetAttributes_v2: UNKNOWN (999)"
    assert len(offered_devices(inventory, NodePolicy(mig=MigPolicy.STATIC), {})) == 7


def test_a_driver_that_knows_no_profile_by_id_has_it_in_the_name(open_node: OpenNode) -> None:
    node = open_node("a100-pcie-pair", mig={0: ["1c.3g.40gb", "1g.10gb"]})
    known = node.discover().gpus[0].mig_devices
    node.simulated.set_return("nvmlDeviceGetGpuInstanceProfileInfoByIdV", _FUNCTION_NOT_FOUND)
    assert node.discover().gpus[0].mig_devices == known


def test_text_that_is_not_utf8_is_replaced(open_node: OpenNode) -> None:
    node = open_node("t4x4")
    node.simulated.set_gpu(0, name=b"Tesla \xff\xfe T4")
    inventory = node.discover()
    assert inventory.gpus[0].product_name == "Tesla \ufffd\ufffd T4"
    _check_pool(inventory)


def test_b011_a_missing_library_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(NvmlUnavailable, match=r"libnvidia-ml\.so\.1 does not load"):
        Nvml(tmp_path / "libnvidia-ml.so.1")


def test_b011_a_driver_that_is_not_loaded_is_unavailable_until_it_is(open_node: OpenNode) -> None:
    simulated = open_node("t4x4").simulated
    simulated.load_driver(False)
    with pytest.raises(NvmlUnavailable, match=r"nvmlInitWithFlags: DRIVER_NOT_LOADED \(9\)"):
        Nvml(simulated.library_path)
    simulated.load_driver()
    nvml = Nvml(simulated.library_path)
    assert nvml.device_count() == 4


def test_a_count_that_fails_is_an_error_of_the_whole_discovery(open_node: OpenNode) -> None:
    node = open_node("t4x4")
    node.simulated.set_return("nvmlDeviceGetCount_v2", _UNKNOWN)
    with pytest.raises(NvmlError, match=r"nvmlDeviceGetCount_v2: UNKNOWN \(999\)"):
        node.discover()


def test_codes_without_a_name_are_told_as_numbers(open_node: OpenNode) -> None:
    node = open_node("t4x4")
    node.simulated.set_return("nvmlDeviceGetBrand", 77, gpu=0)
    (failure,) = node.discover().unreadable_fields
    assert failure.reason == "nvmlDeviceGetBrand: error (77)"
