"""Which writes are planned, as tables of what is wanted and what is stored."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube.resources import Object
from kubeletplugin.slicewrites import Accepted, Plan, Pool, full_spec, generate_name, plan_writes

POOL = Pool("gpu.nvidia.com", "n1", "uid-n1")


def wanted(*devices: str) -> list[Object]:
    return [{"devices": [{"name": name, "capacity": {"memory": {"value": "80Gi"}}}]} for name in devices]


def stored(
    index: int, device: str, generation: int = 1, count: int = 2, suffix: str = "abcde", **changes: Any
) -> Object:
    return {
        "metadata": {
            "name": generate_name(index, POOL) + suffix,
            "uid": f"uid-{index}-{suffix}",
            "resourceVersion": str(100 + index),
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-n1", "controller": True}
            ],
        },
        "spec": {**full_spec(wanted(device)[0], POOL, generation, count), **changes},
    }


def apply(plan: Plan, items: list[Object]) -> list[Object]:
    """What the server has afterwards."""
    by_name = {item["metadata"]["name"]: item for item in items}
    for deletion in plan.deletions:
        del by_name[deletion.name]
    for number, write in enumerate(plan.writes):
        item = copy.deepcopy(write.body)
        name = write.name or f"{item['metadata'].pop('generateName')}n{number:04}"
        item["metadata"] |= {"name": name, "resourceVersion": "999", "uid": f"uid-{name}"}
        by_name[name] = item
    return list(by_name.values())


def shape(plan: Plan) -> tuple[int, list[str], list[tuple[str, int]]]:
    return (
        plan.generation,
        [deletion.uid for deletion in plan.deletions],
        [("create" if write.name is None else "update", write.index) for write in plan.writes],
    )


@pytest.mark.parametrize(
    ("want", "have", "expected"),
    [
        pytest.param(["a", "b"], [], (1, [], [("create", 0), ("create", 1)]), id="nothing is there"),
        pytest.param(["a", "b"], [stored(0, "a"), stored(1, "b")], (1, [], []), id="nothing to do"),
        pytest.param(
            ["a", "c"],
            [stored(0, "a"), stored(1, "b")],
            (1, [], [("update", 1)]),
            id="one changes: in place, same generation",
        ),
        pytest.param(
            ["c", "d"],
            [stored(0, "a"), stored(1, "b")],
            (2, [], [("update", 0), ("update", 1)]),
            id="two change: a new generation for all",
        ),
        pytest.param(
            ["a", "b", "c"],
            [stored(0, "a"), stored(1, "b")],
            (2, [], [("update", 0), ("update", 1), ("create", 2)]),
            id="one more: a new generation for all",
        ),
        pytest.param(
            ["a"],
            [stored(0, "a"), stored(1, "b")],
            (2, ["uid-1-abcde"], [("update", 0)]),
            id="one less: the count changes, so a new generation",
        ),
        pytest.param(
            [], [stored(0, "a"), stored(1, "b")], (1, ["uid-0-abcde", "uid-1-abcde"], []), id="none"
        ),
        pytest.param(
            ["a", "b"],
            [stored(1, "b", generation=4)],
            (4, [], [("create", 0)]),
            id="b033 one was deleted: only that one comes back",
        ),
        pytest.param(
            ["a", "c"],
            [stored(1, "b", generation=4)],
            (5, [], [("update", 1), ("create", 0)]),
            id="one was deleted and another changes",
        ),
        pytest.param(
            ["a", "b"],
            [stored(0, "a", 2), stored(1, "x", 1)],
            (2, [], [("update", 1)]),
            id="b032 killed after the first of two writes",
        ),
        pytest.param(
            ["c", "b"],
            [stored(0, "a", 2), stored(1, "x", 1)],
            (3, [], [("update", 0), ("update", 1)]),
            id="b032 killed between two writes, and other slices are wanted by now",
        ),
        pytest.param(
            ["a", "b"],
            [stored(0, "a"), stored(0, "a", suffix="zzzzz"), stored(1, "b")],
            (1, ["uid-0-zzzzz"], []),
            id="a duplicate goes",
        ),
        pytest.param(
            ["a", "b"],
            [stored(0, "x", 1), stored(0, "a", 2, suffix="zzzzz"), stored(1, "b", 2)],
            (2, ["uid-0-abcde"], []),
            id="of duplicates the newest generation stays",
        ),
        pytest.param(
            ["a", "b"],
            [stored(0, "a", count=3), stored(1, "b", count=3)],
            (2, [], [("update", 0), ("update", 1)]),
            id="a wrong count is never corrected in place",
        ),
        pytest.param(
            ["a", "b"],
            [stored(0, "a"), stored(1, "b", nodeName="n2")],
            (1, [], [("create", 1)]),
            id="another node's slice is left alone",
        ),
        pytest.param(
            ["a", "b"],
            [stored(0, "a"), stored(1, "b", driver="other.example.com")],
            (1, [], [("create", 1)]),
            id="another driver's slice is left alone",
        ),
        pytest.param(
            ["a", "b"],
            [
                stored(0, "a"),
                stored(1, "b"),
                stored(2, "c", pool={"name": "old", "generation": 9, "resourceSliceCount": 1}),
            ],
            (1, ["uid-2-abcde"], []),
            id="a pool that is no longer wanted goes",
        ),
        pytest.param(
            ["a", "b"], [stored(0, "a", 0), stored(1, "b", 0)], (0, [], []), id="generation 0 is one as well"
        ),
    ],
)
def test_plan(
    want: list[str], have: list[Object], expected: tuple[int, list[str], list[tuple[str, int]]]
) -> None:
    assert shape(plan_writes(wanted(*want), have, POOL)) == expected


def test_a_name_without_an_index_is_replaced() -> None:
    odd = stored(0, "a", count=1)
    odd["metadata"]["name"] = "n1-gpu.nvidia.com-abcde"
    assert shape(plan_writes(wanted("a"), [odd], POOL)) == (1, ["uid-0-abcde"], [("create", 0)])


def test_created_slice_names_pool_owner_and_place() -> None:
    (first, second) = plan_writes(wanted("a", "b"), [], POOL).writes
    assert first.body == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {
            "generateName": "00000-gpu.nvidia.com-n1-",
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-n1", "controller": True}
            ],
        },
        "spec": {
            "driver": "gpu.nvidia.com",
            "nodeName": "n1",
            "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 2},
            "devices": wanted("a")[0]["devices"],
        },
    }
    assert second.body["metadata"]["generateName"] == "00001-gpu.nvidia.com-n1-"


def test_names_at_the_length_limit_stay_valid_and_are_found_again() -> None:
    node = "x" * 34 + "." + "y" * 200
    pool = Pool("gpu.nvidia.com", node, "uid")
    assert len(generate_name(0, pool)) <= 58
    assert not generate_name(0, pool).endswith((".-", "--"))
    (write,) = plan_writes(wanted("a"), [], pool).writes
    item = copy.deepcopy(write.body)
    item["metadata"] |= {"name": generate_name(0, pool) + "abcde", "uid": "u", "resourceVersion": "1"}
    assert shape(plan_writes(wanted("a"), [item], pool)) == (1, [], [])


def test_quantities_in_another_spelling_are_no_change() -> None:
    have = stored(0, "a", count=1)
    have["spec"]["devices"][0]["capacity"]["memory"]["value"] = "81920Mi"
    assert shape(plan_writes(wanted("a"), [have], POOL)) == (1, [], [])


def test_an_update_keeps_foreign_metadata_and_guards_the_version() -> None:
    have = stored(0, "a", count=1)
    have["metadata"] |= {"labels": {"team": "x"}, "managedFields": [{"manager": "m"}]}
    (write,) = plan_writes(wanted("b"), [have], POOL).writes
    assert write.body["metadata"]["resourceVersion"] == "100"
    assert write.body["metadata"]["labels"] == {"team": "x"}
    assert "managedFields" not in write.body["metadata"]


def test_slices_of_a_node_that_was_created_anew_get_its_uid_without_a_new_generation() -> None:
    anew = Pool(POOL.driver, POOL.node_name, "uid-anew")
    plan = plan_writes(wanted("a", "b"), [stored(0, "a", 3), stored(1, "b", 3)], anew)
    assert shape(plan) == (3, [], [("update", 0), ("update", 1)])
    assert {write.body["metadata"]["ownerReferences"][0]["uid"] for write in plan.writes} == {"uid-anew"}


def test_b031_what_the_server_made_of_a_slice_counts_as_what_was_wanted() -> None:
    want = wanted("a")
    want[0]["devices"][0]["taints"] = [{"key": "k", "effect": "NoSchedule"}]
    have = stored(0, "a", count=1)
    accepted = {0: Accepted(want[0], have["spec"])}
    assert shape(plan_writes(want, [have], POOL)) == (1, [], [("update", 0)])
    assert shape(plan_writes(want, [have], POOL, accepted)) == (1, [], [])
    edited = stored(0, "edited", count=1)
    assert shape(plan_writes(want, [edited], POOL, accepted)) == (1, [], [("update", 0)])
    want = copy.deepcopy(want)
    want[0]["devices"][0]["taints"][0]["key"] = "other"
    assert shape(plan_writes(want, [have], POOL, accepted)) == (1, [], [("update", 0)])


def test_the_time_of_a_taint_that_stays_is_kept() -> None:
    taint = {"key": "k", "value": "v", "effect": "NoExecute"}
    have = stored(0, "a", count=1)
    have["spec"]["devices"][0]["taints"] = [{**taint, "timeAdded": "2026-01-01T00:00:00Z"}]
    want = wanted("a")
    want[0]["devices"][0]["taints"] = [taint]
    assert shape(plan_writes(want, [have], POOL)) == (1, [], [])
    want[0]["devices"][0]["taints"] = [taint, {"key": "other", "effect": "NoSchedule"}]
    (write,) = plan_writes(want, [have], POOL).writes
    assert write.body["spec"]["devices"][0]["taints"] == [
        {**taint, "timeAdded": "2026-01-01T00:00:00Z"},
        {"key": "other", "effect": "NoSchedule"},
    ]
    assert "timeAdded" not in taint


names = st.lists(st.sampled_from("abcd"), max_size=4)


def is_complete(items: list[Object], want: list[str]) -> bool:
    newest = max((item["spec"]["pool"]["generation"] for item in items), default=0)
    current = [item for item in items if item["spec"]["pool"]["generation"] == newest]
    counts = {item["spec"]["pool"]["resourceSliceCount"] for item in current}
    devices = [
        item["spec"]["devices"][0]["name"] for item in sorted(current, key=lambda i: i["metadata"]["name"])
    ]
    return counts == {len(want)} and len(current) == len(items) == len(want) and devices == want


@given(before=names, after=names.filter(bool), cuts=st.lists(st.integers(0, 8), max_size=3))
def test_b032_killed_between_any_writes_the_pool_becomes_complete_and_is_never_a_mixture(
    before: list[str], after: list[str], cuts: list[int]
) -> None:
    items = apply(plan_writes(wanted(*before), [], POOL), [])
    for cut in cuts:
        plan = plan_writes(wanted(*after), items, POOL)
        steps = len(plan.deletions) + len(plan.writes)
        for step in range(min(cut, steps) + 1):
            part = Plan(
                plan.generation,
                plan.deletions[:step],
                plan.writes[: max(0, step - len(plan.deletions))],
            )
            state = apply(part, items)
            newest = max((item["spec"]["pool"]["generation"] for item in state), default=0)
            current = [item for item in state if item["spec"]["pool"]["generation"] == newest]
            counts = {item["spec"]["pool"]["resourceSliceCount"] for item in current}
            assert len(counts) <= 1
            if current and len(current) in counts:
                devices = [
                    item["spec"]["devices"][0]["name"]
                    for item in sorted(current, key=lambda item: item["metadata"]["name"])
                ]
                assert devices in (before, after)
        items = state
    items = apply(plan_writes(wanted(*after), items, POOL), items)
    assert is_complete(items, after)
    assert shape(plan_writes(wanted(*after), items, POOL))[1:] == ([], [])
