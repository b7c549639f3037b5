"""Inventories made by hand, for tests of what is computed from them."""

from __future__ import annotations

from typing import Any

from driver.inventory import Engines, Gpu, Inventory, MigDevice, NvLink, PciAddress, Placement

GIB = 1024**3


def gpu(bus: int = 0x65, **fields: Any) -> Gpu:
    """An H100 as discovery yields it, at ``0000:<bus>:00.0``."""
    known: dict[str, Any] = {
        "uuid": f"GPU-00000000-0000-0000-0000-0000000000{bus:02x}",
        "pci": PciAddress(0, bus, 0, 0),
        "index": 0,
        "minor": 0,
        "product_name": "NVIDIA H100 80GB HBM3",
        "brand": "Nvidia",
        "architecture": "Hopper",
        "compute_capability": "9.0.0",
        "memory_bytes": 80 * GIB,
        "engines": Engines(132, 8, 7, 0, 7, 1),
        "addressing_mode": "HMM",
        "pcie_root": "pci0000:64",
        "numa_node": 1,
        "nvlink": NvLink("nvlink-GPU-0", 18, "4.0.0", 7),
        "mig_capable": True,
    }
    return Gpu(**(known | fields))


def mig(start: int = 0, size: int = 1, profile: str = "1g.10gb", **fields: Any) -> MigDevice:
    known: dict[str, Any] = {
        "uuid": f"MIG-00000000-0000-5000-8000-{start:012x}",
        "profile": profile,
        "gpu_instance_id": 7 + start,
        "compute_instance_id": 0,
        "placement": Placement(start, size),
        "memory_mib": 9984,
        "engines": Engines(16, 1, 1, 0, 1, 0),
    }
    return MigDevice(**(known | fields))


def inventory(*gpus: Gpu) -> Inventory:
    return Inventory("580.105.08", "13.0.0", tuple(sorted(gpus, key=lambda gpu: gpu.pci)))
