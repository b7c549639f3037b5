"""Counters against hardware, for every board that the simulated node knows.

What the scheduler allows by the published counters must be what the hardware creates, in both directions: all
sets of placements that do not overlap are compared, and all pairs that do. The hardware is a model of two
sentences, which random sets check against the simulated library.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pytest

from driver.counters import CounterLayout, Counters
from driver.devices import Device, OwnInstances, Partition, offered_devices
from driver.discovery import discover
from driver.hostfiles import HostRoots
from driver.inventory import Gpu, GpuInstance, Inventory
from driver.migoffer import MigPolicy
from driver.nodepolicy import NodePolicy
from driver.nvml import Nvml
from driver.resourceslices import counter_sets
from nvmlsim.library import StateError
from nvmlsim.models import boards, models
from nvmlsim.node import SimulatedNode

BOARDS = sorted(boards())
MODELS = {model["mig_profile_key"]: key for key, model in models().items() if model["mig_profile_key"]}
POOLS = {"decoders": "decoders", "encoders": "encoders", "jpeg_engines": "jpeg", "ofa_engines": "ofa"}

UNMEASURED_MULTIPROCESSORS = {"h100-80gb-pcie", "gb200-186gb"}
"""Boards of whose profiles not all multiprocessor counts are published. The numbers that stand in for them
add up to more than the GPU has, so the counter of multiprocessors refuses sets that the hardware may hold."""

Places = tuple[Partition, ...]


@dataclass(frozen=True)
class Boards:
    """One simulated node with a GPU of every board, in the order of ``BOARDS``; MIG mode is on."""

    simulated: SimulatedNode
    gpus: dict[str, Gpu]


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Boards:
    root = tmp_path_factory.mktemp("boards")
    gpus = [{"model": MODELS[board]} for board in BOARDS]
    simulated = SimulatedNode.create(root, "t4x4", gpus=gpus)
    for number in range(len(BOARDS)):
        simulated.set_mig_mode(number)
    nvml = Nvml(simulated.library_path)
    found = discover(nvml, HostRoots(root / "proc", root / "sys")).gpus
    nvml.close()
    by_uuid = {gpu.uuid: gpu for gpu in found}
    return Boards(simulated, {BOARDS[one.gpu]: by_uuid[one.uuid] for one in simulated.gpus()})


def partitions(gpu: Gpu, foreign: Sequence[Partition] = ()) -> tuple[tuple[Device, ...], Counters]:
    """The partitions that are offered beside foreign instances, and the totals of the counter set."""
    instances = tuple(
        GpuInstance(number, one.profile.id, one.placement) for number, one in enumerate(foreign)
    )
    node = Inventory(gpus=(replace(gpu, gpu_instances=instances),))
    own: OwnInstances = {}
    offered = offered_devices(node, NodePolicy(mig=MigPolicy.DYNAMIC), own)
    (counters,) = counter_sets(offered, own)
    totals = {name: int(amount["value"]) for name, amount in counters["counters"].items()}
    return tuple(device for device in offered if device.partition), totals


def apart(devices: Sequence[Device], start: int = 0) -> Iterator[tuple[Device, ...]]:
    """All sets of partitions of which no two overlap: the empty one, and for each first its followers."""
    yield ()
    for device in devices:
        assert device.partition is not None
        placement = device.partition.placement
        if placement.start >= start:
            for rest in apart(devices, placement.end):
                yield (device, *rest)


def allowed(chosen: Sequence[Device], totals: Counters) -> bool:
    """As the scheduler decides: no counter is overdrawn."""
    left = dict(totals)
    for device in chosen:
        for name, amount in device.counters:
            left[name] -= amount
    return min(left.values()) >= 0


def places(devices: Sequence[Device]) -> Places:
    return tuple(device.partition for device in devices if device.partition)


def holds(board: str, chosen: Places) -> bool:
    """The hardware: instances do not overlap, and there are enough media engines for all of them."""
    for position, one in enumerate(chosen):
        if any(one.placement.overlaps(other.placement) for other in chosen[:position]):
            return False
    pool = boards()[board]["engine_pool"]
    return all(
        sum(getattr(one.profile.engines, kind) for one in chosen) <= pool[name]
        for kind, name in POOLS.items()
    )


def refused_by_multiprocessors(gpu: Gpu, chosen: Places) -> bool:
    return sum(one.profile.engines.multiprocessors for one in chosen) > gpu.engines.multiprocessors


def created(simulated: SimulatedNode, gpu: int, chosen: Places) -> bool:
    """Whether the simulated GPU, which is empty before and after, creates all of them."""
    made = []
    try:
        for one in chosen:
            made.append(simulated.create_mig(gpu, one.profile.profile, one.placement.start).id)
    except StateError:
        return False
    finally:
        for instance in made:
            simulated.destroy_mig(gpu, instance)
    return True


@pytest.mark.parametrize("board", BOARDS)
def test_b082_counters_allow_exactly_what_the_hardware_holds(every: Boards, board: str) -> None:
    gpu = every.gpus[board]
    devices, totals = partitions(gpu)
    in_order = sorted(devices, key=lambda device: device.footprint.placement or ())
    wrong = [
        chosen
        for chosen in map(tuple, apart(in_order))
        if allowed(chosen, totals) != holds(board, places(chosen))
    ]
    if board in UNMEASURED_MULTIPROCESSORS:
        assert wrong
        assert all(refused_by_multiprocessors(gpu, places(chosen)) for chosen in wrong)
    else:
        assert wrong == []
    for device in devices:
        for other in devices:
            if device.footprint.overlaps(other.footprint):
                assert not allowed((device, other), totals)


@pytest.mark.parametrize("board", BOARDS)
def test_the_whole_gpu_takes_all_and_fits_alone(every: Boards, board: str) -> None:
    layout = CounterLayout.of(every.gpus[board])
    devices, totals = partitions(every.gpus[board])
    whole = Device("gpu", every.gpus[board], counters=tuple(layout.whole().items()))
    assert allowed((whole,), totals)
    assert not any(allowed((whole, device), totals) for device in devices)
    assert layout.size <= 32


@pytest.mark.parametrize("board", BOARDS)
def test_b086_beside_instances_of_others_too(every: Boards, board: str) -> None:
    choice = random.Random(board)
    devices, _ = partitions(every.gpus[board])
    in_order = sorted(devices, key=lambda device: device.footprint.placement or ())
    possible = [places(chosen) for chosen in apart(in_order) if chosen and holds(board, places(chosen))]
    with_room = [foreign for foreign in possible if _leaves_room(devices, foreign)]
    for foreign in choice.sample(with_room, min(12, len(with_room))):
        left, totals = partitions(every.gpus[board], foreign)
        for chosen in apart(sorted(left, key=lambda device: device.footprint.placement or ())):
            together = (*foreign, *places(chosen))
            if allowed(chosen, totals) != holds(board, together):
                assert board in UNMEASURED_MULTIPROCESSORS
                assert refused_by_multiprocessors(every.gpus[board], together)


def _leaves_room(devices: Sequence[Device], foreign: Places) -> bool:
    return any(
        not any(one.placement.overlaps(other.placement) for one in foreign) for other in places(devices)
    )


@pytest.mark.parametrize("board", BOARDS)
def test_the_model_of_the_hardware_is_what_the_simulated_library_does(every: Boards, board: str) -> None:
    choice = random.Random(board)
    number = BOARDS.index(board)
    devices, _ = partitions(every.gpus[board])
    in_order = sorted(devices, key=lambda device: device.footprint.placement or ())
    sets = list(apart(in_order))
    near_full = sorted(sets, key=len)[len(sets) // 2 :]
    overlapping = [tuple(choice.sample(devices, 2)) for _ in range(3)]
    for chosen in [*choice.sample(sets, 3), *choice.sample(near_full, min(8, len(near_full))), *overlapping]:
        order = choice.sample(places(chosen), len(chosen))
        assert created(every.simulated, number, tuple(order)) == holds(board, tuple(order))


@pytest.mark.parametrize("board", BOARDS)
def test_b079_every_partition_can_be_made_on_an_empty_gpu(every: Boards, board: str) -> None:
    number = BOARDS.index(board)
    devices, _ = partitions(every.gpus[board])
    expected = {
        (profile["name"], start, profile["placements"]["size"])
        for profile in boards()[board]["profiles"]
        for start in profile["placements"]["starts"]
    }
    published = {(one.profile.profile, one.placement.start, one.placement.size) for one in places(devices)}
    assert published == expected
    for one in places(devices):
        made = every.simulated.create_mig(number, one.profile.profile, one.placement.start)
        every.simulated.destroy_mig(number, made.id)
        assert (made.start, made.size) == (one.placement.start, one.placement.size)


@pytest.mark.parametrize("board", BOARDS)
def test_b080_a_partition_has_the_multiprocessors_of_the_compute_instance_that_fills_it(
    every: Boards, board: str
) -> None:
    for profile in every.gpus[board].profiles:
        described = next(one for one in boards()[board]["profiles"] if one["name"] == profile.profile)
        filling = [ci for ci in described["ci_profiles"] if ci["slices"] == described["slice_count"]]
        measured = [ci["sm"] for ci in filling if ci["sm"] is not None]
        if measured:
            assert profile.engines.multiprocessors == max(measured)


@pytest.mark.parametrize("board", sorted({*BOARDS} - UNMEASURED_MULTIPROCESSORS))
def test_placements_and_engines_explain_how_many_instances_nvml_promises(every: Boards, board: str) -> None:
    devices, totals = partitions(every.gpus[board])
    for profile in every.gpus[board].profiles:
        of_profile = [
            device for device in devices if device.partition and device.partition.profile == profile
        ]
        in_order = sorted(of_profile, key=lambda device: device.footprint.placement or ())
        most = max(len(chosen) for chosen in apart(in_order) if allowed(chosen, totals))
        assert most == profile.instance_count
