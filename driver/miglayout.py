"""A fixed MIG layout: which placements of a GPU its partitions get. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from driver.counters import CounterLayout
from driver.inventory import Gpu, MigProfile, Placement
from driver.nodepolicy import Kept, Layout

Placed = tuple[MigProfile, Placement]
"""A profile, and where one of it is to lie."""


class LayoutError(ValueError):
    """A GPU cannot have the layout; the text names the GPU, the profile, and what is allowed."""


def place(gpu: Gpu, layout: Layout, kept: Kept = ()) -> tuple[Placed, ...]:
    """Placements for every partition of the layout, none of which overlap, by their start.

    Those of ``kept`` are used where the layout has a use for them, and avoided by the others while there is
    another place.

    Raises:
        LayoutError: NVML tells no such profile, or there is no room for all of them together.
    """
    by_name = {profile.profile: profile for profile in gpu.profiles}
    wanted: list[MigProfile] = []
    for name, count in layout:
        if name not in by_name:
            allowed = ", ".join(by_name) or "none, it cannot be partitioned"
            raise LayoutError(f"GPU {gpu.pci}: layout names profile {name!r}; its profiles are: {allowed}")
        wanted += [by_name[name]] * count
    # The largest first: they have the fewest places.
    wanted.sort(key=lambda profile: -profile.placements[0].size if profile.placements else 0)
    counters = CounterLayout.of(gpu)
    found = _fitting(wanted, (), counters, counters.whole(), _Preference.of(gpu, kept))
    if found is None:
        text = ", ".join(f"{count} of {name}" for name, count in layout)
        raise LayoutError(f"GPU {gpu.pci}: layout of {text} does not fit on it together; ask for fewer")
    return tuple(sorted(found, key=lambda one: one[1].start))


class _Preference:
    """The order in which the placements of a profile are tried."""

    def __init__(self, kept: Mapping[str, Sequence[Placement]]) -> None:
        self._kept = kept
        self._every = [placement for placements in kept.values() for placement in placements]

    @classmethod
    def of(cls, gpu: Gpu, kept: Kept) -> Self:
        return cls(
            {
                profile.profile: [one for one in profile.placements if (profile.profile, one.start) in kept]
                for profile in gpu.profiles
            }
        )

    def order(self, profile: MigProfile) -> list[Placement]:
        kept = self._kept.get(profile.profile, ())
        return sorted(
            profile.placements,
            key=lambda one: (one not in kept, any(one.overlaps(other) for other in self._every), one.start),
        )


def _fitting(
    wanted: Sequence[MigProfile],
    placed: tuple[Placed, ...],
    counters: CounterLayout,
    left: dict[str, int],
    preference: _Preference,
) -> tuple[Placed, ...] | None:
    if not wanted:
        return placed
    profile = wanted[0]
    places = preference.order(profile)
    # Of equal ones, the next comes later in the order than the last: who is who makes no difference.
    first = places.index(placed[-1][1]) + 1 if placed and placed[-1][0] == profile else 0
    for placement in places[first:]:
        taken = counters.partition(profile, placement)
        if all(left.get(name, 0) >= count for name, count in taken.items()):
            rest = {name: count - taken.get(name, 0) for name, count in left.items()}
            found = _fitting(wanted[1:], (*placed, (profile, placement)), counters, rest, preference)
            if found is not None:
                return found
    return None
