"""MIG state rules: modes, instance life, handles, permissions, UUIDs."""

from __future__ import annotations

import re

import pynvml
import pytest

from tests.unit.nvmlsim.conftest import Binding, MakeNode, address, create_gpu_instance

UUID_V5 = re.compile(r"^MIG-[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$")


def test_hopper_switches_at_once(make_node: MakeNode, nvml: Binding) -> None:
    with nvml(make_node("hgx-h100")):
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        assert pynvml.nvmlDeviceGetMaxMigDeviceCount(handle) == 0
        assert pynvml.nvmlDeviceSetMigMode(handle, 1) == pynvml.NVML_SUCCESS
        assert pynvml.nvmlDeviceGetMigMode(handle) == [1, 1]
        assert pynvml.nvmlDeviceGetMaxMigDeviceCount(handle) == 7


@pytest.mark.parametrize("machine", ["dgx-a100-40", "hgx-h100"])
def test_a_busy_gpu_keeps_its_mode_until_a_reset(machine: str, make_node: MakeNode, nvml: Binding) -> None:
    node = make_node(machine)
    node.add_process(0, pid=4711)
    with nvml(node):
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        assert pynvml.nvmlDeviceSetMigMode(handle, 1) == pynvml.NVML_ERROR_IN_USE
        assert pynvml.nvmlDeviceGetMigMode(handle) == [0, 1]
        node.reset(0)
        assert pynvml.nvmlDeviceGetMigMode(handle) == [1, 1]


def test_mig_mode_survives_a_reboot_on_ampere_only(make_node: MakeNode) -> None:
    for machine, survives in (("dgx-a100-40", True), ("hgx-h100", False)):
        node = make_node(machine)
        node.set_mig_mode(0)
        node.create_mig(0, "1g.5gb" if survives else "1g.10gb")
        node.reboot()
        assert node.gpu(0).mig_mode is survives
        assert node.gpu(0).gpu_instances == ()


def test_a_passed_through_ampere_needs_a_reset(make_node: MakeNode, nvml: Binding) -> None:
    node = make_node("dgx-a100-80")
    node.set_gpu(0, virtualization=1)
    with nvml(node):
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        assert pynvml.nvmlDeviceSetMigMode(handle, 1) == pynvml.NVML_ERROR_RESET_REQUIRED
        assert pynvml.nvmlDeviceGetMigMode(handle) == [0, 1]


def test_mode_is_not_turned_off_over_instances(make_node: MakeNode, nvml: Binding) -> None:
    node = make_node("hgx-h100", mig={0: ["1g.10gb"]})
    with nvml(node):
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        assert pynvml.nvmlDeviceSetMigMode(handle, 0) == pynvml.NVML_ERROR_IN_USE
        assert pynvml.nvmlDeviceGetMigMode(handle) == [1, 1]
        node.destroy_mig(0, 7)
        assert pynvml.nvmlDeviceSetMigMode(handle, 0) == pynvml.NVML_SUCCESS
        assert pynvml.nvmlDeviceGetMigMode(handle) == [0, 0]


def test_a_vgpu_guest_and_a_gpu_without_mig_support_nothing(make_node: MakeNode, nvml: Binding) -> None:
    guest = make_node("hgx-h100")
    guest.set_gpu(0, virtualization=2)
    for node in (guest, make_node("l40sx8")):
        with nvml(node):
            handle = pynvml.nvmlDeviceGetHandleByIndex(0)
            with pytest.raises(pynvml.NVMLError_NotSupported):
                pynvml.nvmlDeviceSetMigMode(handle, 1)
            with pytest.raises(pynvml.NVMLError_NotSupported):
                pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, 0, version=2)
            with pytest.raises(pynvml.NVMLError_NotSupported):
                pynvml.nvmlDeviceCreateGpuInstance(handle, 19)


def test_profiles_answer_with_mig_off_but_capacity_does_not(make_node: MakeNode, nvml: Binding) -> None:
    with nvml(make_node("hgx-h100")):
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        assert pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, 0, version=2).id == 19
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, 19)
        with pytest.raises(pynvml.NVMLError_NotSupported):
            create_gpu_instance(handle, 19, 0, 1)


def test_the_first_instance_needs_an_idle_gpu(make_node: MakeNode, nvml: Binding) -> None:
    node = make_node("hgx-h100")
    node.set_mig_mode(0)
    node.add_process(0, pid=10)
    with nvml(node):
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        with pytest.raises(pynvml.NVMLError_InUse):
            create_gpu_instance(handle, 19, 0, 1)
        node.remove_process(10)
        create_gpu_instance(handle, 19, 0, 1)


def test_instances_in_use_are_not_destroyed(make_node: MakeNode, nvml: Binding) -> None:
    node = make_node("hgx-h100", mig={0: ["1g.10gb"]})
    with nvml(node):
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        gi = pynvml.nvmlDeviceGetGpuInstanceById(handle, 7)
        ci = pynvml.nvmlGpuInstanceGetComputeInstanceById(gi, 0)
        with pytest.raises(pynvml.NVMLError_InUse):
            pynvml.nvmlGpuInstanceDestroy(gi)
        node.add_process(0, pid=10, gi=7, ci=0)
        with pytest.raises(pynvml.NVMLError_InUse):
            pynvml.nvmlComputeInstanceDestroy(ci)
        node.remove_process(10)
        pynvml.nvmlComputeInstanceDestroy(ci)
        pynvml.nvmlGpuInstanceDestroy(gi)
        with pytest.raises(pynvml.NVMLError_NotFound):
            pynvml.nvmlDeviceGetGpuInstanceById(handle, 7)


def test_a_handle_to_an_instance_made_again_is_stale(make_node: MakeNode, nvml: Binding) -> None:
    node = make_node("hgx-h100", mig={0: ["1g.10gb"]})
    with nvml(node):
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        old_gi = pynvml.nvmlDeviceGetGpuInstanceById(handle, 7)
        old_ci = pynvml.nvmlGpuInstanceGetComputeInstanceById(old_gi, 0)
        old_device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 0)
        node.destroy_mig(0, 7)
        assert node.create_mig(0, "1g.10gb", 0).id == 7
        for call, argument in (
            (pynvml.nvmlGpuInstanceGetInfo, old_gi),
            (pynvml.nvmlGpuInstanceDestroy, old_gi),
            (pynvml.nvmlComputeInstanceGetInfo_v2, old_ci),
            (pynvml.nvmlDeviceGetUUID, old_device),
        ):
            with pytest.raises(pynvml.NVMLError_NotFound):
                call(argument)
        assert address(pynvml.nvmlDeviceGetGpuInstanceById(handle, 7)) != address(old_gi)


@pytest.mark.parametrize("garbage", [0, 1, 0xDEADBEEF, (1 << 64) - 1])
def test_garbage_handles_are_invalid(garbage: int, make_node: MakeNode, nvml: Binding) -> None:
    with nvml(make_node("t4x4")):
        for function in ("nvmlDeviceGetIndex", "nvmlGpuInstanceGetInfo", "nvmlComputeInstanceGetInfo_v2"):
            answer = (pynvml.c_uint * 16)()
            code = getattr(pynvml.nvmlLib, function)(pynvml.c_void_p(garbage), answer)
            assert code == pynvml.NVML_ERROR_INVALID_ARGUMENT


def test_mig_device_handles(make_node: MakeNode, nvml: Binding) -> None:
    node = make_node("hgx-h100", mig={2: ["1g.10gb", "1c.3g.40gb"]})
    with nvml(node):
        gpu = pynvml.nvmlDeviceGetHandleByIndex(2)
        node.destroy_mig(2, 7)
        with pytest.raises(pynvml.NVMLError_NotFound):
            pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)
        device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 2)
        uuid = pynvml.nvmlDeviceGetUUID(device)
        assert UUID_V5.match(uuid)
        assert pynvml.nvmlDeviceIsMigDeviceHandle(device).value == 1
        assert pynvml.nvmlDeviceIsMigDeviceHandle(gpu).value == 0
        assert (pynvml.nvmlDeviceGetGpuInstanceId(device), pynvml.nvmlDeviceGetComputeInstanceId(device)) == (
            2,
            1,
        )
        assert address(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)) == address(gpu)
        assert pynvml.nvmlDeviceGetMemoryInfo(device).total == 40448 << 20
        attributes = pynvml.nvmlDeviceGetAttributes(device)
        assert (attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount) == (3, 1)
        old_name = f"MIG-{node.gpu(2).uuid}/2/1"
        for name in (uuid, uuid.upper().replace("MIG-", "MIG-"), old_name):
            assert address(pynvml.nvmlDeviceGetHandleByUUID(name)) == address(device)
        for call in (pynvml.nvmlDeviceGetMinorNumber, pynvml.nvmlDeviceGetSupportedEventTypes):
            with pytest.raises(pynvml.NVMLError_NotSupported):
                call(device)
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetNvLinkState(device, 0)
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetAttributes(gpu)


def test_a_freed_index_is_given_to_the_next_instance(make_node: MakeNode) -> None:
    node = make_node("hgx-h100", mig={0: ["1g.10gb", "1g.10gb", "1g.10gb"]})
    node.destroy_mig(0, 8)
    assert node.create_mig(0, "1g.10gb", 5).compute_instances[0].mig_index == 1


@pytest.mark.parametrize(("mode", "same"), [("fresh", False), ("derived", True)])
def test_uuids_of_an_instance_made_again(mode: str, same: bool, make_node: MakeNode) -> None:
    node = make_node("hgx-h100", mig={0: ["1g.10gb"]}, mig_uuids=mode)
    before = node.gpu(0).mig_uuids
    node.destroy_mig(0, 7)
    node.create_mig(0, "1g.10gb", 0)
    assert (node.gpu(0).mig_uuids == before) is same


def test_capability_files_follow_the_instances(make_node: MakeNode, nvml: Binding) -> None:
    node = make_node("hgx-h100")
    node.permute_minors([3, 2, 1, 0, 4, 5, 6, 7])
    node.set_mig_mode(0)
    folder = node.root / "proc/driver/nvidia/capabilities/gpu3/mig"
    with nvml(node):
        gi = create_gpu_instance(pynvml.nvmlDeviceGetHandleByIndex(0), 9, 4, 4)
        assert (folder / "gi2/access").read_text().splitlines()[
            0
        ] == f"DeviceFileMinor: {3 + 135 * 3 + 9 * 2}"
        ci = pynvml.nvmlGpuInstanceCreateComputeInstance(gi, 2)
        text = (folder / "gi2/ci0/access").read_text()
        assert text == "DeviceFileMinor: 427\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
        assert (node.root / "dev/nvidia-caps/nvidia-cap427").exists()
        pynvml.nvmlComputeInstanceDestroy(ci)
        assert not (folder / "gi2/ci0").exists()
        pynvml.nvmlGpuInstanceDestroy(gi)
        assert list(folder.iterdir()) == []
        assert not (node.root / "dev/nvidia-caps/nvidia-cap427").exists()
