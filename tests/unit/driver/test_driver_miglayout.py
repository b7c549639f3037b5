"""Fixed MIG layouts: each board's full ones, mixed ones, and what is said of those that cannot be."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence

import pytest

from driver.counters import CounterLayout
from driver.devices import Partition
from driver.discovery import discover
from driver.hostfiles import HostRoots
from driver.inventory import Gpu
from driver.miglayout import LayoutError, Placed, place
from driver.nodepolicy import Layout
from driver.nvml import Nvml
from nvmlsim.models import boards, models
from nvmlsim.node import SimulatedNode
from tests.unit.driver.inventories import gpu

BOARDS = sorted(boards())
MODELS = {model["mig_profile_key"]: key for key, model in models().items() if model["mig_profile_key"]}


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Gpu]:
    """An empty GPU of every board, by the board."""
    root = tmp_path_factory.mktemp("boards")
    simulated = SimulatedNode.create(root, "t4x4", gpus=[{"model": MODELS[board]} for board in BOARDS])
    for number in range(len(BOARDS)):
        simulated.set_mig_mode(number)
    nvml = Nvml(simulated.library_path)
    found = {gpu.uuid: gpu for gpu in discover(nvml, HostRoots(root / "proc", root / "sys")).gpus}
    nvml.close()
    return {BOARDS[one.gpu]: found[one.uuid] for one in simulated.gpus()}


def fits(gpu: Gpu, placed: Sequence[Placed]) -> bool:
    """Whether none overlap, by units and by engines."""
    counters = CounterLayout.of(gpu)
    left = counters.whole()
    for profile, placement in placed:
        assert placement in profile.placements
        for name, count in counters.partition(profile, placement).items():
            left[name] -= count
    return min(left.values()) >= 0


def counted(placed: Sequence[Placed]) -> dict[str, int]:
    return dict(Counter(profile.profile for profile, _ in placed))


@pytest.mark.parametrize("board", BOARDS)
def test_a_gpu_full_of_one_profile(every: dict[str, Gpu], board: str) -> None:
    """As many as NVML promises, where the counters allow them, are placed; one more is refused."""
    full = 0
    for profile in every[board].profiles:
        count = profile.instance_count
        while count > 1 and not _places(every[board], ((profile.profile, count),)):
            count -= 1
        full += count == profile.instance_count
        placed = place(every[board], ((profile.profile, count),))
        assert counted(placed) == {profile.profile: count}
        assert fits(every[board], placed)
        with pytest.raises(LayoutError, match="ask for fewer"):
            place(every[board], ((profile.profile, profile.instance_count + 1),))
    # On some boards NVML promises more of one profile than there are engines for.
    assert full >= len(every[board].profiles) - 1


@pytest.mark.parametrize("board", BOARDS)
def test_every_mixture_that_fits_is_found(every: dict[str, Gpu], board: str) -> None:
    """Partitions are put on the GPU at random until it is full; what came out is asked for as a layout."""
    choice = random.Random(board)
    one = every[board]
    anywhere = [Partition(profile, placement) for profile in one.profiles for placement in profile.placements]
    for _ in range(20):
        placed: list[Placed] = []
        for partition in choice.sample(anywhere, len(anywhere)):
            if fits(one, [*placed, (partition.profile, partition.placement)]):
                placed.append((partition.profile, partition.placement))
        layout = list(counted(placed).items())
        choice.shuffle(layout)
        found = place(one, tuple(layout))
        assert counted(found) == counted(placed)
        assert fits(one, found)
        assert found == place(one, tuple(layout)), "the same each time, or partitions would move"


def _places(gpu: Gpu, layout: Layout) -> bool:
    try:
        place(gpu, layout)
    except LayoutError:
        return False
    return True


@pytest.mark.parametrize(
    ("layout", "starts"),
    [
        ((), []),
        ((("1g.10gb", 7),), [0, 1, 2, 3, 4, 5, 6]),
        ((("3g.40gb", 2),), [0, 4]),
        ((("3g.40gb", 1), ("4g.40gb", 1)), [0, 4]),
        ((("1g.10gb", 1), ("2g.20gb", 1), ("3g.40gb", 1)), [0, 4, 6]),
        ((("1g.20gb", 4),), [0, 2, 4, 6]),
        ((("7g.80gb", 1),), [0]),
    ],
)
def test_where_the_partitions_of_an_h100_lie(layout: Layout, starts: list[int]) -> None:
    assert [placement.start for _, placement in place(gpu(), layout)] == starts


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ((("1g.5gb", 1),), ["GPU 0000:65:00.0", "'1g.5gb'", "1g.10gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb"]),
        ((("1g.10gb", 8),), ["GPU 0000:65:00.0", "8 of 1g.10gb", "ask for fewer"]),
        ((("4g.40gb", 2),), ["2 of 4g.40gb"]),
        ((("7g.80gb", 1), ("1g.10gb", 1)), ["1 of 7g.80gb, 1 of 1g.10gb"]),
        # Of the four units that are left, the last has no place for a partition of one.
        ((("4g.40gb", 1), ("1g.10gb", 4)), ["1 of 4g.40gb, 4 of 1g.10gb"]),
    ],
)
def test_what_cannot_be_is_named(layout: Layout, words: list[str]) -> None:
    with pytest.raises(LayoutError) as raised:
        place(gpu(), layout)
    for word in words:
        assert word in str(raised.value)


def test_a_gpu_without_profiles_says_so() -> None:
    with pytest.raises(LayoutError, match="none, it cannot be partitioned"):
        place(gpu(profiles=()), (("1g.10gb", 1),))


@pytest.mark.parametrize("board", BOARDS)
def test_an_impossible_layout_is_refused_in_no_time(every: dict[str, Gpu], board: str) -> None:
    started = time.process_time()
    for count in (2, 64):
        layout = tuple((profile.profile, count) for profile in every[board].profiles)
        assert not _places(every[board], layout)
    smallest = min(profile.placements[0].size for profile in every[board].profiles)
    small = [one.profile for one in every[board].profiles if one.placements[0].size == smallest]
    assert not _places(every[board], tuple((name, 9) for name in small))
    assert time.process_time() - started < 1.0


@pytest.mark.parametrize(
    ("layout", "kept", "expected"),
    [
        ((("3g.40gb", 1),), (("3g.40gb", 4),), {("3g.40gb", 4)}),
        ((("1g.10gb", 2),), (("1g.10gb", 6),), {("1g.10gb", 6), ("1g.10gb", 0)}),
        (
            (("3g.40gb", 1), ("1g.10gb", 3)),
            (("1g.10gb", 0),),
            {("3g.40gb", 4), *(("1g.10gb", n) for n in range(3))},
        ),
        ((("3g.40gb", 2),), (("1g.10gb", 5),), {("3g.40gb", 0), ("3g.40gb", 4)}),
        ((("2g.20gb", 1),), (("9g.90gb", 0), ("2g.20gb", 3)), {("2g.20gb", 0)}),
    ],
)
def test_b159_places_that_exist_are_kept_where_the_layout_has_a_use_for_them(
    layout: Layout, kept: tuple[tuple[str, int], ...], expected: set[tuple[str, int]]
) -> None:
    placed = place(gpu(), layout, kept)
    assert fits(gpu(), placed)
    assert {(profile.profile, placement.start) for profile, placement in placed} == expected


def test_places_stay_where_they_are_when_they_are_kept(every: dict[str, Gpu]) -> None:
    chooser = random.Random(7)
    for board in every.values():
        for profile in board.profiles:
            start = chooser.choice(profile.placements).start
            first = place(board, ((profile.profile, 1),), ((profile.profile, start),))
            kept = tuple((one.profile, placement.start) for one, placement in first)
            assert kept == ((profile.profile, start),)
            assert place(board, ((profile.profile, 1),), kept) == first
