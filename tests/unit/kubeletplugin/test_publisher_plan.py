"""Which writes are planned, as tables of what is wanted and what is stored."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube.resources import Object
from kubeletplugin.slicewrites import (
    LAST_GENERATION,
    Accepted,
    Plan,
    Pool,
    SliceDeletion,
    SliceWrite,
    full_spec,
    generate_name,
    plan_writes,
)

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


def partitions(*devices: str) -> list[Object]:
    """A slice of counter sets, and one for each device: those named ``p`` are partitions, which consume."""
    slices = wanted(*devices)
    for spec in slices:
        for device in spec["devices"]:
            if device["name"].startswith("p"):
                device["consumesCounters"] = [{"counterSet": "s", "counters": {"slices": {"value": "1"}}}]
    return [{"sharedCounters": [{"name": "s", "counters": {"slices": {"value": "7"}}}]}, *slices]


def of_wanted(want: list[Object], generation: int = 1) -> list[Object]:
    """What a server that keeps counters has once all is published."""
    items = apply(plan_writes(want, [], POOL), [])
    for item in items:
        item["spec"]["pool"]["generation"] = generation
    return items


def without(items: list[Object], *indexes: int) -> list[Object]:
    return [item for item in items if int(item["metadata"]["name"].split("-")[0], 16) not in indexes]


def drop_counters(body: Object, old: Object | None) -> None:
    """As a server with DRAPartitionableDevices off does it: what a slice has in use it keeps."""

    def uses(spec: Object) -> bool:
        consumers = [device for device in spec.get("devices", ()) if "consumesCounters" in device]
        return bool(consumers or "sharedCounters" in spec)

    if old is None or not uses(old["spec"]):
        body["spec"].pop("sharedCounters", None)
        for device in body["spec"].get("devices", ()):
            device.pop("consumesCounters", None)


def apply(plan: Plan, items: list[Object], drops: Callable[[], bool] = lambda: False) -> list[Object]:
    """What the server has afterwards."""
    by_name = {item["metadata"]["name"]: item for item in items}
    for step in plan.steps:
        if isinstance(step, SliceDeletion):
            del by_name[step.name]
            continue
        item = copy.deepcopy(step.body)
        suffix = f"n{item['spec']['pool']['generation']:04}"
        name = step.name or item["metadata"].pop("generateName") + suffix
        if drops():
            drop_counters(item, by_name.get(name))
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


PARTITIONS = partitions("p1", "p2")


@pytest.mark.parametrize(
    ("want", "have", "expected"),
    [
        pytest.param(
            PARTITIONS,
            [],
            (1, [], [("create", 1), ("create", 2), ("create", 0)]),
            id="all are new: the counter sets complete the pool",
        ),
        pytest.param(
            PARTITIONS,
            without(of_wanted(PARTITIONS), 2),
            (2, [], [("create", 2), ("update", 0), ("update", 1)]),
            id="partitions were deleted: they never complete the generation that the others have",
        ),
        pytest.param(
            PARTITIONS,
            without(of_wanted(PARTITIONS), 0),
            (1, [], [("create", 0)]),
            id="the counter sets were deleted: nobody takes a partition without them",
        ),
        pytest.param(
            PARTITIONS,
            without(of_wanted(PARTITIONS), 1, 2),
            (2, [], [("create", 1), ("create", 2), ("update", 0)]),
            id="all partitions were deleted",
        ),
        pytest.param(
            partitions("p1", "p3"),
            of_wanted(PARTITIONS),
            (1, [], [("update", 2)]),
            id="a slice that has counters keeps them: in place",
        ),
        pytest.param(
            partitions("p1", "p2"),
            of_wanted(partitions("p1", "g2")),
            (2, [], [("update", 2), ("update", 0), ("update", 1)]),
            id="a slice that had no counters gets some: never in place",
        ),
        pytest.param(
            partitions("p1", "g3"),
            of_wanted(partitions("p1", "g2")),
            (1, [], [("update", 2)]),
            id="whole GPUs beside partitions: in place",
        ),
        pytest.param(
            PARTITIONS,
            without(of_wanted(PARTITIONS), 2) + without(of_wanted(PARTITIONS, 2), 0, 1),
            (2, [], [("update", 0), ("update", 1)]),
            id="killed after the partitions were stored with counters: the rest completes the pool",
        ),
        pytest.param(
            partitions("p1", "p2", "p3"),
            of_wanted(PARTITIONS),
            (2, [], [("create", 3), ("update", 0), ("update", 1), ("update", 2)]),
            id="more partitions: first those whose counters may be left out",
        ),
        pytest.param(
            PARTITIONS,
            of_wanted(wanted("g1")),
            (2, [], [("create", 1), ("create", 2), ("update", 0)]),
            id="partitions after whole GPUs",
        ),
    ],
)
def test_what_may_lose_its_counters_never_completes_a_pool(
    want: list[Object], have: list[Object], expected: tuple[int, list[str], list[tuple[str, int]]]
) -> None:
    assert shape(plan_writes(want, have, POOL)) == expected


def test_old_slices_go_after_the_first_write_of_a_new_generation() -> None:
    # With three slices of two the pool is not complete; it would be after the deletion, and wrong.
    have = [stored(0, "a"), stored(1, "x"), stored(1, "x", suffix="zzzzz")]
    plan = plan_writes(wanted("a", "b"), have, POOL)
    assert plan.generation == 2
    assert [type(step) for step in plan.steps] == [SliceWrite, SliceWrite, SliceDeletion]


def test_after_the_last_generation_a_pool_begins_again() -> None:
    last = LAST_GENERATION
    have = [stored(0, "a", last), stored(1, "b", last), stored(2, "c", last - 1)]
    assert shape(plan_writes(wanted("a", "c"), without(have, 2), POOL)) == (last, [], [("update", 1)])
    plan = plan_writes(wanted("c", "d"), have, POOL)
    assert [step.name for step in plan.steps] == [
        *[item["metadata"]["name"] for item in (have[2], have[0], have[1])],
        *[None, None],
    ]
    assert plan.generation == 1
    items = apply(plan, have)
    assert is_complete(items, ["c", "d"])
    half = apply(Plan(plan.generation, plan.steps[:2]), have)
    assert shape(plan_writes(wanted("c", "d"), half, POOL)) == (
        1,
        ["uid-1-abcde"],
        [("create", 0), ("create", 1)],
    )
    have = [stored(0, "a", last - 1), stored(1, "b", last - 1)]
    assert shape(plan_writes(wanted("c", "d"), have, POOL))[0] == last


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
        for step in range(min(cut, len(plan.steps)) + 1):
            state = apply(Plan(plan.generation, plan.steps[:step]), items)
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


def complete_devices(items: list[Object]) -> list[Object]:
    """The devices that a scheduler takes from; none while the newest generation is not complete."""
    newest = max((item["spec"]["pool"]["generation"] for item in items), default=0)
    current = [item["spec"] for item in items if item["spec"]["pool"]["generation"] == newest]
    if any(spec["pool"]["resourceSliceCount"] != len(current) for spec in current):
        return []
    return [device for spec in current for device in spec.get("devices", ())]


pools = st.one_of(
    st.lists(st.sampled_from(["p1", "p2", "p3", "g1", "g2"]), min_size=1, max_size=4).map(
        lambda devices: partitions(*devices)
    ),
    st.lists(st.sampled_from(["g1", "g2"]), min_size=1, max_size=3).map(lambda devices: wanted(*devices)),
)
events = st.one_of(
    st.tuples(st.just("want"), pools),
    st.tuples(st.just("delete"), st.integers(0, 4)),
    st.tuples(st.just("publish"), st.tuples(st.lists(st.booleans(), max_size=6), st.integers(0, 9))),
)


@given(first=pools, newest=st.sampled_from([1, LAST_GENERATION - 1]), story=st.lists(events, max_size=12))
def test_a_complete_pool_never_shows_partitions_whose_counters_were_left_out(
    first: list[Object], newest: int, story: list[tuple[str, Any]]
) -> None:
    """Whatever the server leaves out, whoever deletes slices, and wherever a publisher is killed."""
    want, items = first, of_wanted(first, newest)
    for event, value in story:
        if event == "want":
            want = value
        elif event == "delete":
            items = items[:value] + items[value + 1 :]
        else:
            gate_off, cut = value
            plan = plan_writes(want, items, POOL)
            for number, step in enumerate(plan.steps[:cut]):
                off = number < len(gate_off) and gate_off[number]
                items = apply(Plan(plan.generation, (step,)), items, lambda off=off: off)  # type: ignore[misc]
                assert_counted(items)
                if isinstance(step, SliceWrite) and not has_counters(items, step):
                    break
        assert_counted(items)
    for _ in range(2):
        items = apply(plan_writes(want, items, POOL), items)
        assert_counted(items)
    assert shape(plan_writes(want, items, POOL))[1:] == ([], [])


def has_counters(items: list[Object], write: SliceWrite) -> bool:
    """What a publisher checks before the next step."""
    (item,) = (
        item
        for item in items
        if item["metadata"]["name"].startswith(generate_name(write.index, POOL))
        and item["spec"]["pool"]["generation"] == write.body["spec"]["pool"]["generation"]
    )
    return bool(item["spec"] == write.body["spec"])


def assert_counted(items: list[Object]) -> None:
    for device in complete_devices(items):
        assert "consumesCounters" in device or not device["name"].startswith("p")
