from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from driver.counters import CounterLayout, counter_set, most_used
from driver.inventory import Engines, MigProfile, Placement
from tests.unit.driver.inventories import H100_PROFILES, gpu

_ME = H100_PROFILES[5]


def _counters(**amounts: int) -> dict[str, int]:
    return {name.replace("_", "-"): amount for name, amount in amounts.items()}


def test_units_and_the_engines_that_can_run_out() -> None:
    layout = CounterLayout.of(gpu())
    assert (layout.units, layout.engines) == (8, (("ofa_engines", 1),))
    assert layout.whole() == {f"memory-slice-{unit}": 1 for unit in range(8)} | {"ofa-engines": 1}
    assert layout.partition(_ME, Placement(3, 1)) == {"memory-slice-3": 1, "ofa-engines": 1}
    assert layout.partition(H100_PROFILES[1], Placement(2, 2)) == {"memory-slice-2": 1, "memory-slice-3": 1}
    assert layout.size == 9


def test_b082_the_second_media_profile_of_a_gpu_finds_no_engine() -> None:
    layout = CounterLayout.of(gpu())
    total = layout.whole()["ofa-engines"]
    assert sum(layout.partition(_ME, Placement(start, 1))["ofa-engines"] for start in (0, 1)) > total


def test_a_gpu_with_more_engines_than_its_largest_profile_is_not_held_to_that() -> None:
    """NVML tells engines only by profiles: eight small ones may have more than the largest."""
    small = replace(H100_PROFILES[0], engines=Engines(16, 2, 1, 0, 1, 0), instance_count=8)
    layout = CounterLayout.of(gpu(engines=Engines(132, 8, 7, 0, 7, 1), profiles=(small, *H100_PROFILES[1:])))
    assert "copy_engines" not in dict(layout.engines)


def test_engines_of_foreign_instances_are_gone_and_their_units_stay() -> None:
    left = CounterLayout.of(gpu()).beside([_ME.engines])
    assert left == {f"memory-slice-{unit}": 1 for unit in range(8)} | {"ofa-engines": 0}


def test_no_total_is_below_what_claims_hold() -> None:
    held: list[dict[str, Any]] = [
        {"consumesCounters": [{"counterSet": "gpu-1", "counters": {"ofa-engines": {"value": "1"}}}]},
        {"consumesCounters": [{"counterSet": "other", "counters": {"ofa-engines": {"value": "9"}}}]},
        {},
    ]
    found = counter_set("gpu-1", _counters(memory_slice_0=1, ofa_engines=0), held)
    assert found == {
        "name": "gpu-1",
        "counters": {"memory-slice-0": {"value": "1"}, "ofa-engines": {"value": "1"}},
    }


_PLACEMENTS = st.builds(Placement, st.integers(0, 8), st.integers(1, 4))
_SOME_PROFILES = st.lists(
    st.builds(
        lambda engines, places: MigProfile(0, "p", 1, 0, 1, Engines(decoders=engines), tuple(places)),
        st.integers(0, 4),
        st.lists(_PLACEMENTS, min_size=1, max_size=3),
    ),
    max_size=4,
)


@given(_SOME_PROFILES)
def test_most_used_is_that_of_the_best_set(profiles: list[MigProfile]) -> None:
    every = [(place, one.engines.decoders) for one in profiles for place in one.placements]
    best = 0
    for size in range(len(every) + 1):
        for chosen in combinations(every, size):
            if not any(one.overlaps(other) for (one, _), (other, _) in combinations(chosen, 2)):
                best = max(best, sum(engines for _, engines in chosen))
    assert most_used(profiles, "decoders") == best
