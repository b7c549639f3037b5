"""Partitions of claims: MIG instances made just in time, and gone when the claim is gone.

What is about to be done stands in the claim's record before it is done: a partition without a GPU instance id
is one that may or may not exist, and the hardware is asked which. So a crash at any point is continued, or
undone, from the record alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from driver.devices import Device
from driver.inventory import Gpu, PciAddress
from driver.nvml import Nvml, NvmlError, NvmlUnavailable
from kubeletplugin import migoperations
from kubeletplugin.migoperations import Card, CardGone, MigOperationError
from kubeletplugin.store import ClaimRecord, HeldDevice
from kubeletplugin.storethread import StoreThread

T = TypeVar("T")

CHANGE_SECONDS = 600.0
"""A change that was begun is waited for, whatever the caller's deadline is: it cannot be called back."""

log = logging.getLogger(__name__)


class MigHardware(Protocol):
    """What changes of MIG need to know of the node."""

    async def on_gpu(self, pci: PciAddress, call: str, function: Callable[[Nvml], T], timeout: float) -> T:
        """Run a blocking function in the lane of the claims on this GPU. Raises NvmlUnavailable."""

    def describe_process(self, pid: int) -> str:
        """What a person knows the process by."""

    def driver_is_gone(self) -> bool:
        """Whether the NVIDIA driver is not loaded, so that no instance can exist."""


class ClaimPartitions:
    """The partitions of one claim while it is prepared: what is made is noted, and can be undone."""

    def __init__(
        self, hardware: MigHardware, store: StoreThread, record: ClaimRecord, *, continued: bool
    ) -> None:
        """``continued``: the record, or its intent, was written in this boot by an earlier attempt."""
        self._hardware = hardware
        self._store = store
        self._continued = continued
        self._made: list[HeldDevice] = []
        self._switched: list[tuple[Gpu, bool]] = []
        self.record = record

    async def make(self, devices: Sequence[Device]) -> None:
        """Bring every device of the record into being, GPUs at the same time, the devices of one in order.

        Raises:
            MigOperationError, NvmlError, NvmlUnavailable, LaneTimeout: see :meth:`undo`.
        """
        by_gpu: dict[PciAddress, list[int]] = {}
        for position, held in enumerate(self.record.devices):
            if not held.admin_access:
                by_gpu.setdefault(held.footprint.gpu, []).append(position)

        async def on_one_gpu(positions: list[int]) -> None:
            for position in positions:
                await self._make(position, devices[position])

        await _all(on_one_gpu(positions) for positions in by_gpu.values())

    async def undo(self) -> None:
        """Destroy what was made here, last first, and switch MIG modes back. Raises as :meth:`make`."""
        while self._made:
            await destroy(self._hardware, self._made[-1])
            self._made.pop()
        for gpu, enabled in reversed(list(self._switched)):
            await self._switch(gpu, not enabled)

    async def _make(self, position: int, device: Device) -> None:
        held = self.record.devices[position]
        if device.partition is not None:
            await self._make_partition(position, device, held)
        elif device.mig is None and device.gpu.resetless_mig:
            await self._make_whole(position, device.gpu, held)

    async def _make_partition(self, position: int, device: Device, held: HeldDevice) -> None:
        gpu, partition, what = device.gpu, device.partition, device.name
        assert partition is not None
        card = Card(gpu.pci, gpu.uuid)
        existing = await self._change(
            gpu,
            f"look for {what}",
            lambda nvml: migoperations.find_gpu_instance(
                nvml, card, partition.profile.id, partition.placement
            ),
        )
        if existing is not None and not self._is_ours(held, existing):
            raise _not_ours(what, existing)
        if existing is None:
            if not await self._mode(gpu):
                await self._store.run(lambda store: store.note_mig_on(gpu.uuid, self.record.boot_id))
                await self._switch(gpu, True)
            existing = await self._change(
                gpu,
                f"creation of {what}",
                lambda nvml: migoperations.create_gpu_instance(
                    nvml,
                    card,
                    partition.profile,
                    partition.placement,
                    gpu.profiles,
                    self._hardware.describe_process,
                ),
            )
            held = replace(held, gpu_instance_id=existing, compute_instance_id=None, uuid="")
            self._made.append(held)
        held = replace(held, gpu_instance_id=existing)
        await self._note(position, held)
        gpu_instance_id = existing
        found = await self._change(
            gpu,
            f"creation of the compute instance of {what}",
            lambda nvml: (
                migoperations.find_compute_instance(nvml, card, gpu_instance_id)
                or migoperations.create_compute_instance(nvml, card, gpu_instance_id, what)
            ),
        )
        if held.uuid not in ("", found.uuid):
            raise _not_ours(what, existing)
        self._set(position, replace(held, compute_instance_id=found.id, uuid=found.uuid))

    def _is_ours(self, held: HeldDevice, existing: int) -> bool:
        return self._continued and held.gpu_instance_id in (None, existing)

    async def _make_whole(self, position: int, gpu: Gpu, held: HeldDevice) -> None:
        """Turn MIG mode off, where it is on for nobody any more."""
        if not await self._mode(gpu):
            return
        boot_id = self.record.boot_id
        ours = await self._store.run(lambda store: store.is_mig_on_ours(gpu.uuid, boot_id))
        await self._note(position, replace(held, restore_mig=not ours))
        await self._switch(gpu, False)
        await self._store.run(lambda store: store.forget_mig_on(gpu.uuid))

    async def _mode(self, gpu: Gpu) -> bool:
        return await self._change(
            gpu, f"MIG mode of {gpu.pci}", lambda nvml: nvml.mig_mode(nvml.device_by_pci(gpu.pci)).current
        )

    async def _switch(self, gpu: Gpu, enabled: bool) -> None:
        log.info("MIG mode of GPU %s is turned %s", gpu.pci, "on" if enabled else "off")
        await self._change(
            gpu,
            f"MIG mode change of {gpu.pci}",
            lambda nvml: migoperations.set_mode(
                nvml, Card(gpu.pci, gpu.uuid), enabled, self._hardware.describe_process
            ),
        )
        self._switched.append((gpu, enabled))

    async def _note(self, position: int, held: HeldDevice) -> None:
        """Write what was done down before the next step."""
        if self.record.devices[position] != held:
            self._set(position, held)
            record = self.record
            await self._store.run(lambda store: store.put(record))

    def _set(self, position: int, held: HeldDevice) -> None:
        devices = list(self.record.devices)
        devices[position] = held
        self.record = replace(self.record, devices=tuple(devices))

    async def _change(self, gpu: Gpu, call: str, function: Callable[[Nvml], T]) -> T:
        return await self._hardware.on_gpu(gpu.pci, call, function, CHANGE_SECONDS)


def _not_ours(what: str, gpu_instance_id: int) -> MigOperationError:
    return MigOperationError(
        "NoRoom",
        f"device {what}: GPU instance {gpu_instance_id} lies at its placement and was not created by this "
        "driver; it can only be destroyed by who made it",
    )


async def release(hardware: MigHardware, record: ClaimRecord, boot_id: str) -> None:
    """Destroy the partitions of a claim, GPUs at the same time, last made first; put MIG modes back that
    an administrator had turned on and this claim had turned off.

    Raises:
        MigOperationError, NvmlError, NvmlUnavailable, LaneTimeout: repeating is safe.
    """
    by_gpu: dict[PciAddress, list[HeldDevice]] = {}
    for held in reversed(record.devices):
        if not held.admin_access:
            by_gpu.setdefault(held.footprint.gpu, []).append(held)

    async def on_one_gpu(devices: list[HeldDevice]) -> None:
        for held in devices:
            if held.profile_id is not None and record.boot_id == boot_id:
                await destroy(hardware, held)
            elif held.restore_mig and record.boot_id == boot_id:
                await _restore_mode(hardware, held)

    await _all(on_one_gpu(devices) for devices in by_gpu.values())


async def destroy(hardware: MigHardware, held: HeldDevice) -> None:
    """Destroy the instance of one held partition, if it is there and is the one that was made.

    Raises:
        MigOperationError, NvmlError, NvmlUnavailable, LaneTimeout: repeating is safe.
    """
    if hardware.driver_is_gone():
        log.info("%s went with the driver; there is nothing to destroy", held.device)
        return
    card = Card(held.footprint.gpu, held.gpu_uuid)
    profile_id, placement = held.profile_id, held.footprint.placement
    assert profile_id is not None
    assert placement is not None

    def work(nvml: Nvml) -> None:
        found = migoperations.find_gpu_instance(nvml, card, profile_id, placement)
        if found is None or held.gpu_instance_id not in (None, found):
            return
        compute_instance = migoperations.find_compute_instance(nvml, card, found)
        if held.uuid and compute_instance is not None and compute_instance.uuid != held.uuid:
            log.warning(
                "%s was replaced by %s, which is not ours and stays", held.uuid, compute_instance.uuid
            )
            return
        migoperations.destroy(nvml, card, found, f"device {held.device}", hardware.describe_process)

    try:
        await hardware.on_gpu(card.pci, f"destruction of {held.device}", work, CHANGE_SECONDS)
    except CardGone as error:
        log.info("%s went with its GPU; there is nothing to destroy: %s", held.device, error)


async def _restore_mode(hardware: MigHardware, held: HeldDevice) -> None:
    """Turn MIG mode on again where an administrator had it on. Best effort: nothing hangs on it."""
    card = Card(held.footprint.gpu, held.gpu_uuid)
    try:
        await hardware.on_gpu(
            card.pci,
            f"MIG mode change of {card.pci}",
            lambda nvml: migoperations.set_mode(nvml, card, True, hardware.describe_process),
            CHANGE_SECONDS,
        )
    except (MigOperationError, CardGone, NvmlError, NvmlUnavailable) as error:
        log.warning(
            "MIG mode of GPU %s, on before the claim, could not be turned on again: %s", card.pci, error
        )


async def _all(works: Iterable[Awaitable[None]]) -> None:
    """Wait for all of them, then raise the first error: nothing goes on behind the caller's back."""
    results = await asyncio.gather(*works, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
