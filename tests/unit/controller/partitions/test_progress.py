"""The status of a request: what it tells of nodes and GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from controller.partitions.progress import MOST_NODES, NodeProgress, refused, status
from controller.partitions.request import parse, source_of
from controller.partitions.resolution import NodeGpus, resolve
from driver.claim import ClaimReference
from driver.nodepartition import GpuReport, GpuState
from tests.unit.controller.partitions.boards import h100, t4

SOURCE = source_of("mine")
CLAIM = ClaimReference("team", "train", "uid-1")
NOW = "2026-05-06T07:08:09Z"


def progress(*gpus: GpuReport, name: str = "n1", is_current: bool = True, **spec: Any) -> NodeProgress:
    request = parse({"layout": {"3g.40gb": 2}, **spec}, SOURCE)
    resolution = resolve(NodeGpus(name, {}, gpus), [request], {})
    return NodeProgress(name, resolution.shares[SOURCE], resolution.wanted, gpus, is_current)


def told(*nodes: NodeProgress, before: Any = None) -> Any:
    return status(SOURCE, 3, nodes, before, NOW)


def conditions(found: Any) -> dict[str, tuple[str, str]]:
    return {one["type"]: (one["status"], one["reason"]) for one in found["conditions"]}


def mine(number: int, state: GpuState, **fields: Any) -> GpuReport:
    return h100(number, source=SOURCE, state=state, **fields)


def test_all_is_as_wanted() -> None:
    found = told(progress(mine(0, GpuState.APPLIED, layout=(("3g.40gb", 2),))))
    assert found["summary"] == "1 of 1 GPUs on 1 nodes are as wanted"
    assert conditions(found) == {
        "Accepted": ("True", "Resolved"),
        "Progressing": ("False", "Nothing"),
        "Applied": ("True", "AsWanted"),
    }
    assert found["nodes"] == [
        {
            "name": "n1",
            "gpus": [
                {
                    "uuid": "GPU-0",
                    "pciBusID": "0000:10:00.0",
                    "state": "Applied",
                    "wanted": {"layout": {"3g.40gb": 2}},
                    "layout": {"3g.40gb": 2},
                }
            ],
        }
    ]


def test_claims_and_pods_in_the_way_are_named() -> None:
    node = progress(mine(0, GpuState.WAITING, claims=(CLAIM,)), mine(1, GpuState.APPLIED))
    found = told(replace(node, pods={"uid-1": ("team/train-0 (a PodDisruptionBudget holds it)",)}))
    assert found["summary"] == (
        "1 of 2 GPUs on 1 nodes are as wanted; 1 wait (claims are in the way: team/train)"
    )
    assert found["nodes"][0]["gpus"][0]["inTheWay"] == [
        {"claim": "team/train", "pods": ["team/train-0 (a PodDisruptionBudget holds it)"]}
    ]
    assert conditions(found)["Applied"] == ("False", "Busy")
    assert conditions(found)["Progressing"] == ("True", "Working")


def test_what_the_plugin_has_not_seen_is_pending_whatever_it_reports() -> None:
    stale = progress(mine(0, GpuState.APPLIED), is_current=False)
    other = progress(h100(0, source=source_of("other"), state=GpuState.APPLIED), name="n2")
    found = told(stale, other)
    assert [node["gpus"][0]["state"] for node in found["nodes"]] == ["Pending", "Pending"]
    assert conditions(found)["Applied"] == ("False", "Pending")


def test_nothing_selected_is_said() -> None:
    assert conditions(told())["Accepted"] == ("False", "NoNode")
    assert "spec.nodeSelector" in told()["summary"]
    none = progress(h100(0), gpus={"product": "B200"})
    assert conditions(told(none))["Accepted"] == ("False", "NoGpu")
    assert told(none)["summary"] == "no GPU of 1 nodes matches spec.gpus"
    missing = progress(h100(0), gpus={"indexes": [5]})
    assert "node n1: GPU 5 is not there" in told(missing)["summary"]


def test_a_layout_that_no_board_can_have_is_impossible() -> None:
    found = told(progress(t4(0)))
    assert conditions(found) == {
        "Accepted": ("False", "Impossible"),
        "Progressing": ("False", "Nothing"),
        "Applied": ("False", "Failed"),
    }
    assert "cannot be partitioned" in found["summary"]


def test_a_status_stays_small_and_shows_first_what_is_not_done() -> None:
    done = [progress(mine(0, GpuState.APPLIED), name=f"a{number:03}") for number in range(60)]
    late = progress(mine(0, GpuState.WAITING, claims=(CLAIM,)), name="z")
    found = told(*done, late)
    assert found["nodes"][0]["name"] == "z"
    assert (len(found["nodes"]), found["nodesLeftOut"]) == (MOST_NODES, 11)
    assert found["gpus"] == {"nodes": 61, "selected": 61, "applied": 60, "waiting": 1, "failed": 0}


def test_times_change_with_the_condition_only() -> None:
    before = refused(2, "wrong", None, "2026-01-01T00:00:00Z")
    assert {one["lastTransitionTime"] for one in before["conditions"]} == {"2026-01-01T00:00:00Z"}
    after = told(progress(mine(0, GpuState.APPLIED)), before=before)
    assert {one["type"]: one["lastTransitionTime"] for one in after["conditions"]} == {
        "Accepted": NOW,
        "Progressing": "2026-01-01T00:00:00Z",
        "Applied": NOW,
    }
    assert told(progress(mine(0, GpuState.APPLIED)), before=after) == after
