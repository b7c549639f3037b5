"""MIG modes that this driver turned on: which are known as ours, and when they are turned off again.

A plugin that makes partitions leaves MIG mode on when the last of a GPU is gone: the next may come soon. One
that makes none any more, because ``--mig`` was changed, turns off what the one before it left on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Protocol, TypeVar

from driver.inventory import Gpu, Inventory, PciAddress
from driver.migoffer import MigPolicy
from driver.nodepolicy import NodePolicy
from driver.nvml import Nvml, NvmlError, NvmlUnavailable
from kube.conditions import Announce, Condition, Conditions
from kubeletplugin import migoperations
from kubeletplugin.failures import failure
from kubeletplugin.gpulocks import GpuLocks, LockTimeout
from kubeletplugin.lanes import LaneTimeout
from kubeletplugin.metrics import Metrics
from kubeletplugin.migoperations import Card, CardGone, MigOperationError
from kubeletplugin.partitions import MigChanges, MigHardware
from kubeletplugin.store import Store, StoreReplaced
from kubeletplugin.storethread import StoreThread

T = TypeVar("T")

_PERIOD_SECONDS = 20.0
_LOOK_SECONDS = 10.0
_LOCK_SECONDS = 1.0
_PASSING = (MigOperationError, CardGone, LockTimeout, LaneTimeout, NvmlUnavailable)
"""What keeps one GPU as it is until the next look: it is in use, gone, hangs or is being worked on."""

log = logging.getLogger(__name__)


class ModeHardware(MigHardware, Protocol):
    """What is needed to know of the node's GPUs."""

    @property
    def inventory(self) -> Inventory:
        """The last reading."""

    def rescan(self) -> None:
        """Read the hardware again soon."""


class OwnModes:
    """Looks now and then at the GPUs whose MIG mode is noted as ours, each under its lock."""

    def __init__(
        self,
        hardware: ModeHardware,
        store: StoreThread,
        locks: GpuLocks,
        metrics: Metrics,
        announce: Announce,
        *,
        policy: Callable[[], NodePolicy],
        boot_id: str,
    ) -> None:
        self._hardware = hardware
        self._store = store
        self._locks = locks
        self._left = metrics.mig_modes_left
        self._conditions = Conditions(announce)
        self._policy = policy
        self._boot_id = boot_id
        self._mig = MigChanges(hardware, metrics, boot_id)

    async def run(self, unprepared: asyncio.Event) -> None:
        """Look for ever, each 20 s, and when a claim was unprepared that may have been in the way.

        The hardware must have been read, and the store be known to be whole.

        Raises:
            StoreReplaced: the store that this process has is not the node's any more.
        """
        while True:
            unprepared.clear()
            try:
                await self.once()
            except StoreReplaced:
                raise
            except Exception as error:
                log.warning(
                    "the look at MIG modes stopped half way, the next one goes on: %s", failure(error)
                )
            await self._pause(unprepared)

    async def _pause(self, unprepared: asyncio.Event) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PERIOD_SECONDS):
                await unprepared.wait()

    async def once(self) -> None:
        """Look at each GPU whose MIG mode is noted as ours, all at the same time.

        Raises:
            StoreError: who holds what, or whose a mode is, cannot be told or written down.
            OSError: a lock file cannot be made.
        """
        gpus = self._hardware.inventory.gpus
        ours = await self._store.run(
            lambda store: [gpu for gpu in gpus if store.is_mig_on_ours(gpu.uuid, self._boot_id)]
        )
        found = await asyncio.gather(*(self._look_after(gpu) for gpu in ours), return_exceptions=True)
        refused = [error for error in found if isinstance(error, MigOperationError)]
        self._left.set(len(refused))
        self._conditions.stand(Condition("MigModeLeft", str(error)) for error in refused)
        for error in found:
            if isinstance(error, BaseException) and not isinstance(error, _PASSING):
                raise error

    async def _look_after(self, gpu: Gpu) -> None:
        card = Card(gpu.pci, gpu.uuid)
        async with self._locks.hold([str(gpu.pci)], "the look at its MIG mode", _LOCK_SECONDS):
            if not await self._look(card, lambda nvml: migoperations.is_mode_off(nvml, card)):
                wanted = self._policy().of(gpu)
                if wanted.exclude or wanted.mig is MigPolicy.DYNAMIC:
                    return
                if await self._store.run(lambda store: _is_held(store, gpu.pci)):
                    return
                if await self._look(card, lambda nvml: migoperations.has_instances(nvml, card, gpu.profiles)):
                    return
                await self._mig.set_mode(card, False, patience=0.0)
                self._hardware.rescan()
            # Whoever turns it on the next time may be an administrator.
            await self._store.run(lambda store: store.forget_mig_on(gpu.uuid))

    async def _look(self, card: Card, function: Callable[[Nvml], T]) -> T:
        try:
            return await self._hardware.on_gpu(card.pci, "look at MIG mode", function, _LOOK_SECONDS)
        except NvmlError as error:
            raise MigOperationError("Nvml", f"MIG mode of GPU {card.pci} is not known: {error}") from error


def _is_held(store: Store, pci: PciAddress) -> bool:
    return any(
        holding.footprint.gpu == pci and not holding.admin_access
        for record in store.claims().values()
        for holding in record.holdings()
    )
