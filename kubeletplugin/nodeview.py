"""The view of a node: what follows from an inventory, the instances that are ours, and the settings. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from driver.devices import Device, OwnInstances, known_devices, offered_devices
from driver.inventory import Gpu, Inventory, PciAddress
from driver.miglayout import LayoutError, place
from driver.migoffer import MigOffer, foreign_instances, mig_offer
from driver.nodepolicy import GpuPolicy, NodePolicy
from driver.shares import EVERY_MODE, ShareMode, Shares


@dataclass(frozen=True, slots=True)
class NodeView:
    """``devices`` are all that a claim may name; ``offers`` has each GPU that is not excluded.

    ``layout_problems`` tells which GPUs cannot have the fixed layout that the policy wants, and why;
    ``without_effect`` what else in the policy holds for nothing here. Sentences. ``uncounted`` are the modes
    in which the policy wants devices shared that take from counters, and in which they may not be.
    """

    inventory: Inventory = field(default_factory=Inventory)
    own_instances: OwnInstances = field(default_factory=dict)
    devices: Mapping[str, Device] = field(default_factory=dict)
    offered: tuple[Device, ...] = ()
    offered_names: frozenset[str] = frozenset()
    offers: Mapping[PciAddress, MigOffer] = field(default_factory=dict)
    layout_problems: tuple[str, ...] = ()
    without_effect: tuple[str, ...] = ()
    uncounted: frozenset[ShareMode] = frozenset()

    def why_not_offered(self, name: str) -> str:
        """Why a device may not be given to a new claim, as the end of a sentence; empty if it may."""
        if name in self.offered_names:
            return ""
        known = self.devices.get(name)
        if known is not None and known.partition is not None:
            gpu, placement = known.gpu, known.partition.placement
            offer = self.offers.get(gpu.pci)
            if offer is not None and offer.way.offers_partitions:
                for instance in foreign_instances(gpu, self.own_instances.get(gpu.pci, frozenset())):
                    if instance.placement.overlaps(placement):
                        return (
                            f"is not offered: GPU instance {instance.id} at {instance.placement.start} of "
                            f"GPU {gpu.pci} lies in its place and was not created by this driver"
                        )
        return "is excluded or not usable on this node"

    @property
    def without_devices(self) -> list[Gpu]:
        """The GPUs in MIG mode of which nothing is offered, because nobody made an instance."""
        offering = {device.gpu.pci for device in self.offered}
        return [
            gpu
            for gpu in self.inventory.gpus
            if gpu.mig_enabled and gpu.pci in self.offers and gpu.pci not in offering
        ]


def node_view(
    inventory: Inventory,
    own_instances: OwnInstances,
    policy: NodePolicy,
    *,
    counters: bool,
    shares: bool,
    counted: Collection[ShareMode] = EVERY_MODE,
) -> NodeView:
    """Derive the view.

    Without ``counters``, which the API server must store, there are no partitions; without ``shares`` there
    are no shared devices. ``counted`` are the modes in which a device that takes from counters may be shared.
    """
    offered = offered_devices(
        inventory, policy, own_instances, counters=counters, shares=shares, counted=counted
    )
    known = known_devices(inventory, own_instances) | {device.name: device for device in offered}
    offers: dict[PciAddress, MigOffer] = {}
    problems = []
    of_gpu = {gpu.pci: policy.of(gpu) for gpu in inventory.gpus}
    for gpu in inventory.gpus:
        wanted = of_gpu[gpu.pci]
        if wanted.exclude:
            continue
        own = own_instances.get(gpu.pci, frozenset())
        offers[gpu.pci] = mig_offer(gpu, own, wanted.mig, counters=counters)
        problems += _layout_problems(gpu, own, wanted)
    names = frozenset(device.name for device in offered)
    without_effect = () if inventory.is_incomplete else policy.without_effect(inventory.gpus)
    wished = ((device, of_gpu[device.gpu.pci].shares_of(device.profile)) for device in offered)
    shared = [(device, shares) for device, shares in wished if shares is not None]
    unshared = (
        _unshared(device, shares) for device, shares in shared if shares.needs_more_than(device.memory_bytes)
    )
    return NodeView(
        inventory,
        own_instances,
        known,
        offered,
        names,
        offers,
        tuple(problems),
        without_effect + tuple(unshared),
        frozenset(shares.mode for device, shares in shared if device.counters and shares.mode not in counted),
    )


def _layout_problems(gpu: Gpu, own: frozenset[int], wanted: GpuPolicy) -> list[str]:
    if not wanted.layout:
        return []
    try:
        place(gpu, wanted.layout)
    except LayoutError as error:
        return [str(error)]
    # That the API server stores no counters is said for the whole node.
    offer = mig_offer(gpu, own, wanted.mig, counters=True)
    if offer.way.offers_partitions:
        return []
    return [f"GPU {gpu.pci}: no partition is made on it, so it cannot have a layout: {offer.reason}"]


def _unshared(device: Device, shares: Shares) -> str:
    """Why a device that has too little memory is not shared as the policy wants it."""
    return (
        f"shares: {shares.mode} of {device.name}: NVML tells {device.memory_bytes} bytes of memory, too "
        "little to hand out, so it is offered to one claim at a time"
    )
