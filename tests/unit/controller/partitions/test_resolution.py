"""The resolution of a node: who gets which GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.partitions import miglabel
from controller.partitions.request import PartitionRequest, parse, source_of
from controller.partitions.resolution import NodeGpus, Resolution, Share, ranked, resolve
from driver.migoffer import MigPolicy
from driver.nodepartition import GpuReport, GpuState
from tests.unit.controller.partitions.boards import h100, t4

HALVES = {"3g.40gb": 2}
SMALL = {"1g.10gb": 7}


def request(name: str, created: str = "1", **spec: Any) -> PartitionRequest:
    return parse({"layout": HALVES, **spec}, source_of(name), created)


def resolved(*requests: PartitionRequest, gpus: tuple[GpuReport, ...] | None = None) -> Resolution:
    node = NodeGpus("n1", {"pool": "a"}, gpus if gpus is not None else (h100(0), h100(1), h100(2)))
    return resolve(node, ranked(requests), {"mine": (("2g.20gb", 3),)})


def winners(resolution: Resolution) -> dict[str, str]:
    return {one.uuid: one.policy.source.removeprefix("PartitionRequest ") for one in resolution.wanted}


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ([request("a")], {0: "a", 1: "a", 2: "a"}),
        ([request("a", nodeSelector={"pool": "b"})], {}),
        ([request("a", gpus={"indexes": [1]})], {1: "a"}),
        ([request("a", gpus={"count": 2})], {0: "a", 1: "a"}),
        ([request("a", "2"), request("b", "1", gpus={"indexes": [1]})], {0: "a", 1: "b", 2: "a"}),
        ([request("a", "1"), request("b", "2", priority=1)], {0: "b", 1: "b", 2: "b"}),
        ([request("b", "1"), request("a", "1")], {0: "a", 1: "a", 2: "a"}),
        ([request("a", gpus={"count": 1}), request("b", gpus={"count": 1})], {0: "a", 1: "b"}),
        ([request("a", layout={"1g.5gb": 7}), request("b", "2")], {0: "b", 1: "b", 2: "b"}),
    ],
)
def test_each_gpu_has_at_most_one_winner(requests: list[PartitionRequest], expected: dict[int, str]) -> None:
    assert winners(resolved(*requests)) == {f"GPU-{number}": name for number, name in expected.items()}


def test_the_loser_is_told_who_won_and_what_cannot_be_is_told_by_gpu() -> None:
    shares = resolved(
        request("winner", gpus={"indexes": [0]}),
        request("loser", "2", gpus={"indexes": [0, 3]}),
        gpus=(h100(0), t4(3)),
    ).shares
    outranked, impossible = shares["PartitionRequest loser"].refusals
    assert (outranked.gpu.index, outranked.won) == (0, "PartitionRequest winner")
    assert (impossible.gpu.index, impossible.won) == (3, "")
    assert "its profiles are: none, it cannot be partitioned" in impossible.reason


def test_with_a_count_the_gpus_with_the_least_work_are_taken() -> None:
    source = source_of("a")
    gpus = (
        h100(0, source=source_of("z"), state=GpuState.WAITING),
        h100(1),
        h100(2, source=source, state=GpuState.APPLIED),
    )
    share = resolved(request("a", gpus={"count": 2}), gpus=gpus).shares[source]
    assert share.gpus == ("GPU-2", "GPU-1")
    assert (share.refusals, share.missing) == ((), ())


@pytest.mark.parametrize(
    ("spec", "missing"),
    [
        ({"count": 4}, ("4 GPUs are asked for, and 3 can be had",)),
        ({"uuids": ["GPU-2", "GPU-9"]}, ("GPU gpu-9 is not there",)),
        ({"pciBusIDs": ["0000:10:00.0", "0000:99:00.0"]}, ("GPU 0000:99:00.0 is not there",)),
        ({"indexes": [0, 7]}, ("GPU 7 is not there",)),
    ],
)
def test_what_the_node_has_not_is_told(spec: dict[str, Any], missing: tuple[str, ...]) -> None:
    assert resolved(request("a", gpus=spec)).shares[source_of("a")].missing == missing


def test_before_the_plugin_reported_nothing_is_wanted() -> None:
    node = NodeGpus("n1", {}, None)
    resolution = resolve(node, [request("a")], {})
    assert resolution == Resolution((), {source_of("a"): Share(is_reported=False)})


@pytest.mark.parametrize(
    ("layout", "mig", "partitions"),
    [
        ("whole", MigPolicy.OFF, {}),
        ("all-disabled", MigPolicy.OFF, {}),
        ("all-enabled", MigPolicy.DYNAMIC, {}),
        ("all-1g", None, SMALL),
        ("mine", None, {"2g.20gb": 3}),
    ],
)
def test_names_are_resolved_for_the_board(
    layout: str, mig: MigPolicy | None, partitions: dict[str, int]
) -> None:
    (wanted,) = resolved(request("a", layout=layout), gpus=(h100(0),)).wanted
    assert (wanted.policy.mig, dict(wanted.policy.layout)) == (mig, partitions)


def test_the_label_gives_way_to_every_request() -> None:
    label = miglabel.request_of({miglabel.LABEL: "all-1g"})
    assert label is not None
    lowest = request("a", "9", gpus={"indexes": [1]}, priority=-1_000_000_000)
    assert winners(resolved(label, lowest)) == {
        "GPU-0": miglabel.SOURCE,
        "GPU-1": "a",
        "GPU-2": miglabel.SOURCE,
    }
    assert miglabel.request_of({}) is None


@pytest.mark.parametrize(
    ("states", "is_current", "expected"),
    [
        ({}, True, "pending"),
        ({0: GpuState.APPLIED, 1: GpuState.APPLIED}, False, "pending"),
        ({0: GpuState.APPLIED, 1: GpuState.WAITING}, True, "pending"),
        ({0: GpuState.APPLIED, 1: GpuState.FAILED}, True, "failed"),
        ({0: GpuState.APPLIED, 1: GpuState.APPLIED}, True, "success"),
    ],
)
def test_the_label_is_answered(states: dict[int, GpuState], is_current: bool, expected: str) -> None:
    label = miglabel.request_of({miglabel.LABEL: "all-1g"})
    assert label is not None
    reports = tuple(h100(number, state=states.get(number, GpuState.DEFAULT)) for number in (0, 1))
    share = resolved(label, gpus=(*reports, t4(2))).shares[miglabel.SOURCE]
    assert miglabel.state(share, reports, is_current=is_current) == expected
    assert miglabel.state(None, reports, is_current=True) is None
    assert miglabel.state(Share(is_reported=False), (), is_current=True) == "pending"


def test_a_label_that_no_gpu_can_have_has_failed() -> None:
    label = miglabel.request_of({miglabel.LABEL: "all-9g"})
    assert label is not None
    for gpus in ((h100(0),), (t4(0),), ()):
        share = resolved(label, gpus=gpus).shares[miglabel.SOURCE]
        assert miglabel.state(share, gpus, is_current=True) == "failed"
    share = resolved(request("a"), label, gpus=(h100(0),)).shares[miglabel.SOURCE]
    assert miglabel.state(share, (h100(0),), is_current=True) == "success"
    assert replace(share, refusals=()).gpus == ()
