"""Every built-in machine, seen through the real NVML binding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pynvml
import pytest

from nvmlsim.machine import MachineError, built_in, load
from nvmlsim.models import models
from tests.unit.nvmlsim.conftest import Binding, Handle, MakeNode, address

# machine → GPUs, product name, active NVLinks of the first GPU, MIG
MACHINES = {
    "a100-pcie-pair": (2, "NVIDIA A100 80GB PCIe", 12, True),
    "a30x4": (4, "NVIDIA A30", 4, True),
    "dgx-a100-40": (8, "NVIDIA A100-SXM4-40GB", 12, True),
    "dgx-a100-80": (8, "NVIDIA A100-SXM4-80GB", 12, True),
    "gb200-tray": (4, "NVIDIA GB200", 18, True),
    "hgx-b200": (8, "NVIDIA B200", 18, True),
    "hgx-h100": (8, "NVIDIA H100 80GB HBM3", 18, True),
    "hgx-h200": (8, "NVIDIA H200", 18, True),
    "l40sx8": (8, "NVIDIA L40S", 0, False),
    "rtx-pro-6000x8": (8, "NVIDIA RTX PRO 6000 Blackwell Server Edition", 0, True),
    "t4x4": (4, "Tesla T4", 0, False),
    "two-islands": (8, "NVIDIA H200 NVL", 18, True),
}


def active_links(handle: Handle) -> list[str]:
    """Remote addresses of active links; links are counted until NVML refuses, as the driver does."""
    remotes = []
    for link in range(36):
        try:
            if pynvml.nvmlDeviceGetNvLinkState(handle, link):
                remotes.append(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId)
        except (pynvml.NVMLError_InvalidArgument, pynvml.NVMLError_NotSupported):
            break
    return remotes


def test_all_built_in_machines_are_tested() -> None:
    assert set(built_in()) == set(MACHINES)


@pytest.mark.parametrize("machine", MACHINES)
def test_machine_through_the_binding(machine: str, make_node: MakeNode, nvml: Binding) -> None:
    count, name, links, mig = MACHINES[machine]
    node = make_node(machine)
    with nvml(node):
        assert pynvml.nvmlSystemGetDriverVersion() == "580.95.05"
        assert pynvml.nvmlSystemGetCudaDriverVersion_v2() == 13000
        assert pynvml.nvmlDeviceGetCount() == count
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        for handle, gpu in zip(handles, node.gpus(), strict=True):
            model = models()[gpu.model]
            assert pynvml.nvmlDeviceGetName(handle) == name
            assert pynvml.nvmlDeviceGetUUID(handle) == gpu.uuid
            assert pynvml.nvmlDeviceGetMinorNumber(handle) == gpu.minor
            assert pynvml.nvmlDeviceGetMemoryInfo(handle).total == model["memory_total_mib"] << 20
            assert pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).total > 0
            assert pynvml.nvmlDeviceGetArchitecture(handle) == model["nvml_architecture"]
            capability = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
            assert ".".join(map(str, capability)) == model["compute_capability"]
            pci = pynvml.nvmlDeviceGetPciInfo(handle)
            assert pci.busId.lower() == f"{gpu.pci_bus_id:0>16}"
            assert pci.pciDeviceId == int(model["pci"]["nvml_pciDeviceId"], 16)
            assert address(pynvml.nvmlDeviceGetHandleByPciBusId(pci.busId)) == address(handle)
            assert address(pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)) == address(handle)
        assert len(active_links(handles[0])) == links
        if mig:
            assert pynvml.nvmlDeviceGetMigMode(handles[0]) == [0, 0]
        else:
            with pytest.raises(pynvml.NVMLError_NotSupported):
                pynvml.nvmlDeviceGetMigMode(handles[0])


def test_bridged_gpus_name_each_other(make_node: MakeNode, nvml: Binding) -> None:
    with nvml(make_node("a100-pcie-pair")):
        first, second = (pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(2))
        assert set(active_links(first)) == {pynvml.nvmlDeviceGetPciInfo(second).busId}
        assert pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(first, 0) == 0
        assert pynvml.nvmlDeviceGetP2PStatus(first, second, 2) == 0


def test_two_islands_do_not_meet(make_node: MakeNode, nvml: Binding) -> None:
    node = make_node("two-islands")
    with nvml(node):
        islands = []
        for index in range(8):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            islands.append({pynvml.nvmlDeviceGetPciInfo(handle).busId, *active_links(handle)})
        assert islands[0] == islands[3]
        assert islands[4] == islands[7]
        assert len(islands[0]) == len(islands[4]) == 4
        assert not islands[0] & islands[4]


def test_switch_links_of_h100_are_split_as_on_the_board(make_node: MakeNode, nvml: Binding) -> None:
    with nvml(make_node("hgx-h100")):
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        remotes = active_links(handle)
        assert [remotes.count(remote) for remote in dict.fromkeys(remotes)] == [5, 4, 4, 5]
        assert {pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link) for link in range(18)} == {2}
        values = pynvml.nvmlDeviceGetFieldValues(handle, [91, (164, 3), (165, 3), 184, 9999])
        assert [value.value.uiVal for value in values[:4]] == [18, 26562, 1, 1]
        assert values[4].nvmlReturn == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_a_dead_link_is_inactive_for_everyone(make_node: MakeNode, nvml: Binding) -> None:
    node = make_node("hgx-h100")
    with nvml(node):
        handle = pynvml.nvmlDeviceGetHandleByIndex(2)
        node.set_link(2, 7, active=False)
        assert pynvml.nvmlDeviceGetNvLinkState(handle, 7) == 0
        assert len(active_links(handle)) == 17
        node.set_link(2, 7, active=True)
        assert len(active_links(handle)) == 18


def fabric(handle: Handle) -> Any:
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(handle, pynvml.byref(info))
    return info


def test_the_tray_is_one_clique_of_its_rack(make_node: MakeNode, nvml: Binding) -> None:
    with nvml(make_node("gb200-tray")):
        infos = [fabric(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in range(4)]
        assert {(bytes(info.clusterUuid).hex()[:8], info.cliqueId, info.state) for info in infos} == {
            ("6b0f8c0e", 32766, 3)
        }
        assert pynvml.nvmlDeviceGetNumaNodeId(pynvml.nvmlDeviceGetHandleByIndex(0)) >= 0


@pytest.mark.parametrize("machine", ["dgx-a100-40", "a100-pcie-pair", "l40sx8"])
def test_no_fabric_before_hopper_or_without_switches(
    machine: str, make_node: MakeNode, nvml: Binding
) -> None:
    with nvml(make_node(machine)), pytest.raises(pynvml.NVMLError_NotSupported):
        fabric(pynvml.nvmlDeviceGetHandleByIndex(0))


def test_topology_levels_of_dgx_a100(make_node: MakeNode, nvml: Binding) -> None:
    with nvml(make_node("dgx-a100-40")):
        first, same_switch, same_socket, other = (
            pynvml.nvmlDeviceGetHandleByIndex(index) for index in (0, 1, 2, 7)
        )
        assert pynvml.nvmlDeviceGetTopologyCommonAncestor(first, first) == 0
        assert pynvml.nvmlDeviceGetTopologyCommonAncestor(first, same_switch) == 20
        assert pynvml.nvmlDeviceGetTopologyCommonAncestor(first, same_socket) == 50
        assert pynvml.nvmlDeviceGetTopologyCommonAncestor(first, other) == 50
        near = pynvml.nvmlDeviceGetTopologyNearestGpus(first, 20)
        assert [address(handle) for handle in near] == [address(same_switch)]
        cpus = pynvml.nvmlDeviceGetCpuAffinity(first, 4)
        assert cpus[0] == ((1 << 64) - 1) & ~((1 << 48) - 1)
        assert [cpus[1], cpus[3]] == [0, 0]


def test_mixed_models_in_a_machine_file(tmp_path: Path, make_node: MakeNode, nvml: Binding) -> None:
    file = tmp_path / "mixed.yaml"
    file.write_text(
        'driver_version: "570.1.2"\n'
        "gpus: [{model: h100-pcie-80gb, count: 2}, {model: t4, pci: '0000:f0:00.0', minor: 7}]\n"
        "mig: {1: [3g.40gb]}\n"
    )
    with nvml(make_node(file)):
        assert pynvml.nvmlSystemGetDriverVersion() == "570.1.2"
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(3)]
        assert pynvml.nvmlDeviceGetMigMode(handles[1]) == [1, 1]
        assert pynvml.nvmlDeviceGetName(handles[2]) == "Tesla T4"
        assert pynvml.nvmlDeviceGetMinorNumber(handles[2]) == 7
        assert len(active_links(handles[0])) == 12


def test_uuids_are_the_same_in_every_run() -> None:
    assert [gpu.uuid for gpu in load("hgx-h100").gpus] == [gpu.uuid for gpu in load("hgx-h100").gpus]
    assert len({gpu.uuid for name in built_in() for gpu in load(name).gpus}) == 78


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("gpus: [{model: h100}]", "unknown model 'h100'"),
        ("gpus: [{model: t4, count: 33}]", "less than or equal to 32"),
        ("gpus: [{model: t4, colour: red}]", "colour"),
        ("gpus: [{model: t4, pci: 17}]", "pci"),
        ("- 1", "holds no mapping"),
        ("gpus: [", "machine bad"),
    ],
)
def test_a_wrong_machine_file_is_refused_with_its_reason(text: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(MachineError, match=told):
        load(file)


def test_an_unknown_machine_is_refused_with_the_known_ones() -> None:
    with pytest.raises(MachineError, match=r"unknown machine 'dgx-z'.*hgx-h100"):
        load("dgx-z")
