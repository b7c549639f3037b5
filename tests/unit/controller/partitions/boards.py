"""What plugins report of GPUs, for tests of what is resolved from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from driver.inventory import Inventory
from driver.nodepartition import GpuReport, ProfileReport
from driver.nodepolicy import NodePolicy
from kubeletplugin.gpureports import gpu_reports
from kubeletplugin.nodeview import node_view
from tests.unit.driver.inventories import gpu

_VIEW = node_view(Inventory(gpus=(gpu(),)), {}, NodePolicy(), counters=True, shares=True)
(_H100,) = gpu_reports(_VIEW, NodePolicy(), {}, {}, ())


def h100(number: int = 0, **fields: Any) -> GpuReport:
    """An H100 of which nobody wants anything, at ``0000:<10 + number>:00.0``."""
    return replace(
        _H100,
        uuid=f"GPU-{number}",
        pci_bus_id=f"0000:{16 + number:02x}:00.0",
        index=number,
        **fields,
    )


def t4(number: int = 0) -> GpuReport:
    return replace(h100(number), product="Tesla T4", profiles=())


def a30(number: int = 0) -> GpuReport:
    profiles = (
        ProfileReport("1g.6gb", 1, 1, 4, (0, 1, 2, 3)),
        ProfileReport("2g.12gb", 2, 2, 2, (0, 2)),
        ProfileReport("4g.24gb", 4, 4, 1, (0,)),
        ProfileReport("1g.6gb+me", 1, 1, 1, (0, 1, 2, 3)),
    )
    return replace(h100(number), product="NVIDIA A30", profiles=profiles)
