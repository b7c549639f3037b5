"""Reports of GPUs: how far each is with what is wanted of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from driver.claim import ClaimReference
from driver.devices import Footprint
from driver.inventory import Gpu, GpuInstance, Inventory, Placement
from driver.migoffer import MigPolicy
from driver.nodepartition import GpuReport, GpuState
from driver.nodepolicy import NodePolicy, PolicyEntry, RequestedPolicy
from driver.shares import ShareMode, Shares
from kubeletplugin.gpureports import gpu_reports, held_partitions, with_kept
from kubeletplugin.nodeview import node_view
from kubeletplugin.store import ClaimRecord, ClaimState, HeldDevice
from tests.unit.driver.inventories import gpu

SOURCE = "PartitionRequest mine"
HALVES = (("3g.40gb", 2),)
CLAIM = ClaimReference("team", "train", "uid-1")
AMPERE = gpu(resetless_mig=False)


def report(
    wanted: RequestedPolicy | None,
    one: Gpu | None = None,
    *,
    node: NodePolicy | None = None,
    claims: tuple[ClaimReference, ...] = (),
    closed: bool = False,
    wrong: str = "",
    counters: bool = True,
    shares: bool = True,
) -> GpuReport:
    one = one or gpu()
    policy = replace(node or NodePolicy(), requested={} if wanted is None else {one.uuid: wanted})
    view = node_view(Inventory(gpus=(one,)), {}, policy, counters=counters, shares=shares)
    in_the_way = {one.pci: claims} if claims else {}
    (found,) = gpu_reports(
        view, policy, {one.uuid: wrong} if wrong else {}, in_the_way, {one.pci} if closed else ()
    )
    return found


def test_of_a_gpu_of_which_nothing_is_wanted_its_profiles_are_told() -> None:
    found = report(None)
    assert (found.state, found.source, found.layout) == (GpuState.DEFAULT, "", ())
    assert [(one.name, one.size, one.placements) for one in found.profiles][:3] == [
        ("1g.10gb", 1, tuple(range(7))),
        ("2g.20gb", 2, (0, 2, 4)),
        ("3g.40gb", 4, (0, 4)),
    ]


def test_a_layout_that_is_offered_is_applied() -> None:
    found = report(RequestedPolicy(SOURCE, layout=HALVES))
    assert (found.state, found.source, found.layout) == (GpuState.APPLIED, SOURCE, HALVES)
    assert set(found.placed) == {("3g.40gb", 0), ("3g.40gb", 4)}


def test_claims_in_the_way_are_named_and_whether_the_gpu_is_closed() -> None:
    found = report(RequestedPolicy(SOURCE, layout=HALVES, evict=True), claims=(CLAIM,), closed=True)
    assert (found.state, found.claims, found.closed) == (GpuState.WAITING, (CLAIM,), True)
    assert "team/train" in found.message
    many = tuple(ClaimReference("team", f"c{number}", f"uid-{number}") for number in range(300))
    assert len(report(RequestedPolicy(SOURCE), claims=many).claims) == 64


IN_MODE: dict[str, Any] = {"mig_enabled": True, "mig_pending": True}


@pytest.mark.parametrize(
    ("wanted", "given", "words"),
    [
        ({"layout": (("3g.40gb", 3),)}, {}, "does not fit on it together"),
        ({"layout": (("1g.5gb", 1),)}, {}, "its profiles are: 1g.10gb"),
        ({"layout": HALVES}, {"one": AMPERE}, "turning it on needs a reset of the GPU"),
        ({"mig": MigPolicy.DYNAMIC}, {"one": AMPERE}, "turning it on needs a reset of the GPU"),
        (
            {"mig": MigPolicy.OFF},
            {"one": gpu(**IN_MODE)},
            "nothing of the GPU can be offered: MIG mode is on",
        ),
        ({"mig": MigPolicy.STATIC}, {"one": gpu(**IN_MODE)}, "it has no instance"),
        (
            {"layout": HALVES},
            {"one": gpu(**IN_MODE, gpu_instances=(GpuInstance(3, 19, Placement(1, 1)),))},
            "GPU instance 3 at 1 lies in the place of a wanted partition and was not made by this driver",
        ),
        ({"layout": HALVES}, {"node": NodePolicy(entries=(PolicyEntry(exclude=True),))}, "policy excludes"),
        ({"layout": HALVES}, {"counters": False}, "the API server stores no counters"),
        ({"shares": Shares(ShareMode.PLACES, 4)}, {"shares": False}, "shares 4 cannot be offered"),
        ({"layout": HALVES}, {"wrong": "field spec.gpus.0.layout: no"}, "field spec.gpus.0.layout: no"),
    ],
)
def test_what_cannot_be_is_failed_and_says_why(
    wanted: dict[str, Any], given: dict[str, Any], words: str
) -> None:
    found = report(RequestedPolicy(SOURCE, **wanted), **given)
    assert found.state is GpuState.FAILED
    assert words in found.message


def held(profile_id: int | None, placement: Placement | None, **fields: Any) -> HeldDevice:
    one = gpu()
    footprint = Footprint(one.pci, placement)
    return HeldDevice(
        ("gpu",), "n1", "name", "cdi", "", one.uuid, footprint, {}, profile_id=profile_id, **fields
    )


def test_partitions_that_claims_hold_are_found() -> None:
    devices = (
        held(9, Placement(4, 4)),
        held(19, Placement(0, 1)),
        held(9, Placement(0, 4), admin_access=True),
        held(None, None),
    )
    record = ClaimRecord(CLAIM, ClaimState.PREPARED, "boot", 0.0, devices)
    assert held_partitions([record, record], Inventory(gpus=(gpu(),))) == {
        gpu().uuid: (("3g.40gb", 4), ("1g.10gb", 0))
    }


WISH = RequestedPolicy(SOURCE, layout=HALVES)
KEPT = (("3g.40gb", 4),)
REPORT = GpuReport("u", "0000:65:00.0", 0, "", layout=HALVES, placed=(("3g.40gb", 0), ("3g.40gb", 4)))


@pytest.mark.parametrize(
    ("known", "reports", "expected"),
    [
        ({}, (), (("1g.10gb", 6),)),
        ({"u": replace(WISH, kept=KEPT)}, (), KEPT),
        ({"u": replace(WISH, kept=KEPT)}, (REPORT,), KEPT),
        ({"u": replace(WISH, layout=(("1g.10gb", 7),), kept=KEPT)}, (REPORT,), (("1g.10gb", 6),)),
        ({}, (REPORT,), REPORT.placed),
        ({}, (replace(REPORT, layout=(("1g.10gb", 7),)),), (("1g.10gb", 6),)),
    ],
    ids=["new", "known", "known goes before reported", "another layout", "reported", "another was reported"],
)
def test_a_layout_keeps_its_places(
    known: dict[str, RequestedPolicy], reports: tuple[GpuReport, ...], expected: Any
) -> None:
    found = with_kept({"u": WISH}, known, reports, {"u": (("1g.10gb", 6),)})
    assert found == {"u": replace(WISH, kept=expected)}
    assert with_kept({"u": replace(WISH, layout=())}, known, reports, {"u": KEPT})["u"].kept == ()
