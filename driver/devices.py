"""Devices: what of an inventory is offered, under which name, and which hardware each name stands for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, replace

from driver.counters import CounterLayout
from driver.inventory import Gpu, Inventory, MigDevice, MigProfile, PciAddress, Placement
from driver.miglayout import LayoutError, place
from driver.migoffer import MigWay, foreign_instances, mig_offer
from driver.names import gpu_name, mig_name
from driver.nodepolicy import GpuPolicy, NodePolicy
from driver.shares import EVERY_MODE, ShareMode, Shares

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Footprint:
    """The hardware that a device occupies: a GPU, a span of its memory slices, and one of its compute slices.

    ``None`` for a span means all of it.
    """

    gpu: PciAddress
    placement: Placement | None = None
    compute_placement: Placement | None = None

    def overlaps(self, other: Footprint) -> bool:
        """Whether both cannot be given out at the same time. Symmetric."""
        if self.gpu != other.gpu:
            return False
        if self.placement is None or other.placement is None:
            return True
        if not self.placement.overlaps(other.placement):
            return False
        if self.placement != other.placement:
            return True
        if self.compute_placement is None or other.compute_placement is None:
            return True
        return self.compute_placement.overlaps(other.compute_placement)


@dataclass(frozen=True, slots=True)
class Partition:
    """A GPU instance of a profile at a placement, to be made when a claim asks for it."""

    profile: MigProfile
    placement: Placement


@dataclass(frozen=True, slots=True)
class Device:
    """One device that a claim may get: a whole GPU, a MIG device that exists, or a partition.

    A partition is one also while its instance exists for a claim. ``counters`` is what it takes of its GPU's
    shared counters, by name; empty where the GPU has none. ``shares``: how claims share it; without, one at a
    time has it.
    """

    name: str
    gpu: Gpu
    mig: MigDevice | None = None
    partition: Partition | None = None
    counters: tuple[tuple[str, int], ...] = ()
    shares: Shares | None = None

    @property
    def is_whole_gpu(self) -> bool:
        return self.mig is None and self.partition is None

    @property
    def profile(self) -> str | None:
        """The MIG profile; ``None`` for a whole GPU."""
        if self.partition is not None:
            return self.partition.profile.profile
        return None if self.mig is None else self.mig.profile

    @property
    def uuid(self) -> str:
        """The UUID; empty for a partition, which gets one when it is made."""
        if self.partition is not None:
            return ""
        return self.gpu.uuid if self.mig is None else self.mig.uuid

    @property
    def memory_bytes(self) -> int:
        """0 if NVML does not tell."""
        if self.partition is not None:
            return self.partition.profile.memory_mib * _MIB
        return self.gpu.memory_bytes if self.mig is None else self.mig.memory_mib * _MIB

    @property
    def footprint(self) -> Footprint:
        if self.partition is not None:
            return Footprint(self.gpu.pci, self.partition.placement)
        if self.mig is not None:
            return Footprint(self.gpu.pci, self.mig.placement, self.mig.compute_placement)
        return Footprint(self.gpu.pci)


OwnInstances = Mapping[PciAddress, frozenset[int]]
"""The ids of the GPU instances that this driver made, by GPU."""


def known_devices(inventory: Inventory, own_instances: OwnInstances) -> dict[str, Device]:
    """Every device that a claim may name, by name: those on offer, and those that are not, or not any more.

    An instance that we did not make hides the partition of the same name.
    """
    devices: dict[str, Device] = {}
    for gpu in inventory.gpus:
        own = own_instances.get(gpu.pci, frozenset())
        devices |= {device.name: device for device in (_whole(gpu), *_partitions(gpu), *_existing(gpu, own))}
    return devices


def offered_devices(
    inventory: Inventory,
    policy: NodePolicy,
    own_instances: OwnInstances,
    *,
    counters: bool = True,
    shares: bool = True,
    counted: Collection[ShareMode] = EVERY_MODE,
) -> tuple[Device, ...]:
    """The devices that this node offers: GPUs by PCI address, each as ``mig_offer`` tells.

    The scheduler takes the first that fits, so of one GPU those come first that leave most room for others:
    existing instances, partitions as :func:`_by_what_they_spoil`, and the whole GPU last. Excluded GPUs are
    not offered in any form. Without ``counters`` there are no partitions, without ``shares`` no shared
    devices: the API server must store both. ``counted`` are the modes in which a device that takes from
    counters may be shared.
    """
    devices: list[Device] = []
    for gpu in inventory.gpus:
        wanted = policy.of(gpu)
        if wanted.exclude:
            continue
        own = own_instances.get(gpu.pci, frozenset())
        offered = _of_gpu(gpu, own, mig_offer(gpu, own, wanted.mig, counters=counters).way, wanted)
        if shares:
            offered = [replace(device, shares=_shares(device, wanted, counted)) for device in offered]
        devices += offered
    return tuple(devices)


def _shares(device: Device, wanted: GpuPolicy, counted: Collection[ShareMode]) -> Shares | None:
    shares = wanted.shares_of(device.profile)
    if shares is None or shares.needs_more_than(device.memory_bytes):
        return None
    return None if device.counters and shares.mode not in counted else shares


def _of_gpu(gpu: Gpu, own: frozenset[int], way: MigWay, wanted: GpuPolicy) -> list[Device]:
    devices = list(_existing(gpu, own)) if way.offers_instances else []
    drawn = [_whole(gpu)] if way.offers_whole_gpu else []
    if not way.offers_partitions:
        return devices + drawn
    foreign = foreign_instances(gpu, own)
    partitions = list(_partitions(gpu))
    fixed = _fixed(gpu, wanted)
    if fixed is not None:
        partitions, drawn = [device for device in partitions if device.partition in fixed], []
    free = [
        device
        for device in _by_what_they_spoil(partitions)
        if not any(device.footprint.overlaps(Footprint(gpu.pci, one.placement)) for one in foreign)
    ]
    layout = CounterLayout.of(gpu)
    return devices + [replace(device, counters=_taken(layout, device)) for device in free + drawn]


def _fixed(gpu: Gpu, wanted: GpuPolicy) -> list[Partition] | None:
    """The partitions of the GPU's fixed layout; ``None`` if it has none, or none that is possible."""
    if not wanted.layout:
        return None
    try:
        return [
            Partition(profile, placement) for profile, placement in place(gpu, wanted.layout, wanted.kept)
        ]
    except LayoutError:
        return None


def _taken(layout: CounterLayout, device: Device) -> tuple[tuple[str, int], ...]:
    partition = device.partition
    taken = layout.partition(partition.profile, partition.placement) if partition else layout.whole()
    return tuple(taken.items())


def _whole(gpu: Gpu) -> Device:
    return Device(gpu_name(gpu.pci), gpu)


def _existing(gpu: Gpu, own: frozenset[int]) -> Iterator[Device]:
    """The MIG devices that we did not make, by placement."""
    for mig in gpu.mig_devices:
        if mig.gpu_instance_id not in own:
            yield Device(mig_name(gpu.pci, mig.profile, mig.placement, mig.compute_placement), gpu, mig)


def _partitions(gpu: Gpu) -> Iterator[Device]:
    for profile in gpu.profiles:
        for placement in profile.placements:
            name = mig_name(gpu.pci, profile.profile, placement)
            yield Device(name, gpu, partition=Partition(profile, placement))


def _by_what_they_spoil(partitions: Iterable[Device]) -> list[Device]:
    """Small ones first, of equals those with fewer engines, of a profile those that block fewest others."""
    every = [(device, device.partition) for device in partitions if device.partition]

    profiles = list(dict.fromkeys(partition.profile for _, partition in every))

    def spoils(item: tuple[Device, Partition]) -> tuple[int, int, int, int, int]:
        profile, placement = item[1].profile, item[1].placement
        blocked = sum(placement.overlaps(other.placement) for _, other in every)
        engines = sum(astuple(profile.engines))
        return placement.size, engines, profiles.index(profile), blocked, placement.start

    return [device for device, _ in sorted(every, key=spoils)]
