"""Discovery of whole machines through the real binding on the simulated library."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, replace

import pytest

from driver.devices import offered_devices
from driver.discovery import GpuReading, NodeReading, assemble, discover
from driver.inventory import Gpu, PciAddress, UnreadableGpu
from driver.migoffer import MigPolicy
from driver.nodepolicy import NodePolicy
from driver.resourceslices import published, slice_specs
from tests.unit.driver.conftest import OpenNode
from tests.unit.driver.slicevalidator import violations


@pytest.mark.parametrize(
    ("machine", "count", "name", "brand", "architecture", "capability", "memory_mib", "engines"),
    [
        ("dgx-a100-40", 8, "NVIDIA A100-SXM4-40GB", "Nvidia", "Ampere", "8.0.0", 40960, (108, 7, 5, 0, 1, 1)),
        ("hgx-h100", 8, "NVIDIA H100 80GB HBM3", "Nvidia", "Hopper", "9.0.0", 81559, (132, 8, 7, 0, 7, 1)),
        ("hgx-h200", 8, "NVIDIA H200", "Nvidia", "Hopper", "9.0.0", 143771, (132, 8, 7, 0, 7, 1)),
        ("a30x4", 4, "NVIDIA A30", "Nvidia", "Ampere", "8.0.0", 24576, (56, 4, 4, 0, 1, 1)),
        (
            "rtx-pro-6000x8",
            8,
            "NVIDIA RTX PRO 6000 Blackwell Server Edition",
            "NvidiaRTX",
            "Blackwell",
            "12.0.0",
            97887,
            (188, 4, 4, 4, 4, 1),
        ),
        ("t4x4", 4, "Tesla T4", "Tesla", "Turing", "7.5.0", 15360, (40, 0, 0, 0, 0, 0)),
        ("l40sx8", 8, "NVIDIA L40S", "Nvidia", "Ada Lovelace", "8.9.0", None, (142, 0, 0, 0, 0, 0)),
    ],
)
def test_what_nvml_tells_of_a_gpu(
    open_node: OpenNode,
    machine: str,
    count: int,
    name: str,
    brand: str,
    architecture: str,
    capability: str,
    memory_mib: int | None,
    engines: tuple[int, ...],
) -> None:
    node = open_node(machine)
    inventory = node.discover()
    simulated = {gpu.uuid: gpu for gpu in node.simulated.gpus()}
    assert [inventory.unreadable_gpus, inventory.unreadable_fields, inventory.waiting_for_driver] == [
        (),
        (),
        0,
    ]
    assert len(inventory.gpus) == count
    for gpu in inventory.gpus:
        assert str(gpu.pci) == simulated[gpu.uuid].pci_bus_id
        assert [gpu.minor, gpu.numa_node] == [simulated[gpu.uuid].minor, simulated[gpu.uuid].numa_node]
        assert [gpu.product_name, gpu.brand, gpu.architecture] == [name, brand, architecture]
        assert [gpu.compute_capability, astuple(gpu.engines)] == [capability, engines]
        assert memory_mib is None or gpu.memory_bytes // 1024**2 == memory_mib
        assert gpu.pcie_root is not None
        assert gpu.mig_capable is (machine not in ("t4x4", "l40sx8"))
        assert not gpu.is_vgpu


def test_versions_of_the_driver(open_node: OpenNode) -> None:
    inventory = open_node("t4x4", driver_version="570.148.08", cuda_version="12.8").discover()
    assert [inventory.driver_version, inventory.cuda_driver_version] == ["570.148.08", "12.8.0"]


@pytest.mark.parametrize(
    ("machine", "islands", "links", "version", "peers"),
    [
        ("hgx-h100", [8], 18, "4.0.0", 7),
        ("dgx-a100-80", [8], 12, "3.0.0", 7),
        ("hgx-b200", [8], 18, "5.0.0", 7),
        ("gb200-tray", [4], 18, "5.0.0", 3),
        ("a100-pcie-pair", [2], 12, "3.0.0", 1),
        ("a30x4", [2, 2], 4, "3.0.0", 1),
        ("two-islands", [4, 4], 18, "4.0.0", 3),
        ("t4x4", [1, 1, 1, 1], 0, "0.0.0", 0),
    ],
)
def test_b023_b024_nvlink_domains(
    open_node: OpenNode, machine: str, islands: list[int], links: int, version: str, peers: int
) -> None:
    gpus = open_node(machine).discover().gpus
    found = [gpu.nvlink for gpu in gpus if gpu.nvlink is not None]
    domains = [nvlink.domain for nvlink in found]
    assert sorted(domains.count(domain) for domain in set(domains)) == islands
    assert {(nvlink.links, nvlink.version, nvlink.peers) for nvlink in found} == {(links, version, peers)}
    if peers == 0:
        assert domains == [gpu.uuid for gpu in gpus]


def test_the_clique_of_a_rack(open_node: OpenNode) -> None:
    gpus = open_node("gb200-tray").discover().gpus
    assert {gpu.fabric_clique for gpu in gpus} == {"6b0f8c0e-7d5d-4b6f-9a39-2f6f0f3c1d10.32766"}
    assert [gpu.addressing_mode for gpu in gpus] == ["ATS"] * 4
    assert str(gpus[0].pci) == "0008:01:00.0"


def test_a_board_with_its_own_switches_has_no_clique(open_node: OpenNode) -> None:
    assert {gpu.fabric_clique for gpu in open_node("hgx-h100").discover().gpus} == {None}


def test_each_query_is_made_once_for_a_gpu(open_node: OpenNode) -> None:
    node = open_node("hgx-h100", mig={0: ["1g.10gb"] * 7})
    before = node.simulated.calls()
    node.discover()
    made = {symbol: count - before.get(symbol, 0) for symbol, count in node.simulated.calls().items()}
    assert made["nvmlDeviceGetCount_v2"] == made["nvmlSystemGetDriverVersion"] == 1
    for symbol in ("Name", "Brand", "Architecture", "MemoryInfo", "PciInfo_v3", "NumGpuCores"):
        assert made[f"nvmlDeviceGet{symbol}"] == 8
    # What may change meanwhile is asked before and after what depends on it.
    assert (made["nvmlDeviceGetMigMode"], made["nvmlGpuInstanceGetInfo"]) == (2 * 8, 2 * 7)
    assert made["nvmlDeviceGetUUID"] == 8 + 7
    assert made["nvmlDeviceGetAttributes_v2"] == 7
    assert made.get("nvmlDeviceGetGpuInstanceById", 0) == 0
    profiles = 7
    assert made["nvmlDeviceGetGpuInstances"] == 2 * profiles
    assert made["nvmlDeviceGetGpuInstancePossiblePlacements_v2"] == 8 * profiles
    assert made["nvmlDeviceGetGpuInstanceProfileInfoByIdV"] == 1


def test_b076_discovery_changes_nothing(open_node: OpenNode) -> None:
    node = open_node("hgx-h100", mig={0: ["1g.10gb"], 3: ["1c.3g.40gb"]})
    node.discover()
    assert not [
        symbol
        for symbol in node.simulated.calls()
        if "Set" in symbol or "Create" in symbol or "Destroy" in symbol
    ]


def test_b013_nvml_is_initialised_once(open_node: OpenNode) -> None:
    node = open_node("t4x4")
    for _ in range(3):
        node.discover()
    assert node.simulated.calls()["nvmlInitWithFlags"] == 1


def test_gpus_can_be_read_by_an_executor(open_node: OpenNode) -> None:
    node = open_node("hgx-h100", mig={1: ["3g.40gb"]})
    with ThreadPoolExecutor(8) as executor:
        assert discover(node.nvml, node.roots, executor.map) == node.discover()


@pytest.mark.parametrize(
    "machine", ["hgx-h100", "hgx-b200", "gb200-tray", "two-islands", "t4x4", "l40sx8", "a100-pcie-pair"]
)
def test_b025_each_machine_makes_a_valid_pool(open_node: OpenNode, machine: str) -> None:
    inventory = open_node(machine).discover()
    devices = offered_devices(inventory, NodePolicy(mig=MigPolicy.STATIC), {})
    specs = slice_specs([published(device, inventory) for device in devices], "node-1", "node-1")
    assert len(devices) == len({device.name for device in devices}) == len(inventory.gpus)
    assert violations([spec | {"pool": spec["pool"] | {"generation": 1}} for spec in specs]) == []


def test_b016_names_and_domains_do_not_follow_minors_and_indexes(open_node: OpenNode) -> None:
    node = open_node("two-islands", mig={0: ["1g.18gb"]})
    before = node.discover()
    node.simulated.permute_minors([3, 2, 1, 0, 7, 6, 5, 4])
    node.simulated.permute_indexes([7, 6, 5, 4, 3, 2, 1, 0])
    after = node.discover()
    assert [gpu.minor for gpu in after.gpus] == [3, 2, 1, 0, 7, 6, 5, 4]
    assert [gpu.index for gpu in after.gpus] == [7, 6, 5, 4, 3, 2, 1, 0]
    assert [replace(gpu, minor=0, index=0) for gpu in after.gpus] == [
        replace(gpu, minor=0, index=0) for gpu in before.gpus
    ]
    assert [device.name for device in offered_devices(after, NodePolicy(mig=MigPolicy.STATIC), {})] == [
        device.name for device in offered_devices(before, NodePolicy(mig=MigPolicy.STATIC), {})
    ]


def test_b005_functions_that_nvml_does_not_list_wait_for_the_driver() -> None:
    functions = tuple(PciAddress(0, bus, 0, 0) for bus in range(8))
    node = NodeReading(0, "580.95.05", "13.0.0", functions, ())
    assert assemble(node, []).waiting_for_driver == 8
    lost = [UnreadableGpu("index 0", "nvmlDeviceGetHandleByIndex_v2: GPU_IS_LOST (15)")]
    some = [GpuReading(Gpu(f"GPU-{pci.bus}", pci, pci.bus), None, ()) for pci in functions[:5]]
    assert assemble(node, [*some, *lost]).waiting_for_driver == 2
    assert assemble(node, [*some, *lost]).unreadable_gpus == tuple(lost)
