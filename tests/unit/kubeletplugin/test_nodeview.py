"""The view of a node: why a device that a claim names is not on offer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from driver.gpuselection import GpuSelection
from driver.inventory import GpuInstance, Inventory, PciAddress, Placement, UnreadableGpu
from driver.migoffer import MigPolicy
from driver.nodepolicy import NodePolicy, PolicyEntry
from driver.shares import ShareMode, Shares
from kubeletplugin.nodeview import NodeView, node_view
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


def view_of(node: Inventory, *entries: PolicyEntry, exclude: str = "", counters: bool = True) -> NodeView:
    policy = NodePolicy(GpuSelection.parse([exclude] if exclude else []), entries=entries)
    return node_view(node, {}, policy, counters=counters, shares=True)


@pytest.mark.parametrize(
    ("mig", "fields", "why"),
    [
        (MigPolicy.STATIC, {}, "--mig=static"),
        (MigPolicy.OFF, {}, "--mig=off"),
        (None, {"resetless_mig": False}, "MIG mode is off and turning it on needs a reset of the GPU"),
        (None, {"gpu_instances": None}, "could not be listed"),
    ],
)
def test_a_layout_of_which_nothing_can_be_made_is_told(
    mig: MigPolicy | None, fields: dict[str, Any], why: str
) -> None:
    (problem,) = view_of(
        inventory(gpu(**fields)), PolicyEntry(mig=mig, layout=(("1g.10gb", 7),))
    ).layout_problems
    assert "GPU 0000:65:00.0" in problem
    assert why in problem


def test_a_layout_that_is_possible_or_of_an_excluded_gpu_is_no_problem() -> None:
    layout = (("1g.10gb", 7),)
    assert view_of(inventory(gpu()), PolicyEntry(layout=layout)).layout_problems == ()
    assert view_of(inventory(gpu()), PolicyEntry(layout=layout), counters=False).layout_problems == ()
    assert view_of(inventory(gpu()), PolicyEntry(exclude=True, layout=(("9g", 1),))).layout_problems == ()
    (problem,) = view_of(inventory(gpu()), PolicyEntry(layout=(("9g", 1),))).layout_problems
    assert "'9g'" in problem


def test_a_name_that_selects_nothing_is_told_when_all_gpus_are_known() -> None:
    node = inventory(gpu())
    assert view_of(node, exclude="0").without_effect == ()
    assert view_of(node, exclude="99").without_effect == (
        "--exclude: '99' selects no GPU that this node has now",
    )
    assert view_of(replace(node, waiting_for_driver=1), exclude="99").without_effect == ()
    lost = replace(node, unreadable_gpus=(UnreadableGpu("index 99", "lost"),))
    assert view_of(lost, exclude="99").without_effect == ()


def test_memory_that_is_not_known_is_not_handed_out() -> None:
    memory = PolicyEntry(shares=Shares(ShareMode.MEMORY))
    view = view_of(inventory(gpu(0x17, memory_bytes=0, profiles=()), gpu(0x65, profiles=())), memory)
    assert [device.shares for device in view.offered] == [None, memory.shares]
    (told,) = view.without_effect
    assert "shares: memory of gpu-0000-17-00-0" in told
    assert "0 bytes" in told
    assert view_of(inventory(gpu(memory_bytes=0)), PolicyEntry(shares=Shares(ShareMode.PLACES, 2))).offered[
        -1
    ].shares == Shares(ShareMode.PLACES, 2)
