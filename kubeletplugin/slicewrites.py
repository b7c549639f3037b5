"""Which writes turn the ResourceSlices that the API server has into those that a node wants.

All functions are pure. The rules are those that the scheduler relies on (KEP 4381, and the ``resourceslice``
controller of ``k8s.io/dynamic-resource-allocation``): a pool counts as complete when the slices of its newest
generation number exactly ``resourceSliceCount``. So a change of several slices goes under a new generation,
which is incomplete, and therefore not used, until the last of them is written.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kube.resources import Object
from kubeletplugin.slicecomparison import comparable

# The server cuts the base of a generated name to 58 characters; cut here, it never ends in "-.".
_GENERATED_BASE_LENGTH = 58
_INDEX = re.compile(r"([0-9a-f]{5,})-")

LAST_GENERATION = 2**63 - 1
"""The API has the generation as int64. After this one a pool is deleted and begins again."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The pool of one driver on one node. Its name is the node's; its slices go when the Node goes."""

    driver: str
    node_name: str
    node_uid: str


@dataclass(frozen=True, slots=True)
class Accepted:
    """What the server made of a slice: the spec that was wanted, and the one that was stored instead."""

    wanted: Object
    stored: Object


@dataclass(frozen=True, slots=True)
class SliceDeletion:
    name: str
    uid: str
    resource_version: str


@dataclass(frozen=True, slots=True)
class SliceWrite:
    """A slice to create (``name`` is None) or to replace; ``index`` is its place among the wanted ones."""

    index: int
    name: str | None
    body: Object


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps in the order in which they are to be done."""

    generation: int
    steps: tuple[SliceDeletion | SliceWrite, ...]

    @property
    def deletions(self) -> tuple[SliceDeletion, ...]:
        return tuple(step for step in self.steps if isinstance(step, SliceDeletion))

    @property
    def writes(self) -> tuple[SliceWrite, ...]:
        return tuple(step for step in self.steps if isinstance(step, SliceWrite))


def plan_writes(
    wanted: Sequence[Object],
    stored: Sequence[Object],
    pool: Pool,
    accepted: Mapping[int, Accepted] | None = None,
) -> Plan:
    """The least writes that make the pool complete with the ``wanted`` specs, in this order.

    ``wanted`` specs need no ``pool``, ``driver`` or ``nodeName``; counter sets must be in a slice of their
    own beside the devices that consume them. ``stored`` may hold any slices: those of other drivers and nodes
    are left alone, those of this driver on this node that are not wanted are deleted. ``accepted`` says for
    an index what the server makes of a spec: that form then counts as what was wanted.
    """
    accepted = accepted or {}
    # An older generation must not become the newest by the deletion of a newer one.
    ours = sorted((item for item in stored if _is_ours(item, pool)), key=_generation)
    of_pool = [item for item in ours if item["spec"]["pool"]["name"] == pool.node_name]
    newest = max((_generation(item) for item in of_pool), default=0)
    kept = _by_index(of_pool, len(wanted), pool)
    kept_names = {item["metadata"]["name"] for item in kept.values()}
    deletions = [_deletion(item) for item in ours if item["metadata"]["name"] not in kept_names]

    current = {index for index, item in kept.items() if _generation(item) == newest}
    changed = {
        index for index in current if not _same(wanted[index], kept[index]["spec"], pool, accepted.get(index))
    }
    miscounted = any(kept[index]["spec"]["pool"]["resourceSliceCount"] != len(wanted) for index in current)
    crowded = sum(_generation(item) == newest for item in of_pool) > len(current)
    absent = set(range(len(wanted))) - current
    unchecked = {
        index for index in range(len(wanted)) if _may_lose_consumption(wanted[index], kept.get(index))
    }
    if changed:
        # One write in place: a second one would make it show, for a moment, old and new together.
        in_place = len(changed) == 1 and not (absent or crowded or changed & unchecked)
    else:
        # The generation is incomplete until the last of the absent slices.
        in_place = not absent or not absent <= unchecked
    in_place = in_place and not miscounted
    restarts = not in_place and newest >= LAST_GENERATION
    if restarts:
        deletions = [_deletion(item) for item in ours]
        kept = {}
    if in_place:
        generation = newest if of_pool else 1
        indexes = changed | absent | {index for index in current if not _is_owned(kept[index], pool)}
    else:
        generation = 1 if restarts else newest + 1
        indexes = set(range(len(wanted)))
    writes = [
        _write(index, wanted[index], kept.get(index), pool, generation, len(wanted))
        for index in sorted(indexes, key=lambda index: (_order(wanted[index], kept.get(index)), index))
    ]
    # A deletion can make a generation look complete; it does no harm once there is a newer one.
    deletions_first = in_place or restarts
    return Plan(generation, (*deletions, *writes) if deletions_first else (*writes, *deletions))


def full_spec(spec: Object, pool: Pool, generation: int, count: int) -> Object:
    """A wanted spec with all that belongs to the pool."""
    return {
        **spec,
        "driver": pool.driver,
        "nodeName": pool.node_name,
        "pool": {"name": pool.node_name, "generation": generation, "resourceSliceCount": count},
    }


def generate_name(index: int, pool: Pool) -> str:
    """The ``generateName`` of a slice. Its order is the order in which the scheduler looks at slices."""
    base = f"{index:05x}-{pool.driver}-{pool.node_name}"[: _GENERATED_BASE_LENGTH - 1]
    return base.rstrip("-.") + "-"


def _is_ours(item: Object, pool: Pool) -> bool:
    spec = item["spec"]
    return bool(spec["driver"] == pool.driver and spec.get("nodeName") == pool.node_name)


def _generation(item: Object) -> int:
    generation: int = item["spec"]["pool"]["generation"]
    return generation


def _by_index(of_pool: Sequence[Object], count: int, pool: Pool) -> dict[int, Object]:
    kept: dict[int, Object] = {}
    # Of two slices for one index the newer generation stays; of equals, the same one in every plan.
    for item in sorted(of_pool, key=lambda item: (-_generation(item), item["metadata"]["name"])):
        name = item["metadata"]["name"]
        match = _INDEX.match(name)
        if match is None:
            continue
        index = int(match[1], 16)
        if index < count and index not in kept and name.startswith(generate_name(index, pool)):
            kept[index] = item
    return kept


def _same(wanted: Object, stored: Object, pool: Pool, accepted: Accepted | None) -> bool:
    want, have = comparable(full_spec(wanted, pool, 0, 0)), comparable(stored)
    if want == have:
        return True
    return (
        accepted is not None
        and comparable(full_spec(accepted.wanted, pool, 0, 0)) == want
        and comparable(accepted.stored) == have
    )


def _consumes_counters(spec: Object) -> bool:
    return any(device.get("consumesCounters") for device in spec.get("devices") or ())


def _may_lose_consumption(wanted: Object, replaced: Object | None) -> bool:
    """Whether a server may store the slice without ``consumesCounters``: it keeps only what is in use."""
    return _consumes_counters(wanted) and not (replaced and _consumes_counters(replaced["spec"]))


def _order(wanted: Object, replaced: Object | None) -> int:
    """First what the server may store without its counters, so that this is seen while nothing is complete.

    Of this, counter sets go last: devices that consume from one that is missing are not given out at all.
    """
    if _may_lose_consumption(wanted, replaced):
        return 0
    if wanted.get("sharedCounters") and not (replaced and replaced["spec"].get("sharedCounters")):
        return 1
    return 2 if replaced else 3


def _is_owned(item: Object, pool: Pool) -> bool:
    owners = item["metadata"].get("ownerReferences", ())
    return any(owner["kind"] == "Node" and owner["uid"] == pool.node_uid for owner in owners)


def _deletion(item: Object) -> SliceDeletion:
    metadata = item["metadata"]
    return SliceDeletion(metadata["name"], metadata["uid"], metadata["resourceVersion"])


def _write(
    index: int, wanted: Object, replaced: Object | None, pool: Pool, generation: int, count: int
) -> SliceWrite:
    spec = full_spec(wanted, pool, generation, count)
    if replaced is None:
        name = None
        metadata: Object = {"generateName": generate_name(index, pool)}
    else:
        name = replaced["metadata"]["name"]
        metadata = {key: value for key, value in replaced["metadata"].items() if key != "managedFields"}
        spec = _with_times_of_taints(spec, replaced["spec"])
    metadata["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "Node", "name": pool.node_name, "uid": pool.node_uid, "controller": True}
    ]
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}
    return SliceWrite(index, name, body)


def _with_times_of_taints(spec: Object, stored: Object) -> Object:
    """Keeps ``timeAdded`` of taints that were there before, from which the time to eviction is counted."""
    times = {
        (device["name"], taint["key"], taint.get("value", ""), taint["effect"]): taint["timeAdded"]
        for device in stored.get("devices", ())
        for taint in device.get("taints", ())
        if "timeAdded" in taint
    }
    if not times:
        return spec
    spec = copy.deepcopy(spec)
    for device in spec.get("devices", ()):
        for taint in device.get("taints", ()):
            key = (device["name"], taint["key"], taint.get("value", ""), taint["effect"])
            if key in times:
                taint["timeAdded"] = times[key]
    return spec
