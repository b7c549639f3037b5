"""The document of a NodePartition, and what its wishes make of a GPU's policy."""

from __future__ import annotations

from typing import Any

import pytest

from driver.claim import ClaimReference
from driver.gpuselection import GpuSelection
from driver.migoffer import MigPolicy
from driver.nodepartition import GpuReport, GpuState, ProfileReport, WantedGpu, reports_of, wanted_gpus
from driver.nodepolicy import GpuPolicy, NodePolicy, PolicyEntry, RequestedPolicy
from driver.shares import ShareMode, Shares
from tests.unit.driver.inventories import gpu

PLACES = Shares(ShareMode.PLACES, 4)
MEMORY = Shares(ShareMode.MEMORY)
SOURCE = "PartitionRequest mine"


@pytest.mark.parametrize(
    "policy",
    [
        RequestedPolicy(SOURCE),
        RequestedPolicy(SOURCE, MigPolicy.OFF, (), MEMORY),
        RequestedPolicy(SOURCE, MigPolicy.DYNAMIC, (("1g.10gb", 3), ("3g.40gb", 1)), PLACES, True),
        RequestedPolicy(SOURCE, MigPolicy.STATIC, evict=True),
        RequestedPolicy(SOURCE, None, (("7g.80gb", 1),), Shares(ShareMode.UNLIMITED)),
    ],
)
def test_what_is_written_is_what_is_read(policy: RequestedPolicy) -> None:
    assert wanted_gpus({"gpus": [WantedGpu("GPU-1", policy).document()]}) == ({"GPU-1": policy}, {})


@pytest.mark.parametrize(
    ("entry", "uuid", "words"),
    [
        ({"uuid": "GPU-1"}, "GPU-1", "field spec.gpus.1.source is required"),
        ({"uuid": "GPU-1", "source": "s", "shares": -3}, "GPU-1", "field spec.gpus.1.shares: -3 is wrong"),
        ({"uuid": "GPU-1", "source": "s", "mig": "on"}, "GPU-1", "field spec.gpus.1.mig: 'on'"),
        ({"uuid": "GPU-1", "source": "s", "layout": {"1g.10gb": 0}}, "GPU-1", "spec.gpus.1.layout.1g.10gb"),
        ({"uuid": "GPU-1", "source": "s", "extra": 1}, "GPU-1", "field spec.gpus.1.extra is unknown"),
        (
            {"uuid": "GPU-1", "source": "s", "layout": {"1g.10gb": 1}, "mig": "Off"},
            "GPU-1",
            "field spec.gpus.1.mig: 'Off' forbids",
        ),
        ({"uuid": 7, "source": "s"}, "", "field spec.gpus.1.uuid"),
        ("GPU-1", "", "field spec.gpus.1: it must be an object"),
        ({"uuid": "GPU-0", "source": "s"}, "GPU-0", "GPU-0 is there twice"),
    ],
)
def test_a_wrong_entry_is_told_and_leaves_the_others(entry: Any, uuid: str, words: str) -> None:
    good = {"uuid": "GPU-0", "source": SOURCE, "mig": "Static"}
    found, wrong = wanted_gpus({"gpus": [good, entry]})
    assert set(found) == {"GPU-0"} - {uuid}
    assert list(wrong) == [uuid]
    assert words in wrong[uuid]


def test_nothing_is_wanted_of_an_empty_spec() -> None:
    assert wanted_gpus({}) == wanted_gpus({"gpus": None}) == ({}, {})


def test_a_report_is_read_as_it_was_written() -> None:
    plain = GpuReport("GPU-1", "0000:65:00.0", 0, "H100")
    full = GpuReport(
        "GPU-2",
        "0000:66:00.0",
        1,
        "H100",
        (ProfileReport("1g.10gb", 1, 1, 7, (0, 1, 2)),),
        SOURCE,
        GpuState.WAITING,
        (("1g.10gb", 2),),
        (("1g.10gb", 0), ("1g.10gb", 6)),
        (ClaimReference("ns", "claim", "uid"),),
        True,
        "claims hold it",
    )
    status = {"gpus": [plain.document(), full.document()]}
    assert reports_of(status) == (plain, full)
    assert plain.document()["index"] == 0


@pytest.mark.parametrize(
    "status",
    [
        None,
        [],
        {"gpus": None},
        {"gpus": {}},
        {"gpus": [None, {}, {"uuid": "x"}, {"uuid": 1, "state": "Odd"}]},
    ],
)
def test_what_no_plugin_writes_is_no_report(status: Any) -> None:
    assert reports_of(status) == ()


LAYOUT = (("3g.40gb", 2),)


@pytest.mark.parametrize(
    ("requested", "policy"),
    [
        (None, GpuPolicy(False, MigPolicy.STATIC, MEMORY)),
        (RequestedPolicy(SOURCE), GpuPolicy(False, MigPolicy.STATIC, source=SOURCE)),
        (RequestedPolicy(SOURCE, MigPolicy.OFF), GpuPolicy(False, MigPolicy.OFF, source=SOURCE)),
        (
            RequestedPolicy(SOURCE, None, LAYOUT, PLACES),
            GpuPolicy(False, MigPolicy.DYNAMIC, None, (("3g.40gb", PLACES),), LAYOUT, source=SOURCE),
        ),
        (
            RequestedPolicy(SOURCE, None, (), PLACES),
            GpuPolicy(False, MigPolicy.STATIC, PLACES, source=SOURCE),
        ),
    ],
)
def test_a_request_holds_in_place_of_the_entry(requested: RequestedPolicy | None, policy: GpuPolicy) -> None:
    one = gpu()
    node = NodePolicy(
        mig=MigPolicy.DYNAMIC,
        entries=(PolicyEntry(None, mig=MigPolicy.STATIC, shares=MEMORY),),
        requested={} if requested is None else {one.uuid: requested},
    )
    assert node.of(one) == policy
    assert node.by_default(one) == GpuPolicy(False, MigPolicy.STATIC, MEMORY)


@pytest.mark.parametrize(
    "node",
    [
        NodePolicy(excluded=GpuSelection.parse(["0000:65:00.0"])),
        NodePolicy(entries=(PolicyEntry(GpuSelection.parse(["H100"]), exclude=True),)),
    ],
)
def test_what_the_node_excludes_no_request_brings_back(node: NodePolicy) -> None:
    one = gpu()
    asked = NodePolicy(
        node.excluded, node.mig, node.entries, {one.uuid: RequestedPolicy(SOURCE, layout=LAYOUT)}
    )
    assert asked.of(one).exclude
    assert asked.excludes(one)


def test_shares_of_requests_count_as_shares() -> None:
    assert NodePolicy(requested={"x": RequestedPolicy(SOURCE, shares=PLACES)}).shares_any
    assert not NodePolicy(requested={"x": RequestedPolicy(SOURCE, layout=LAYOUT)}).shares_any
    assert NodePolicy(requested={"x": RequestedPolicy(SOURCE, evict=True)}).evicts_any
