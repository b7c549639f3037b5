"""What is published: the devices on offer, and those in use that have gone from the hardware."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from driver.devices import Device
from driver.resourceslices import desired, slice_specs
from kubeletplugin.engine import ClaimEngine
from kubeletplugin.hardware import GpuHardware
from kubeletplugin.metrics import Metrics
from kubeletplugin.publisher import SlicePublisher
from kubeletplugin.store import ClaimRecord, HeldDevice


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
    """Gives the publisher new slices whenever the hardware changes, or a vanished device is let go."""

    def __init__(
        self,
        hardware: GpuHardware,
        engine: ClaimEngine,
        publisher: SlicePublisher,
        metrics: Metrics,
        *,
        node_name: str,
        pool: str,
    ) -> None:
        self._hardware = hardware
        self._engine = engine
        self._publisher = publisher
        self._metrics = metrics
        self._node_name = node_name
        self._pool = pool

    async def run(self) -> None:
        """Never returns. Nothing is published before the hardware and the store are known."""
        await self._hardware.ready.wait()
        await self._engine.restored.wait()
        while True:
            self._hardware.changed.clear()
            self._engine.changed.clear()
            gone = vanished(self._hardware.offered, (await self._engine.records()).values())
            devices = self._devices(gone)
            self._metrics.devices.set(len(devices))
            self._publisher.update(slice_specs(devices, self._node_name, self._pool))
            events = [self._hardware.changed, self._engine.changed] if gone else [self._hardware.changed]
            await _first_of(events)

    def _devices(self, gone: Sequence[HeldDevice]) -> list[dict[str, Any]]:
        current = [self._hardware.published(device) for device in free_of(self._hardware.offered, gone)]
        # What a rebuilt store knows only by name has no attributes, and selectors fail on those without.
        return desired(current, [held.published for held in gone if held.uuid])


async def _first_of(events: Sequence[asyncio.Event]) -> None:
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
