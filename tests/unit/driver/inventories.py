"""Inventories made by hand, for tests of what is computed from them."""

from __future__ import annotations

from typing import Any

from driver.inventory import (
    Engines,
    Gpu,
    GpuInstance,
    Inventory,
    MigDevice,
    MigProfile,
    NvLink,
    PciAddress,
    Placement,
)

GIB = 1024**3


def profile(
    number: int, text: str, slices: int, engines: Engines, starts: range, size: int, count: int, mib: int
) -> MigProfile:
    places = tuple(Placement(start, size) for start in starts)
    return MigProfile(number, text, slices, mib, count, engines, places)


H100_PROFILES = (
    profile(19, "1g.10gb", 1, Engines(16, 1, 1, 0, 1, 0), range(7), 1, 7, 9984),
    profile(14, "2g.20gb", 2, Engines(32, 2, 2, 0, 2, 0), range(0, 6, 2), 2, 3, 20096),
    profile(9, "3g.40gb", 3, Engines(60, 3, 3, 0, 3, 0), range(0, 8, 4), 4, 2, 40448),
    profile(5, "4g.40gb", 4, Engines(64, 4, 4, 0, 4, 0), range(1), 4, 1, 40448),
    profile(0, "7g.80gb", 7, Engines(132, 8, 7, 0, 7, 1), range(1), 8, 1, 81152),
    profile(20, "1g.10gb+me", 1, Engines(16, 1, 1, 0, 1, 1), range(7), 1, 1, 9984),
    profile(15, "1g.20gb", 1, Engines(26, 1, 1, 0, 1, 0), range(0, 8, 2), 2, 4, 20096),
)
"""The profiles of an H100 in NVML's order."""


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
        "profiles": H100_PROFILES,
        "resetless_mig": True,
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


def gpu_instance(profile_id: int, start: int, size: int, number: int = 1) -> GpuInstance:
    return GpuInstance(number, profile_id, Placement(start, size))


def inventory(*gpus: Gpu) -> Inventory:
    return Inventory("580.105.08", "13.0.0", tuple(sorted(gpus, key=lambda gpu: gpu.pci)))
