"""What is published: the devices on offer, and those in use that have gone from the hardware."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence

from driver.devices import Device
from driver.resourceslices import counter_sets, desired, slice_specs
from kubeletplugin.conditions import Announce, Condition, Conditions
from kubeletplugin.counterprobe import FEATURE_GATE, CounterProbe
from kubeletplugin.engine import ClaimEngine
from kubeletplugin.hardware import GpuHardware
from kubeletplugin.metrics import Metrics
from kubeletplugin.owninstances import own_instances
from kubeletplugin.publisher import DroppedFields, SlicePublisher
from kubeletplugin.store import ClaimRecord, HeldDevice, StoreError, StoreReplaced

_STORE_PAUSE_SECONDS = 1.0

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


class Publishing:
    """Gives the publisher new slices whenever the hardware changes, or a vanished device is let go.

    Partitions are published only while the API server is known to store their counters.
    """

    def __init__(
        self,
        hardware: GpuHardware,
        engine: ClaimEngine,
        publisher: SlicePublisher,
        counter_probe: CounterProbe,
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
        self._metrics = metrics
        self._conditions = Conditions(announce)
        self._node_name = node_name
        self._pool = pool
        self._records: Collection[ClaimRecord] = ()

    async def run(self) -> None:
        """Never returns. Nothing is published before the hardware and the store are known."""
        await self._hardware.ready.wait()
        await self._engine.restored.wait()
        while True:
            changes = [self._hardware.changed, self._counter_probe.changed]
            for event in (*changes, self._engine.changed):
                event.clear()
            if self._hardware.counts:
                await self._counter_probe.answer()
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
        if self._counter_probe.refuted_by(dropped):
            self._publish()

    def _publish(self) -> list[HeldDevice]:
        """Hand over what is to be published; returns the vanished devices in use that are part of it."""
        hardware, probe = self._hardware, self._counter_probe
        own = own_instances(self._records, hardware.inventory.gpus, hardware.boot_id())
        hardware.offer(own, counters=probe.supported)
        gone = vanished(hardware.offered, self._records)
        # Shares of one device take from its counters once.
        held = {
            one.device: one.published
            for record in self._records
            for one in record.devices
            if not one.admin_access
        }
        counters = counter_sets(hardware.offered, hardware.own_instances, list(held.values()))
        current = [hardware.published(device) for device in free_of(hardware.offered, gone)]
        # What a rebuilt store knows only by name has no attributes, and selectors fail on those without.
        devices = desired(current, [one.published for one in gone if one.gpu_uuid], counters)
        self._metrics.devices.set(len(devices))
        self._publisher.update(slice_specs(devices, self._node_name, self._pool, counters=counters))
        self._conditions.stand([*self._withheld(), *self._gone_in_use()])
        return gone

    def _gone_in_use(self) -> list[Condition]:
        """GPUs that claims hold and that the hardware does not show any more."""
        present = {gpu.pci for gpu in self._hardware.inventory.gpus}
        return [
            Condition(
                "GpuGone",
                f"GPU {pci} is gone or cannot be read, and claim {record.claim} holds it: what it holds "
                "stays published until its pods are deleted",
            )
            for record in self._records
            for pci in record.gpus
            if pci not in present
        ]

    def _withheld(self) -> list[Condition]:
        if self._counter_probe.supported or not self._hardware.counts:
            return []
        return [
            Condition(
                "PartitionsWithheld",
                "MIG partitions are not offered, only whole GPUs and existing instances: the API server does "
                f"not store shared counters (feature gate {FEATURE_GATE}; {self._counter_probe.reason}); "
                "asked again every ten minutes",
            )
        ]


async def _first_of(events: Sequence[asyncio.Event]) -> None:
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
