"""Shared counters: what keeps the scheduler from giving out what one GPU cannot hold at the same time.

Each GPU that offers partitions has a counter set. It has a counter for each unit of the grid that placements
lie on, so that two devices with a unit in common exclude each other, and one for each kind of engine that can
run out although the units do not. The whole GPU takes everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from driver.inventory import Engines, Gpu, MigProfile, Placement

MAX_COUNTERS = 32
"""Counters in a set (Kubernetes API, ResourceSliceMaxCountersPerCounterSet)."""
MAX_COUNTER_SETS = 8
"""Counter sets in a slice (Kubernetes API, ResourceSliceMaxCounterSets)."""

Counters = dict[str, int]

_KINDS = {field.name: field.name.replace("_", "-") for field in fields(Engines)}
"""The kinds of engines, and the names of their counters."""


@dataclass(frozen=True, slots=True)
class CounterLayout:
    """The counters of one GPU: how many units its grid has, and the engines that can run out, by kind.

    It follows from the GPU's profiles alone, so it does not change while instances come and go.
    """

    units: int
    engines: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, gpu: Gpu) -> Self:
        pool = {
            kind: max([_count(gpu.engines, kind), *(_together(profile, kind) for profile in gpu.profiles)])
            for kind in _KINDS
        }
        return cls(
            max((placement.end for profile in gpu.profiles for placement in profile.placements), default=0),
            tuple((kind, total) for kind, total in pool.items() if most_used(gpu.profiles, kind) > total),
        )

    @property
    def size(self) -> int:
        """How many counters there are."""
        return self.units + len(self.engines)

    def whole(self) -> Counters:
        """Everything: what an empty GPU has, and what it takes as a whole."""
        return {_unit(unit): 1 for unit in range(self.units)} | {
            _KINDS[kind]: total for kind, total in self.engines
        }

    def partition(self, profile: MigProfile, placement: Placement) -> Counters:
        """What a partition takes: its units and its engines."""
        return {_unit(unit): 1 for unit in range(placement.start, placement.end)} | self._used(
            profile.engines
        )

    def beside(self, foreign: Iterable[Engines]) -> Counters:
        """What is left for partitions beside instances that are not ours.

        Their units are not taken off: what overlaps them is not offered.
        """
        left = self.whole()
        for engines in foreign:
            for name, used in self._used(engines).items():
                left[name] = max(0, left[name] - used)
        return left

    def _used(self, engines: Engines) -> Counters:
        used = {_KINDS[kind]: _count(engines, kind) for kind, _ in self.engines}
        return {name: count for name, count in used.items() if count}


def most_used(profiles: Sequence[MigProfile], kind: str) -> int:
    """The most engines of a kind that instances next to each other can have: weighted interval scheduling."""
    ends: dict[int, list[tuple[int, int]]] = {}
    for profile in profiles:
        for placement in profile.placements:
            ends.setdefault(placement.end, []).append((placement.start, _count(profile.engines, kind)))
    most = [0]
    for end in range(1, max(ends, default=0) + 1):
        most.append(max([most[-1], *(most[start] + engines for start, engines in ends.get(end, []))]))
    return most[-1]


def counter_set(name: str, totals: Counters, held: Iterable[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """A counter set as the API has it (``resource.k8s.io/v1`` CounterSet).

    ``held`` are devices in use, as published. No total is below what they take: a counter that is overdrawn
    makes the scheduler refuse every device of the pool that takes from any counter.
    """
    taken: Counters = {}
    for device in held:
        for consumption in device.get("consumesCounters", ()):
            if consumption["counterSet"] == name:
                for counter, amount in consumption["counters"].items():
                    taken[counter] = taken.get(counter, 0) + int(amount["value"])
    floors = {counter: max(total, taken.get(counter, 0)) for counter, total in totals.items()}
    return {"name": name, "counters": values(floors)}


def values(counters: Mapping[str, int]) -> dict[str, dict[str, str]]:
    """Counters as the API has them."""
    return {name: {"value": str(value)} for name, value in counters.items()}


def _unit(number: int) -> str:
    return f"memory-slice-{number}"


def _count(engines: Engines, kind: str) -> int:
    count: int = getattr(engines, kind)
    return count


def _together(profile: MigProfile, kind: str) -> int:
    return _count(profile.engines, kind) * profile.instance_count
