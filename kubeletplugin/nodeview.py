"""The view of a node: what follows from an inventory, the instances that are ours, and the settings. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from driver.devices import Device, OwnInstances, known_devices, offered_devices
from driver.inventory import Gpu, Inventory, PciAddress
from driver.miglayout import LayoutError, place
from driver.migoffer import MigOffer, mig_offer
from driver.nodepolicy import NodePolicy


@dataclass(frozen=True, slots=True)
class NodeView:
    """``devices`` are all that a claim may name; ``offers`` has each GPU that is not excluded.

    ``layout_problems`` tells which GPUs cannot have the fixed layout that the policy wants, and why.
    """

    inventory: Inventory = field(default_factory=Inventory)
    own_instances: OwnInstances = field(default_factory=dict)
    devices: Mapping[str, Device] = field(default_factory=dict)
    offered: tuple[Device, ...] = ()
    offered_names: frozenset[str] = frozenset()
    offers: Mapping[PciAddress, MigOffer] = field(default_factory=dict)
    layout_problems: tuple[str, ...] = ()

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
) -> NodeView:
    """Derive the view.

    Without ``counters``, which the API server must store, there are no partitions; without ``shares`` there
    are no shared devices.
    """
    offered = offered_devices(inventory, policy, own_instances, counters=counters, shares=shares)
    known = known_devices(inventory, own_instances) | {device.name: device for device in offered}
    offers: dict[PciAddress, MigOffer] = {}
    problems = []
    for gpu in inventory.gpus:
        wanted = policy.of(gpu)
        if wanted.exclude:
            continue
        own = own_instances.get(gpu.pci, frozenset())
        offers[gpu.pci] = mig_offer(gpu, own, wanted.mig, counters=counters)
        try:
            place(gpu, wanted.layout)
        except LayoutError as error:
            problems.append(str(error))
    names = frozenset(device.name for device in offered)
    return NodeView(inventory, own_instances, known, offered, names, offers, tuple(problems))
