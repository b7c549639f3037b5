"""The time-slice intervals of a node's GPUs: set for claims that ask for one, put back when none does.

What is about to be set stands in the store before it is set, see :class:`driver.timeslicing.NotedInterval`,
and the claim that asks for it stands there before that. So what is noted and no claim asks for is left over,
whatever happened. All of this happens under the GPU's lock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from driver.inventory import PciAddress
from driver.timeslicing import Interval, NotedInterval
from kubeletplugin.gpulocks import GpuLocks
from kubeletplugin.lanes import LaneTimeout
from kubeletplugin.nvidiasmi import NotSupportedByGpu, NvidiaSmiError
from kubeletplugin.store import ClaimRecord, HeldDevice, Store
from kubeletplugin.storethread import StoreThread

_Failure = NvidiaSmiError | LaneTimeout

log = logging.getLogger(__name__)


class TimeSliceError(Exception):
    """An interval could not be set; the text names GPU, interval, command and its answer."""


class TimeSliceHardware(Protocol):
    """What time-slicing needs to know of the node."""

    async def set_interval(self, pci: PciAddress, gpu_uuid: str, interval: Interval, lock: int) -> None:
        """Run ``nvidia-smi`` for a GPU, see :meth:`kubeletplugin.nvidiasmi.NvidiaSmi.set_interval`.

        Raises NvidiaSmiError, LaneTimeout.
        """

    def driver_is_gone(self) -> bool:
        """Whether the NVIDIA driver is not loaded, so that it has forgotten every interval."""


class TimeSlices:
    """Sets and puts back intervals, each only when it is not known to hold already."""

    def __init__(
        self, hardware: TimeSliceHardware, store: StoreThread, locks: GpuLocks, boot_id: str
    ) -> None:
        self._hardware = hardware
        self._store = store
        self._locks = locks
        self._boot_id = boot_id

    def hold_already(self, store: Store, record: ClaimRecord) -> bool:
        """Whether each interval that the claim asks for is known to hold, so that nothing is to be set."""
        return all(self._holds_already(store, held) for held in record.devices if asks(held))

    async def hold(self, record: ClaimRecord) -> None:
        """Give each GPU of a claim the interval that the claim asks for, GPUs at the same time.

        The claim's record, or its intent, is in the store. What it shares a GPU with asks for the same.

        Raises:
            TimeSliceError: one of them cannot be set; :meth:`release` undoes what was.
            StoreError: what was done could not be written down.
        """
        asked = {held.gpu_uuid: held for held in record.devices if asks(held)}
        if not asked:
            return
        todo = await self._store.run(lambda store: self._begin(store, asked.values()))
        if not todo:
            return
        failures = await self._set_all(todo)

        def note(store: Store) -> None:
            for noted, failure in zip(todo, failures, strict=True):
                if failure is None:
                    store.note_interval(replace(noted, holds=True))
                elif isinstance(failure, NotSupportedByGpu):
                    store.forget_interval(noted.gpu_uuid)

        await self._store.run(note)
        for noted, failure in zip(todo, failures, strict=True):
            if failure is not None:
                raise TimeSliceError(_cannot(noted, failure)) from failure
            log.info("GPU %s has the time-slice interval %s", noted.pci, noted.interval)

    async def release(self, record: ClaimRecord) -> None:
        """Put back the interval of each GPU for which, without this claim, nobody asks for one.

        What the tool refuses is a warning, and is tried again by the clean-up: it holds up no pod.

        Raises:
            StoreError: repeating is safe.
        """
        gpus = [held.gpu_uuid for held in record.devices if asks(held)]
        if gpus:
            for problem in await self.put_back(gpus, without=record.claim.uid):
                log.warning("%s; the clean-up tries again", problem)

    async def left_over(self) -> list[NotedInterval]:
        """What is noted of GPUs for which no claim asks for an interval."""
        return await self._store.run(
            lambda store: [
                noted for noted in store.noted_intervals() if not _is_asked_for(store, noted.gpu_uuid)
            ]
        )

    async def put_back(self, gpus: Collection[str], without: str = "") -> list[str]:
        """Put the interval of GPUs (UUIDs) back to the default where no claim but ``without`` asks for one.

        Returns what went wrong, a sentence for each such GPU; these stay noted. Raises StoreError.
        """
        todo = await self._store.run(lambda store: self._begin_to_put_back(store, gpus, without))
        if not todo:
            return []
        failures = await self._set_all(todo)
        done = [noted for noted, failure in zip(todo, failures, strict=True) if failure is None]

        def note(store: Store) -> None:
            for noted in done:
                store.forget_interval(noted.gpu_uuid)

        await self._store.run(note)
        for noted in done:
            log.info("GPU %s has the time-slice interval %s again", noted.pci, noted.interval)
        return [
            _cannot(noted, failure)
            for noted, failure in zip(todo, failures, strict=True)
            if failure is not None
        ]

    def _begin(self, store: Store, asked: Iterable[HeldDevice]) -> list[NotedInterval]:
        """Note what is about to be set: where the interval is not known to hold already."""
        todo = []
        for held in asked:
            if not self._holds_already(store, held):
                assert held.interval is not None
                noted = NotedInterval(
                    held.footprint.gpu, held.gpu_uuid, held.interval, self._boot_id, holds=False
                )
                store.note_interval(noted)
                todo.append(noted)
        return todo

    def _holds_already(self, store: Store, held: HeldDevice) -> bool:
        noted = store.noted_interval(held.gpu_uuid)
        return (
            noted is not None
            and held.interval is not None
            and noted.is_known_to_be(held.interval, self._boot_id)
        )

    def _begin_to_put_back(self, store: Store, gpus: Collection[str], without: str) -> list[NotedInterval]:
        """Note what is about to be put back, and forget what need not be: an interval that went with its
        boot or its driver, and the default, which is there."""
        todo = []
        for gpu in gpus:
            noted = store.noted_interval(gpu)
            if noted is None or _is_asked_for(store, gpu, without):
                continue
            if (
                not noted.may_be_of_boot(self._boot_id)
                or noted.is_known_to_be(Interval.DEFAULT, self._boot_id)
                or self._hardware.driver_is_gone()
            ):
                store.forget_interval(gpu)
                continue
            noted = replace(noted, interval=Interval.DEFAULT, boot_id=self._boot_id, holds=False)
            store.note_interval(noted)
            todo.append(noted)
        return todo

    async def _set_all(self, todo: Sequence[NotedInterval]) -> list[_Failure | None]:
        """Set what is noted, GPUs at the same time; returns for each why it cannot be.

        All are waited for, so that none goes on behind the caller's back.
        """
        results = await asyncio.gather(*(self._set(noted) for noted in todo), return_exceptions=True)
        failures: list[_Failure | None] = []
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, _Failure):
                raise result
            failures.append(result)
        return failures

    async def _set(self, noted: NotedInterval) -> None:
        lock = self._locks.descriptor(str(noted.pci))
        try:
            await self._hardware.set_interval(noted.pci, noted.gpu_uuid, noted.interval, lock)
        except NotSupportedByGpu as error:
            if noted.interval is not Interval.DEFAULT:
                raise
            # A GPU without intervals has the default.
            log.warning("%s; that counts as done", _cannot(noted, error))


def asks(held: HeldDevice) -> bool:
    """Whether a held device asks for an interval of its GPU."""
    return held.interval is not None and not held.admin_access


def _is_asked_for(store: Store, gpu_uuid: str, without: str = "") -> bool:
    return any(
        held.gpu_uuid == gpu_uuid and asks(held)
        for uid, record in store.claims().items()
        if uid != without
        for held in record.devices
    )


def _cannot(noted: NotedInterval, error: Exception) -> str:
    gpu = f"GPU {noted.pci} ({noted.gpu_uuid})"
    return f"the time-slice interval {noted.interval} cannot be set on {gpu}: {error}"
