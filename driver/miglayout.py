"""A fixed MIG layout: which placements of a GPU its partitions get. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from driver.counters import CounterLayout
from driver.inventory import Gpu, MigProfile, Placement
from driver.nodepolicy import Layout

Placed = tuple[MigProfile, Placement]
"""A profile, and where one of it is to lie."""


class LayoutError(ValueError):
    """A GPU cannot have the layout; the text names the GPU, the profile, and what is allowed."""


def place(gpu: Gpu, layout: Layout) -> tuple[Placed, ...]:
    """Placements for every partition of the layout, none of which overlap, by their start.

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
    found = _fitting(wanted, (), counters, counters.whole())
    if found is None:
        text = ", ".join(f"{count} of {name}" for name, count in layout)
        raise LayoutError(f"GPU {gpu.pci}: layout of {text} does not fit on it together; ask for fewer")
    return tuple(sorted(found, key=lambda one: one[1].start))


def _fitting(
    wanted: Sequence[MigProfile],
    placed: tuple[Placed, ...],
    counters: CounterLayout,
    left: dict[str, int],
) -> tuple[Placed, ...] | None:
    if not wanted:
        return placed
    profile = wanted[0]
    # Of equal ones, the next lies behind the last: their order makes no difference.
    behind = placed[-1][1].start if placed and placed[-1][0] == profile else -1
    for placement in sorted(profile.placements, key=lambda one: one.start):
        taken = counters.partition(profile, placement)
        if placement.start > behind and all(left.get(name, 0) >= count for name, count in taken.items()):
            rest = {name: count - taken.get(name, 0) for name, count in left.items()}
            found = _fitting(wanted[1:], (*placed, (profile, placement)), counters, rest)
            if found is not None:
                return found
    return None
