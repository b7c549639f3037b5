"""Partitions of claims: MIG instances made just in time, and gone when the claim is gone.

What is about to be done stands in the claim's record before it is done: a partition without a GPU instance id
is one that may or may not exist, and the hardware is asked which. So a crash at any point is continued, or
undone, from the record alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from driver.devices import Device
from driver.inventory import Gpu, PciAddress
from driver.nvml import Nvml, NvmlError, NvmlUnavailable
from kubeletplugin import migoperations
from kubeletplugin.lanes import LaneTimeout
from kubeletplugin.metrics import Metrics
from kubeletplugin.migoperations import Card, CardGone, ComputeInstance, Instance, MigOperationError
from kubeletplugin.owninstances import is_held, may_be_of_boot
from kubeletplugin.sharers import is_made_for_others, is_share
from kubeletplugin.store import ClaimRecord, HeldDevice
from kubeletplugin.storethread import StoreThread

T = TypeVar("T")

CHANGE_SECONDS = 600.0
"""A change that was begun is waited for, whatever the caller's deadline is: it cannot be called back."""

log = logging.getLogger(__name__)


class MigHardware(Protocol):
    """What changes of MIG need to know of the node."""

    async def on_gpu(self, pci: PciAddress, call: str, function: Callable[[Nvml], T], timeout: float) -> T:
        """Run a blocking function in the lane of the claims on this GPU, one after the other.

        Raises NvmlUnavailable.
        """

    def describe_process(self, pid: int) -> str:
        """What a person knows the process by."""

    def driver_is_gone(self) -> bool:
        """Whether the NVIDIA driver is not loaded, so that no instance can exist."""


class MigChanges:
    """Changes of MIG on a node's GPUs, each timed, for claims that hold the locks of these GPUs."""

    def __init__(self, hardware: MigHardware, metrics: Metrics, boot_id: str) -> None:
        self._hardware = hardware
        self._seconds = metrics.mig_change_seconds
        self._boot_id = boot_id

    async def look(self, pci: PciAddress, call: str, function: Callable[[Nvml], T]) -> T:
        """Read something of a GPU after all changes that were begun before."""
        try:
            return await self._hardware.on_gpu(pci, call, function, CHANGE_SECONDS)
        except NvmlError as error:
            raise MigOperationError("Nvml", f"{call} on GPU {pci} failed: {error}") from error

    async def change(self, change: str, pci: PciAddress, call: str, function: Callable[[Nvml], T]) -> T:
        """Make a change; ``change`` is its kind, as the metric has it."""

        def timed(nvml: Nvml) -> T:
            with self._seconds.labels(change).time():
                return function(nvml)

        return await self.look(pci, call, timed)

    async def set_mode(self, card: Card, enabled: bool, *, patience: float) -> None:
        """Switch MIG mode, see :func:`kubeletplugin.migoperations.set_mode`."""
        await self.change(
            "mode",
            card.pci,
            "change of MIG mode",
            lambda nvml: migoperations.set_mode(
                nvml, card, enabled, self._hardware.describe_process, patience
            ),
        )
        log.info("MIG mode of GPU %s was turned %s", card.pci, "on" if enabled else "off")

    async def create_gpu_instance(self, device: Device, made: Callable[[], None]) -> None:
        """Make the GPU instance of a partition; ``made`` is called in the GPU's lane when it exists."""
        gpu, partition = device.gpu, device.partition
        assert partition is not None

        def create(nvml: Nvml) -> None:
            migoperations.create_gpu_instance(
                nvml,
                Card(gpu.pci, gpu.uuid),
                partition.profile,
                partition.placement,
                gpu.profiles,
                self._hardware.describe_process,
            )
            made()

        await self.change("create-gpu-instance", gpu.pci, f"creation of {device.name}", create)

    async def create_compute_instance(self, device: Device, gpu_instance_id: int) -> ComputeInstance:
        """Make the compute instance that fills the GPU instance of a partition."""
        card = Card(device.gpu.pci, device.gpu.uuid)
        return await self.change(
            "create-compute-instance",
            card.pci,
            f"creation of the compute instance of {device.name}",
            lambda nvml: migoperations.create_compute_instance(nvml, card, gpu_instance_id, device.name),
        )

    async def destroy(self, held: HeldDevice, made: Callable[[], bool] = lambda: True) -> None:
        """Destroy the instance of one held partition, if it is there and is the one that was made.

        ``made`` is asked in the GPU's lane: nothing happens unless the instance was made.

        Raises:
            MigOperationError, NvmlUnavailable, LaneTimeout: repeating is safe.
        """
        if self._hardware.driver_is_gone():
            log.info("%s went with the driver; there is nothing to destroy", held.device)
            return
        card = Card(held.footprint.gpu, held.gpu_uuid)

        def work(nvml: Nvml) -> None:
            found = _instance_at(nvml, held) if made() else None
            if found is None:
                return
            if not is_held(held, found.gpu_instance_id, found.uuids):
                log.warning("%s: what lies in its place is not ours and stays: %s", held.device, found)
                return
            what = f"device {held.device}"
            with self._seconds.labels("destroy").time():
                migoperations.destroy(
                    nvml, card, found.gpu_instance_id, what, self._hardware.describe_process
                )

        try:
            await self.look(card.pci, f"destruction of {held.device}", work)
        except CardGone as error:
            log.info("%s went with its GPU; there is nothing to destroy: %s", held.device, error)

    async def is_there(self, held: HeldDevice) -> bool:
        """Whether the MIG device that a claim holds exists now. Raises as :meth:`destroy`, and CardGone."""
        card = Card(held.footprint.gpu, held.gpu_uuid)
        instance, compute_instance = held.gpu_instance_id, held.compute_instance_id
        if instance is None or compute_instance is None:
            return False
        return await self.look(
            card.pci,
            f"look for {held.device}",
            lambda nvml: migoperations.has_mig_device(nvml, card, instance, compute_instance, held.uuid),
        )

    async def release(self, record: ClaimRecord) -> None:
        """Destroy the partitions of a claim, GPUs at the same time, last made first; put MIG modes back that
        an administrator had turned on and this claim had turned off. One that fails keeps no other.

        Raises:
            MigOperationError, NvmlUnavailable, LaneTimeout: repeating is safe.
        """
        if not may_be_of_boot(record, self._boot_id):
            return
        by_gpu: dict[PciAddress, dict[str, HeldDevice]] = {}
        for held in reversed(record.devices):
            if not held.admin_access and (held.profile_id is not None or held.restore_mig):
                by_gpu.setdefault(held.footprint.gpu, {}).setdefault(held.device, held)

        async def on_one_gpu(devices: Iterable[HeldDevice]) -> None:
            failed: Exception | None = None
            for held in devices:
                try:
                    await (self._restore_mode(held) if held.profile_id is None else self.destroy(held))
                except (MigOperationError, NvmlUnavailable, LaneTimeout) as error:
                    failed = failed or error
            if failed is not None:
                raise failed

        await _all(on_one_gpu(devices.values()) for devices in by_gpu.values())

    async def _restore_mode(self, held: HeldDevice) -> None:
        """Turn MIG mode on again where an administrator had it on. Best effort: nothing hangs on it."""
        card = Card(held.footprint.gpu, held.gpu_uuid)
        try:
            await self.set_mode(card, True, patience=migoperations.IN_USE_SECONDS)
        except (MigOperationError, CardGone, NvmlUnavailable) as error:
            log.warning(
                "MIG mode of GPU %s, on before the claim, could not be turned on again: %s", card.pci, error
            )


@dataclass(slots=True)
class _Attempt:
    """A GPU instance that is made now. ``made`` is set in the GPU's lane, where nothing overtakes it."""

    held: HeldDevice
    made: bool = False

    def succeeded(self) -> None:
        self.made = True

    def is_made(self) -> bool:
        return self.made


class ClaimPartitions:
    """The partitions of one claim while it is prepared: what is made is noted, and can be undone."""

    def __init__(
        self,
        changes: MigChanges,
        store: StoreThread,
        record: ClaimRecord,
        *,
        continued: bool,
        joined: Collection[str] = (),
    ) -> None:
        """``continued``: the record, or its intent, was written in this boot by an earlier attempt.

        ``joined`` are the names of the devices of which other claims hold shares, too.
        """
        self._changes = changes
        self._store = store
        self._continued = continued
        self._joined = joined
        self._attempts: list[_Attempt] = []
        self._switched: list[tuple[Card, bool]] = []
        self.record = record

    async def make(self, devices: Sequence[Device], in_mig_mode: Collection[str]) -> None:
        """Bring every device of the record into being, GPUs at the same time, the devices of one in order.

        ``in_mig_mode`` are the names of those that are whole GPUs and whose MIG mode has to be turned off.

        Raises:
            MigOperationError, CardGone, NvmlUnavailable, LaneTimeout: what was made can be undone.
            StoreError: what was done could not be written down.
        """
        by_gpu: dict[PciAddress, dict[str, int]] = {}
        for position, held in enumerate(self.record.devices):
            if not held.admin_access:
                # Of several shares of one device the first stands for all.
                by_gpu.setdefault(held.footprint.gpu, {}).setdefault(held.device, position)

        async def on_one_gpu(positions: Iterable[int]) -> None:
            for position in positions:
                device = devices[position]
                if device.partition is not None:
                    await self._make_partition(position, device)
                elif device.name in in_mig_mode:
                    await self._turn_mode_off(position, device.gpu)
                elif device.is_whole_gpu and self._continued:
                    await self._forget_mode(device.gpu)

        await _all(on_one_gpu(positions.values()) for positions in by_gpu.values())

    async def undo(self) -> None:
        """Destroy what was made here, last first, and switch MIG modes back. Raises as :meth:`make`."""
        while self._attempts:
            attempt = self._attempts[-1]
            await self._changes.destroy(attempt.held, attempt.is_made)
            self._set(_unmade(attempt.held))
            self._attempts.pop()
        for card, enabled in reversed(self._switched):
            try:
                await self._changes.set_mode(card, not enabled, patience=0.0)
            except (MigOperationError, CardGone) as error:
                if not enabled:
                    raise
                # It is noted as ours, and is turned off when a whole GPU is claimed.
                log.info("MIG mode of GPU %s stays on: %s", card.pci, error)

    async def _make_partition(self, position: int, device: Device) -> None:
        held = self.record.devices[position]
        found = await self._look(device, held)
        if found is None:
            found = await self._create(position, device)
        elif not await self._is_ours(held, found):
            raise MigOperationError("NoRoom", _not_ours(device, found))
        held = replace(self.record.devices[position], gpu_instance_id=found.gpu_instance_id)
        if found.compute_instance is None:
            held = replace(held, compute_instance_id=None, uuid="")
        await self._note(position, held)
        compute_instance = found.compute_instance or await self._changes.create_compute_instance(
            device, found.gpu_instance_id
        )
        self._set(replace(held, compute_instance_id=compute_instance.id, uuid=compute_instance.uuid))

    async def _is_ours(self, held: HeldDevice, found: Instance) -> bool:
        """Whether what lies in a partition's place was made for this claim, or for one that shares it.

        After somebody destroyed an instance that is shared, the next share makes another. So a claim may know
        of the first only.
        """
        is_known = self._continued or held.device in self._joined
        if is_known and is_held(held, found.gpu_instance_id, found.uuids):
            return True
        if not is_share(held):
            return False
        record = self.record
        return await self._store.run(
            lambda store: is_made_for_others(store.claims().values(), record, held, found)
        )

    async def _create(self, position: int, device: Device) -> Instance:
        """Make the GPU instance, and turn MIG mode on before where it is off."""
        gpu, boot_id = device.gpu, self.record.boot_id
        # What an earlier attempt made is gone: its ids must not stand for what is made now.
        held = _unmade(self.record.devices[position])
        await self._note(position, held)
        if not await self._mode(gpu):
            await self._store.run(lambda store: store.note_mig_on(gpu.uuid, boot_id))
            await self._switch(gpu, True)
        attempt = _Attempt(held)
        self._attempts.append(attempt)
        await self._changes.create_gpu_instance(device, attempt.succeeded)
        found = await self._look(device, held)
        if found is None:
            raise MigOperationError(
                "MigCreate", f"device {device.name} was made, and NVML does not list it; trying again is safe"
            )
        attempt.held = replace(held, gpu_instance_id=found.gpu_instance_id)
        return found

    async def _turn_mode_off(self, position: int, gpu: Gpu) -> None:
        boot_id = self.record.boot_id
        ours = await self._store.run(lambda store: store.is_mig_on_ours(gpu.uuid, boot_id))
        await self._note(position, replace(self.record.devices[position], restore_mig=not ours))
        await self._switch(gpu, False, revert=not ours)
        await self._forget_mode(gpu)

    async def _forget_mode(self, gpu: Gpu) -> None:
        """MIG mode is off: who turns it on the next time is not known."""
        await self._store.run(lambda store: store.forget_mig_on(gpu.uuid))

    async def _look(self, device: Device, held: HeldDevice) -> Instance | None:
        return await self._changes.look(
            device.gpu.pci, f"look for {device.name}", lambda nvml: _instance_at(nvml, held)
        )

    async def _mode(self, gpu: Gpu) -> bool:
        return await self._changes.look(
            gpu.pci, "query of MIG mode", lambda nvml: migoperations.is_mode_on(nvml, Card(gpu.pci, gpu.uuid))
        )

    async def _switch(self, gpu: Gpu, enabled: bool, *, revert: bool = True) -> None:
        card = Card(gpu.pci, gpu.uuid)
        if revert:
            # Before it is done: a change that is given up may come to pass, or be pending.
            self._switched.append((card, enabled))
        await self._changes.set_mode(card, enabled, patience=migoperations.IN_USE_SECONDS)

    async def _note(self, position: int, held: HeldDevice) -> None:
        """Write what was done down before the next step."""
        if self.record.devices[position] != held:
            self._set(held)
            record = self.record
            await self._store.run(lambda store: store.put(record))

    def _set(self, held: HeldDevice) -> None:
        """Note what a device is now, for each share that the claim has of it."""
        devices = (
            replace(
                one,
                uuid=held.uuid,
                gpu_instance_id=held.gpu_instance_id,
                compute_instance_id=held.compute_instance_id,
                restore_mig=held.restore_mig,
            )
            if one.device == held.device and not one.admin_access
            else one
            for one in self.record.devices
        )
        self.record = replace(self.record, devices=tuple(devices))


def _instance_at(nvml: Nvml, held: HeldDevice) -> Instance | None:
    """What lies at the placement of a held partition, with its profile."""
    profile_id, placement = held.profile_id, held.footprint.placement
    assert profile_id is not None
    assert placement is not None
    return migoperations.find_instance(nvml, Card(held.footprint.gpu, held.gpu_uuid), profile_id, placement)


def _unmade(held: HeldDevice) -> HeldDevice:
    return replace(held, gpu_instance_id=None, compute_instance_id=None, uuid="")


def _not_ours(device: Device, found: Instance) -> str:
    placement = device.footprint.placement
    start = placement.start if placement else 0
    return (
        f"device {device.name}: GPU instance {found.gpu_instance_id} at {start} of GPU {device.gpu.pci} lies "
        "in its place and was not created by this driver; it can only be destroyed by who made it"
    )


async def _all(works: Iterable[Awaitable[None]]) -> None:
    """Wait for all of them, then raise the first error: nothing goes on behind the caller's back."""
    results = await asyncio.gather(*works, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
