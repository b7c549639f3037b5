"""What can be set on a running node: failures, slowness, loss, plugging, versions, reboots."""

from __future__ import annotations

import threading
import time

import pynvml
import pytest

from nvmlsim.gpusettings import NUMBERS, TEXTS, SettingError
from nvmlsim.library import StateError
from tests.unit.nvmlsim.conftest import Binding, MakeNode


def test_a_return_code_for_one_gpu_and_for_a_number_of_calls(make_node: MakeNode, nvml: Binding) -> None:
    node = make_node("t4x4")
    with nvml(node):
        first, second = (pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(2))
        node.set_return("nvmlDeviceGetName", 999, times=2, gpu=1)
        assert pynvml.nvmlDeviceGetName(first) == "Tesla T4"
        for _ in range(2):
            with pytest.raises(pynvml.NVMLError_Unknown):
                pynvml.nvmlDeviceGetName(second)
        assert pynvml.nvmlDeviceGetName(second) == "Tesla T4"
        node.set_return("nvmlDeviceGetMemoryInfo", 3)
        for handle in (first, second):
            with pytest.raises(pynvml.NVMLError_NotSupported):
                pynvml.nvmlDeviceGetMemoryInfo(handle)
        node.clear_faults("nvmlDeviceGetMemoryInfo")
        assert pynvml.nvmlDeviceGetMemoryInfo(first).total > 0


def test_a_look_up_fails_for_one_gpu(make_node: MakeNode, nvml: Binding) -> None:
    node = make_node("t4x4")
    node.set_return("nvmlDeviceGetHandleByIndex_v2", 17, gpu=2)
    with nvml(node):
        for index in (0, 1, 3):
            pynvml.nvmlDeviceGetHandleByIndex(index)
        with pytest.raises(pynvml.NVMLError_OperatingSystem):
            pynvml.nvmlDeviceGetHandleByIndex(2)


def test_start_up_codes(make_node: MakeNode, nvml: Binding) -> None:
    node = make_node("t4x4")
    node.set_return("nvmlInitWithFlags", 999, times=1)
    with pytest.raises(pynvml.NVMLError_Unknown), nvml(node):
        pass
    with nvml(node):
        assert pynvml.nvmlDeviceGetCount() == 4
    node.load_driver(False)
    assert not (node.root / "proc/driver/nvidia/version").exists()
    assert "nvidia" not in (node.root / "proc/devices").read_text()
    with pytest.raises(pynvml.NVMLError_DriverNotLoaded), nvml(node):
        pass
    node.load_driver()
    with nvml(node):
        assert pynvml.nvmlDeviceGetCount() == 4


def test_calls_before_init_and_after_shutdown(make_node: MakeNode, nvml: Binding) -> None:
    with nvml(make_node("t4x4")):
        pynvml.nvmlInit()
        pynvml.nvmlShutdown()
        assert pynvml.nvmlDeviceGetCount() == 4
        pynvml.nvmlShutdown()
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            pynvml.nvmlDeviceGetCount()
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            pynvml.nvmlShutdown()
        pynvml.nvmlInit()


def test_a_slow_gpu_does_not_slow_another(make_node: MakeNode, nvml: Binding) -> None:
    node = make_node("hgx-h100")
    node.set_mig_mode(0)
    node.set_delay("*", 400, gpu=0)
    with nvml(node):
        slow, quick = (pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(2))
        took: list[float] = []

        def create_slowly() -> None:
            began = time.monotonic()
            pynvml.nvmlDeviceCreateGpuInstance(slow, 19)
            took.append(time.monotonic() - began)

        thread = threading.Thread(target=create_slowly)
        thread.start()
        time.sleep(0.05)
        pynvml.nvmlDeviceGetName(quick)
        pynvml.nvmlDeviceSetMigMode(quick, 1)
        assert not took, "the call for the slow GPU is still under way"
        thread.join()
    assert took[0] >= 0.4


def test_a_missing_symbol_is_function_not_found(make_node: MakeNode, nvml: Binding) -> None:
    node = make_node("t4x4")
    node.set_missing_symbols(["nvmlDeviceGetAddressingMode", "nvmlDeviceGetGpuFabricInfoV"])
    with nvml(node):
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        with pytest.raises(pynvml.NVMLError_FunctionNotFound):
            pynvml.nvmlDeviceGetAddressingMode(handle)
        assert pynvml.nvmlDeviceGetName(handle) == "Tesla T4"
    with pytest.raises(StateError, match="nvmlDeviceGetNothing"):
        node.set_missing_symbols(["nvmlDeviceGetNothing"])


def test_a_lost_gpu_answers_only_that_it_is_lost(make_node: MakeNode, nvml: Binding) -> None:
    node = make_node("t4x4")
    with nvml(node):
        handle = pynvml.nvmlDeviceGetHandleByIndex(1)
        node.lose(1)
        assert pynvml.nvmlDeviceGetCount() == 4
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            pynvml.nvmlDeviceGetName(handle)
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            pynvml.nvmlDeviceGetHandleByIndex(1)
        node.reset(1)
        assert pynvml.nvmlDeviceGetName(handle) == "Tesla T4"


def test_unplugged_and_plugged_again(make_node: MakeNode, nvml: Binding) -> None:
    node = make_node("hgx-h100", mig={2: ["1g.10gb"]})
    before = node.gpu(2)
    with nvml(node):
        handle = pynvml.nvmlDeviceGetHandleByIndex(2)
        node.unplug(2)
        assert pynvml.nvmlDeviceGetCount() == 7
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            pynvml.nvmlDeviceGetName(handle)
        assert not (node.root / "dev/nvidia2").exists()
        assert not (node.root / "sys/bus/pci/devices" / before.pci_bus_id).is_symlink()
        left = {path.name for path in (node.root / "dev/nvidia-caps").iterdir()}
        assert left == {"nvidia-cap1", "nvidia-cap2"}
        again = node.plug("h100-sxm5-80gb", pci=before.pci_bus_id)
        assert (again.uuid, again.minor) == (before.uuid, 2)
        new = pynvml.nvmlDeviceGetHandleByIndex(2)
        assert pynvml.nvmlDeviceGetUUID(new) == before.uuid
        assert pynvml.nvmlDeviceGetNvLinkState(new, 17) == 1
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            pynvml.nvmlDeviceGetName(handle)


def test_another_card_in_the_same_slot_and_one_more(make_node: MakeNode, nvml: Binding) -> None:
    node = make_node("t4x4")
    where = node.gpu(0).pci_bus_id
    node.unplug(0)
    node.plug("l40s", pci=where, uuid="GPU-00000000-1111-2222-3333-444444444444")
    node.plug("t4")
    with nvml(node):
        assert pynvml.nvmlDeviceGetCount() == 5
        handle = pynvml.nvmlDeviceGetHandleByPciBusId(where)
        assert pynvml.nvmlDeviceGetName(handle) == "NVIDIA L40S"
        assert pynvml.nvmlDeviceGetUUID(handle) == "GPU-00000000-1111-2222-3333-444444444444"
    assert sorted(gpu.minor for gpu in node.gpus()) == [0, 1, 2, 3, 4]


def test_driver_upgrade_with_and_without_reload(make_node: MakeNode, nvml: Binding) -> None:
    node = make_node("t4x4")
    node.set_driver_version("590.1.1", reload=False)
    assert node.state_path.name == "libnvidia-nvmlsim.so.590.1.1"
    assert node.library_path.resolve().name == "libnvidia-ml.so.590.1.1"
    assert [file.name for file in node.library_path.parent.glob("*.580.*")] == []
    with pytest.raises(pynvml.NVMLError_LibRmVersionMismatch), nvml(node):
        pass
    node.reboot()
    assert "590.1.1" in (node.root / "proc/driver/nvidia/version").read_text()
    with nvml(node):
        assert pynvml.nvmlSystemGetDriverVersion() == "590.1.1"
        node.set_driver_version("591.2.2")
        assert pynvml.nvmlSystemGetDriverVersion() == "591.2.2"
        assert pynvml.nvmlSystemGetNVMLVersion() == "13.591.2.2"


def test_a_reboot_forgets_what_is_volatile(make_node: MakeNode) -> None:
    node = make_node("dgx-a100-40", mig={0: ["1g.5gb"]})
    boot_id = node.root / "proc/sys/kernel/random/boot_id"
    before = boot_id.read_text()
    node.set_gpu(1, compute_mode=3, timeslice=2)
    node.add_process(1, pid=5)
    node.lose(2)
    node.reboot()
    assert boot_id.read_text() != before
    assert node.gpu(0).gpu_instances == ()
    assert (node.gpu(1).compute_mode, node.gpu(1).timeslice, node.gpu(2).lost) == (0, 0, False)
    assert node.show()["processes"] == []


def test_minors_and_indexes_move_apart_from_addresses(make_node: MakeNode, nvml: Binding) -> None:
    node = make_node("t4x4")
    uuids = [gpu.uuid for gpu in node.gpus()]
    node.permute_minors([3, 1, 0, 2])
    node.permute_indexes([1, 0, 3, 2])
    with nvml(node):
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(4)]
        assert [pynvml.nvmlDeviceGetUUID(handle) for handle in handles] == [uuids[i] for i in (1, 0, 3, 2)]
        assert [pynvml.nvmlDeviceGetMinorNumber(handle) for handle in handles] == [1, 3, 2, 0]
        assert [pynvml.nvmlDeviceGetIndex(handle) for handle in handles] == [0, 1, 2, 3]
    information = node.root / f"proc/driver/nvidia/gpus/{node.gpu(0).pci_bus_id}/information"
    assert "Device Minor: \t 3" in information.read_text()
    node.permute_minors([3, 1, 0, 9])
    assert (node.root / "dev/nvidia9").exists()
    assert not (node.root / "dev/nvidia2").exists()
    with pytest.raises(StateError, match="4 different numbers"):
        node.permute_minors([0, 0, 1, 2])


def test_settings_of_one_gpu(make_node: MakeNode, nvml: Binding) -> None:
    node = make_node("hgx-h100")
    node.set_gpu(0, name=b"NVIDIA \xff\xfe H100", numa_node=-1, remap_pending=1, recovery_action=1)
    node.set_gpu(1, memory_unreported=1, fabric_state=2)
    with nvml(node):
        first, second = (pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(2))
        with pytest.raises(UnicodeDecodeError):
            pynvml.nvmlDeviceGetName(first)
        assert pynvml.nvmlDeviceGetRemappedRows(first) == (0, 0, 1, 0)
        assert pynvml.nvmlDeviceGetFieldValues(first, [230])[0].value.uiVal == 1
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetMemoryInfo(second)
    numa = node.root / "sys/bus/pci/devices" / node.gpu(0).pci_bus_id / "numa_node"
    assert numa.read_text() == "-1\n"
    with pytest.raises(SettingError, match="no setting 'colour'; allowed are name, uuid"):
        node.set_gpu(0, colour=1)
    with pytest.raises(SettingError, match="compute_mode: 'fast' is not a whole number"):
        node.set_gpu(0, compute_mode="fast")


def test_every_setting_of_a_gpu_can_be_set(make_node: MakeNode) -> None:
    node = make_node("t4x4")
    node.set_gpu(0, **{name: name for name in TEXTS})
    for name in NUMBERS:
        node.set_gpu(1, **{name: "1"})
    assert (node.gpu(0).name, node.gpu(0).uuid, node.gpu(1).timeslice) == ("name", "uuid", 1)


def test_processes_are_listed_where_they_run(make_node: MakeNode, nvml: Binding) -> None:
    node = make_node("hgx-h100", mig={0: ["1g.10gb", "1g.10gb"]})
    node.add_process(0, pid=100, gi=7, ci=0, memory_mib=64)
    node.add_process(1, pid=101, memory_mib=1000)
    with nvml(node):
        mig_gpu, whole = (pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(2))
        first, second = (pynvml.nvmlDeviceGetMigDeviceHandleByIndex(mig_gpu, index) for index in range(2))
        listed = pynvml.nvmlDeviceGetComputeRunningProcesses_v3(first)
        assert [(one.pid, one.usedGpuMemory, one.gpuInstanceId) for one in listed] == [(100, 64 << 20, 7)]
        assert pynvml.nvmlDeviceGetComputeRunningProcesses_v3(second) == []
        assert [one.pid for one in pynvml.nvmlDeviceGetComputeRunningProcesses_v3(mig_gpu)] == [100]
        listed = pynvml.nvmlDeviceGetComputeRunningProcesses_v3(whole)
        assert [(one.pid, one.gpuInstanceId) for one in listed] == [(101, 0xFFFFFFFF)]
        assert pynvml.nvmlDeviceGetMemoryInfo(whole).used == 1000 << 20


def test_calls_are_counted(make_node: MakeNode, nvml: Binding) -> None:
    node = make_node("t4x4")
    with nvml(node):
        pynvml.nvmlDeviceGetCount()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        for _ in range(3):
            pynvml.nvmlDeviceGetName(handle)
        calls = node.calls()
        assert (calls["nvmlInitWithFlags"], calls["nvmlDeviceGetName"]) == (1, 3)
        node.reset_calls()
        assert node.calls() == {}


def test_older_names_of_a_call_are_calls_of_their_own(make_node: MakeNode, nvml: Binding) -> None:
    node = make_node("t4x4")
    with nvml(node):
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        node.set_return("nvmlDeviceGetPciInfo_v3", 999)
        legacy = (pynvml.c_uint * 9)()
        assert pynvml.nvmlLib.nvmlDeviceGetPciInfo_v2(handle, legacy) == 0
        assert legacy[7] == 0x1EB810DE
        with pytest.raises(pynvml.NVMLError_Unknown):
            pynvml.nvmlDeviceGetPciInfo(handle)


def test_a_shutdown_can_fail(make_node: MakeNode, nvml: Binding) -> None:
    node = make_node("t4x4")
    with nvml(node):
        node.set_return("nvmlShutdown", 999, times=1)
        with pytest.raises(pynvml.NVMLError_Unknown):
            pynvml.nvmlShutdown()
        assert pynvml.nvmlDeviceGetCount() == 4
