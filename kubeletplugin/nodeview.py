"""The view of a node: what follows from an inventory, the instances that are ours, and the settings. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from driver.devices import Device, OwnInstances, known_devices, offered_devices
from driver.exclusion import Exclusion
from driver.inventory import Gpu, Inventory, PciAddress
from driver.migoffer import MigOffer, MigPolicy, foreign_instances, mig_offer


@dataclass(frozen=True, slots=True)
class NodeView:
    """``devices`` are all that a claim may name; ``offers`` has each GPU that is not excluded."""

    inventory: Inventory = field(default_factory=Inventory)
    own_instances: OwnInstances = field(default_factory=dict)
    devices: Mapping[str, Device] = field(default_factory=dict)
    offered: tuple[Device, ...] = ()
    offers: Mapping[PciAddress, MigOffer] = field(default_factory=dict)

    def why_not_offered(self, name: str) -> str:
        """Why a device may not be given to a new claim, as the end of a sentence; empty if it may."""
        if any(device.name == name for device in self.offered):
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
    exclusion: Exclusion,
    policy: MigPolicy,
    *,
    counters: bool,
) -> NodeView:
    """Derive the view. Without ``counters``, which the API server must store, there are no partitions."""
    offered = offered_devices(inventory, exclusion, own_instances, policy, counters=counters)
    known = known_devices(inventory, own_instances) | {device.name: device for device in offered}
    offers = {
        gpu.pci: mig_offer(gpu, own_instances.get(gpu.pci, frozenset()), policy, counters=counters)
        for gpu in inventory.gpus
        if not exclusion.excludes(gpu)
    }
    return NodeView(inventory, own_instances, known, offered, offers)
