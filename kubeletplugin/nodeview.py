"""The view of a node: what follows from an inventory, the instances that are ours, and the settings. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from driver.devices import Device, OwnInstances, known_devices, offered_devices
from driver.exclusion import Exclusion
from driver.inventory import Gpu, Inventory, PciAddress
from driver.migoffer import MigOffer, MigPolicy, mig_offer


@dataclass(frozen=True, slots=True)
class NodeView:
    """``devices`` are all that a claim may name; ``offers`` has each GPU that is not excluded."""

    inventory: Inventory = field(default_factory=Inventory)
    own_instances: OwnInstances = field(default_factory=dict)
    devices: Mapping[str, Device] = field(default_factory=dict)
    offered: tuple[Device, ...] = ()
    offers: Mapping[PciAddress, MigOffer] = field(default_factory=dict)

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
