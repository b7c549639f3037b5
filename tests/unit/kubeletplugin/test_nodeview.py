"""The view of a node: why a device that a claim names is not on offer."""

from __future__ import annotations

import pytest

from driver.gpuselection import GpuSelection
from driver.inventory import GpuInstance, PciAddress, Placement
from driver.migoffer import MigPolicy
from driver.nodepolicy import NodePolicy
from kubeletplugin.nodeview import node_view
from tests.unit.driver.inventories import gpu, inventory

NAME = "gpu-0000-65-00-0"
TAKEN = (
    "is not offered: GPU instance 5 at 4 of GPU 0000:65:00.0 lies in its place and was not created "
    "by this driver"
)
UNUSABLE = "is excluded or not usable on this node"
EXCLUDED = GpuSelection.parse(["0000:65:00.0"])


@pytest.mark.parametrize(
    ("name", "policy", "exclusion", "own", "why"),
    [
        (f"{NAME}-mig-1g10gb-0", MigPolicy.DYNAMIC, GpuSelection(), (), ""),
        (f"{NAME}-mig-1g10gb-5", MigPolicy.DYNAMIC, GpuSelection(), (), TAKEN),
        (f"{NAME}-mig-3g40gb-4", MigPolicy.DYNAMIC, GpuSelection(), (), TAKEN),
        (f"{NAME}-mig-3g40gb-4", MigPolicy.DYNAMIC, GpuSelection(), (5,), ""),
        (f"{NAME}-mig-3g40gb-4", MigPolicy.STATIC, GpuSelection(), (), UNUSABLE),
        (f"{NAME}-mig-3g40gb-4", MigPolicy.DYNAMIC, EXCLUDED, (), UNUSABLE),
        (NAME, MigPolicy.DYNAMIC, GpuSelection(), (), UNUSABLE),
        ("gpu-0000-99-00-0", MigPolicy.DYNAMIC, GpuSelection(), (), UNUSABLE),
    ],
)
def test_b086_why_a_device_is_not_offered(
    name: str, policy: MigPolicy, exclusion: GpuSelection, own: tuple[int, ...], why: str
) -> None:
    one = gpu(mig_enabled=True, gpu_instances=(GpuInstance(5, 14, Placement(4, 2)),))
    ours = {PciAddress(0, 0x65, 0, 0): frozenset(own)}
    wanted = NodePolicy(exclusion, policy)
    view = node_view(inventory(one), ours, wanted, counters=True, shares=True)
    assert view.why_not_offered(name) == why
