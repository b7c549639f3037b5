"""What is published: the devices on offer, and those in use that have gone from the hardware."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from driver.claim import ClaimReference
from driver.devices import Device
from driver.inventory import PciAddress
from driver.names import gpu_of
from driver.nodepolicy import NodePolicy
from driver.resourceslices import closed, counter_sets, desired, slice_specs, way_of_sharing
from driver.shares import ShareMode, counted_modes, counted_since
from kube.conditions import Announce, Condition, Conditions
from kubeletplugin.engine import ClaimEngine
from kubeletplugin.featureprobe import FeatureProbe
from kubeletplugin.hardware import GpuHardware
from kubeletplugin.metrics import Metrics
from kubeletplugin.nodeview import NodeView
from kubeletplugin.owninstances import own_instances
from kubeletplugin.publisher import DroppedFields, SlicePublisher
from kubeletplugin.serverversion import ServerVersion
from kubeletplugin.store import ClaimRecord, HeldDevice, StoreError, StoreReplaced

K = TypeVar("K")

_STORE_PAUSE_SECONDS = 1.0

CLOSED = {"key": "gpu.nvidia.com/repartition", "effect": "NoSchedule"}
"""The taint of a GPU that is to become free: nobody new is given a device of it."""

log = logging.getLogger(__name__)


def vanished(offered: Sequence[Device], records: Iterable[ClaimRecord]) -> list[HeldDevice]:
    """The held devices that are not on offer any more. They stay published until they are unprepared."""
    names = {device.name for device in offered}
    return [
        held
        for record in records
        for held in record.devices
        if not held.admin_access and held.device not in names
    ]


def free_of(offered: Sequence[Device], gone: Sequence[HeldDevice]) -> list[Device]:
    """The devices on offer that do not lie on hardware which a vanished device in use still occupies."""
    return [
        device for device in offered if not any(device.footprint.overlaps(held.footprint) for held in gone)
    ]


@dataclass(frozen=True, slots=True)
class Offer:
    """What is published of the node's GPUs, and what is in the way of what is wanted.

    ``in_the_way`` are the claims, by GPU, that hold what the policy does not offer, or not so, any more;
    ``closed`` the GPUs of which nobody new is given a device.
    """

    view: NodeView = field(default_factory=NodeView)
    policy: NodePolicy = field(default_factory=NodePolicy)
    in_the_way: Mapping[PciAddress, tuple[ClaimReference, ...]] = field(default_factory=dict)
    closed: frozenset[PciAddress] = frozenset()


class Publishing:
    """Gives the publisher new slices whenever the hardware changes, or a vanished device is let go.

    Partitions are published only while the API server is known to store their counters, and shared only where
    the scheduler counts right then. A device that is held keeps the way in which it is shared until it is
    free. Where a partition request evicts what is in its way, the GPU's devices are tainted while something
    is; where taints are not stored, those that nobody holds are not published meanwhile.
    """

    def __init__(
        self,
        hardware: GpuHardware,
        engine: ClaimEngine,
        publisher: SlicePublisher,
        counter_probe: FeatureProbe,
        share_probe: FeatureProbe,
        taint_probe: FeatureProbe,
        server_version: ServerVersion,
        metrics: Metrics,
        announce: Announce,
        *,
        node_name: str,
        pool: str,
    ) -> None:
        self._hardware = hardware
        self._engine = engine
        self._publisher = publisher
        self._counter_probe = counter_probe
        self._share_probe = share_probe
        self._taint_probe = taint_probe
        self._server_version = server_version
        self._metrics = metrics
        self._conditions = Conditions(announce)
        self._node_name = node_name
        self._pool = pool
        self._records: Collection[ClaimRecord] = ()
        self.offer = Offer()
        """What was computed last; it is so when the publisher has published it."""
        self.computed = asyncio.Event()
        """Set each time that it was computed."""

    async def run(self) -> None:
        """Never returns. Nothing is published before the hardware, the store and all wishes are known."""
        await self._hardware.ready.wait()
        await self._hardware.requests_known.wait()
        await self._engine.restored.wait()
        while True:
            probes = (self._counter_probe, self._share_probe, self._taint_probe, self._server_version)
            changes = [self._hardware.changed, *(probe.changed for probe in probes)]
            for event in (*changes, self._engine.changed):
                event.clear()
            if self._hardware.counts:
                await self._counter_probe.answer()
            if self._hardware.policy.evicts_any:
                await self._taint_probe.answer()
            if self._hardware.policy.shares_any:
                await self._share_probe.answer()
                await self._server_version.answer()
            try:
                self._records = (await self._engine.records()).values()
            except StoreReplaced:
                raise
            except StoreError as error:
                log.warning("what is published stays as it is: %s", error)
                await asyncio.sleep(_STORE_PAUSE_SECONDS)
                self._hardware.changed.set()
                continue
            if self._publish():
                changes.append(self._engine.changed)
            await _first_of(changes)

    def dropped(self, dropped: DroppedFields) -> None:
        """The server stored a slice without something. If that were counters, partitions go before the next
        write."""
        probes = (self._counter_probe, self._share_probe, self._taint_probe)
        refuted = [probe.refuted_by(dropped) for probe in probes]
        if any(refuted):
            self._publish()

    def _publish(self) -> list[HeldDevice]:
        """Hand over what is to be published; returns the devices that are in it because they are held."""
        hardware = self._hardware
        own = own_instances(self._records, hardware.inventory.gpus, hardware.boot_id())
        hardware.offer(
            own,
            counters=self._counter_probe.supported,
            shares=self._share_probe.supported,
            counted=counted_modes(self._server_version.release),
        )
        gone = vanished(hardware.offered, self._records)
        # Shares of one device take from its counters once.
        held = {
            one.device: one.published
            for record in self._records
            for one in record.devices
            if not one.admin_access
        }
        counters = counter_sets(hardware.offered, hardware.own_instances, list(held.values()))
        current = {device.name: hardware.published(device) for device in free_of(hardware.offered, gone)}
        # What a rebuilt store knows only by name has no attributes, and selectors fail on those without.
        retained = [one for one in gone if one.gpu_uuid]
        waiting = self._shared_otherwise(current)
        for _, one in waiting:
            current.pop(one.device, None)
        self._note_what_is_in_the_way([*gone, *(one for _, one in waiting)])
        if not self._taint_probe.supported:
            current = {
                name: one for name, one in current.items() if name in held or not self._is_closed(name)
            }
        devices = desired(
            current.values(),
            [closed(one.published) for one in retained] + [one.published for _, one in waiting],
            counters,
        )
        devices = [one | {"taints": [CLOSED]} if self._is_closed(one["name"]) else one for one in devices]
        self._metrics.devices.set(len(devices))
        self._publisher.update(slice_specs(devices, self._node_name, self._pool, counters=counters))
        self._conditions.stand(
            [*self._withheld(), *self._gone_in_use(), *self._hidden_in_use(gone), *self._shares_wait(waiting)]
        )
        return gone + [one for _, one in waiting]

    def _shared_otherwise(
        self, current: Mapping[str, Mapping[str, Any]]
    ) -> list[tuple[ClaimRecord, HeldDevice]]:
        """The held devices that were given out in another way of sharing than the policy wants now."""
        return [
            (record, one)
            for record in self._records
            for one in record.devices
            if not one.admin_access
            and one.gpu_uuid
            and one.device in current
            and way_of_sharing(one.published) != way_of_sharing(current[one.device])
        ]

    def _note_what_is_in_the_way(self, unwanted: Sequence[HeldDevice]) -> None:
        names = {one.device for one in unwanted}
        holders = _by(
            (one.footprint.gpu, record)
            for record in self._records
            for one in record.devices
            if one.device in names and not one.admin_access
        )
        in_the_way = {
            pci: tuple(dict.fromkeys(record.claim for record in records)) for pci, records in holders.items()
        }
        view, policy = self._hardware.view, self._hardware.policy
        requested = policy.requested
        evicting = {
            gpu.pci for gpu in view.inventory.gpus if gpu.uuid in requested and requested[gpu.uuid].evict
        }
        self.offer = Offer(view, policy, in_the_way, frozenset(evicting & in_the_way.keys()))
        self.computed.set()

    def _is_closed(self, name: str) -> bool:
        return gpu_of(name) in self.offer.closed

    def _gone_in_use(self) -> list[Condition]:
        """GPUs that claims hold and that the hardware does not show any more."""
        present = {gpu.pci for gpu in self._hardware.inventory.gpus}
        holders = _by((pci, record) for record in self._records for pci in record.gpus if pci not in present)
        return [
            Condition(
                "GpuGone",
                f"GPU {pci} is gone or cannot be read, and {_text(records)}: what is held stays published "
                "until it is free",
            )
            for pci, records in holders.items()
        ]

    def _hidden_in_use(self, gone: Sequence[HeldDevice]) -> list[Condition]:
        """Devices that claims hold and that the policy does not want offered any more."""
        hidden = self._hardware.hidden_by_policy({one.device for one in gone})
        holders = _by(
            (one.device, record)
            for record in self._records
            for one in record.devices
            if one.device in hidden and not one.admin_access
        )
        return [
            Condition(
                "PolicyWaits",
                f"{self._hardware.policy_of(name)} does not offer device {name} any more, and "
                f"{_text(records)}: it stays published until it is free, and nobody else gets it",
            )
            for name, records in holders.items()
        ]

    def _shares_wait(self, waiting: Iterable[tuple[ClaimRecord, HeldDevice]]) -> list[Condition]:
        return [
            Condition(
                "PolicyWaits",
                f"{self._hardware.policy_of(name)} shares device {name} in another way than when it was "
                f"given out, and {_text(records)}: that holds when it is free",
            )
            for name, records in _by((one.device, record) for record, one in waiting).items()
        ]

    def _withheld(self) -> list[Condition]:
        found = []
        if self._hardware.counts and not self._counter_probe.supported:
            text = "MIG partitions are not offered, only whole GPUs and existing instances"
            found.append(Condition("PartitionsWithheld", f"{text}: {_why(self._counter_probe)}"))
        if self._hardware.policy.shares_any and not self._share_probe.supported:
            text = "devices that the node policy wants shared are offered to one claim at a time"
            found.append(Condition("SharesWithheld", f"{text}: {_why(self._share_probe)}"))
        elif self._hardware.uncounted:
            found.append(Condition("SharesWithheld", self._uncounted(self._hardware.uncounted)))
        return found

    def _uncounted(self, modes: Collection[ShareMode]) -> str:
        since = max(counted_since(mode) for mode in modes)
        return (
            "MIG partitions, and whole GPUs that can be partitioned, are offered to one claim at a time, "
            f"although the node policy wants them shared ({', '.join(sorted(modes))}): the scheduler of "
            f"Kubernetes {self._server_version.version} does not count right what they take while they are "
            f"shared; that of {'.'.join(map(str, since))} does. With mig: static or off a GPU can be shared"
        )


def _why(probe: FeatureProbe) -> str:
    feature = probe.feature
    return (
        f"the API server does not store {feature.stored} (feature gate {feature.gate}; {probe.reason}); "
        "asked again every ten minutes"
    )


def _by(pairs: Iterable[tuple[K, ClaimRecord]]) -> dict[K, list[ClaimRecord]]:
    found: dict[K, list[ClaimRecord]] = {}
    for key, record in pairs:
        found.setdefault(key, []).append(record)
    return found


def _text(holders: Sequence[ClaimRecord]) -> str:
    """Who holds something. Of many shares each comes and goes, and what is said should stay the same."""
    return f"claim {holders[0].claim} holds it" if len(holders) == 1 else "several claims hold it"


async def _first_of(events: Sequence[asyncio.Event]) -> None:
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
