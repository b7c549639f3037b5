"""The claim engine: carries plans out, so that what a crash leaves can be finished or undone.

The order is always: check everything, write down the intent, act, write down the result, answer. An
unprepare acts first and forgets last, so it can be repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from cdi.claimspec import qualified_name
from cdi.specfolder import SpecFolder
from driver.claim import AllocatedClaim, ClaimError, ClaimReference
from driver.devices import Device
from driver.inventory import Gpu, MigDevice
from driver.names import share_name
from driver.nvml import NvmlUnavailable
from driver.plan import PlannedDevice, PreparePlan, plan_prepare
from driver.presence import DevicePresenceError
from kubeletplugin import intent
from kubeletplugin.claimspecs import ContainerDevice
from kubeletplugin.gpulocks import GpuLocks, LockTimeout
from kubeletplugin.lanes import Lanes, LaneTimeout
from kubeletplugin.metrics import Metrics
from kubeletplugin.migoperations import CardGone, MigOperationError
from kubeletplugin.partitions import ClaimPartitions, MigChanges, MigHardware
from kubeletplugin.sharers import held_alone, is_share
from kubeletplugin.store import ClaimRecord, ClaimState, HeldDevice, Store
from kubeletplugin.storethread import StoreThread
from kubeletplugin.timeslices import TimeSliceHardware, TimeSlices

T = TypeVar("T")

_FILES_LANE = "files"
_FILES_TIMEOUT_SECONDS = 10.0
_MEND_SECONDS = 10.0
MIG_MARK = "-mig-"
"""Part of the name of each device that is a MIG device, and of no other."""

log = logging.getLogger(__name__)


class Hardware(MigHardware, TimeSliceHardware, Protocol):
    """What the engine needs to know of the node's GPUs."""

    async def devices(self, timeout: float) -> Mapping[str, Device]:
        """All devices by name, after the first reading of the hardware. Raises ClaimError without one."""

    def why_not_offered(self, name: str) -> str:
        """Why the device may not be given to a new claim, as the end of a sentence; empty if it may."""

    def published(self, device: Device) -> dict[str, Any]:
        """The device as it stands in a ResourceSlice."""

    async def verify(self, device: Device) -> bool:
        """Ask the hardware whether the device is as the inventory says. Raises what names the difference.

        Returns whether it is a whole GPU whose MIG mode has to be turned off.
        """

    def claim_spec(self, claim_uid: str, devices: Sequence[ContainerDevice]) -> bytes:
        """The claim's CDI spec. Blocking. Raises what names a missing file."""


@dataclass(slots=True)
class _Gate:
    lock: asyncio.Lock
    users: int = 0


class ClaimEngine:
    """Prepares and unprepares claims; any number at the same time, one at a time on each GPU."""

    def __init__(
        self,
        *,
        hardware: Hardware,
        store: StoreThread,
        locks: GpuLocks,
        specs: SpecFolder,
        lanes: Lanes,
        metrics: Metrics,
        pool: str,
        boot_id: str,
    ) -> None:
        self._hardware = hardware
        self._store = store
        self._locks = locks
        self._specs = specs
        self._lanes = lanes
        self._metrics = metrics
        self._pool = pool
        self._boot_id = boot_id
        self._mig = MigChanges(hardware, metrics, boot_id)
        self._timeslices = TimeSlices(hardware, store, locks, boot_id)
        self._gates: dict[str, _Gate] = {}
        self.changed = asyncio.Event()
        """Set when a claim was prepared or unprepared; whoever publishes clears it."""
        self.unprepared = asyncio.Event()
        """Set when a claim was unprepared; whoever looks at what it leaves clears it."""
        self.restored = asyncio.Event()
        """Set when the store holds all that is prepared on this node; nothing is prepared before."""
        self.obstacle = ""
        """What stands in the way of that; then a Prepare does not wait for it."""

    async def prepare(self, claim: AllocatedClaim, asked_at: float, timeout: float) -> ClaimRecord:
        """Make the claim's devices ready; repeated, check and mend them. Durable when this returns.

        Args:
            claim: the claim as the API server had it after ``asked_at``.
            asked_at: when the kubelet asked, in :func:`kubeletplugin.store.boot_seconds`.
            timeout: seconds until the answer is due.

        Raises:
            ClaimError: the claim cannot be prepared.
            Exception: see :mod:`kubeletplugin.failures`; what was begun is undone.
        """
        deadline = time.monotonic() + timeout
        reference = claim.reference
        plan = plan_prepare(claim, await self._hardware.devices(timeout), self._pool)
        await self._wait_restored(reference, deadline - time.monotonic())
        async with self._gate(reference.uid):
            before = await self._record(reference.uid)
            gpus = {*plan.gpus, *(before.gpus if before is not None else ())}
            with self._timed("lock-wait"):
                holding = await self._enter(gpus, reference, deadline - time.monotonic())
            async with holding:
                if before is not None:
                    await self._let_go(before, plan)
                return await self._prepare_locked(plan, asked_at)

    async def unprepare(self, reference: ClaimReference, timeout: float) -> ClaimRecord | None:
        """Undo what prepare did; returns what was forgotten, ``None`` if the claim was not prepared here.

        Raises:
            ClaimError: it has MIG devices, and whether to destroy them is not known yet.
            LockTimeout: another claim's work on the same GPU takes too long.
            MigOperationError, NvmlError, NvmlUnavailable: a partition cannot be destroyed now.
            SpecFolderError, StoreError: repeating is safe.
        """
        deadline = time.monotonic() + timeout
        uid = reference.uid
        if uid in self._gates:
            await self._store.run(lambda store: store.remember_unprepared(uid))
        async with self._gate(uid):
            record = await self._record(uid)
            await self._check_told(reference, record)
            gpus = () if record is None else record.gpus
            async with await self._enter(gpus, reference, deadline - time.monotonic()):
                if record is not None:
                    await self._release(record, record.devices)
                    await self._timeslices.release(record)
                await self._files(f"remove the CDI spec of {uid}", lambda: self._specs.remove(uid))
                await self._store.run(lambda store: _forget(store, uid))
        self.changed.set()
        self.unprepared.set()
        return record

    async def records(self) -> dict[str, ClaimRecord]:
        """All claims in the store by UID."""
        return await self._store.run(lambda store: dict(store.claims()))

    async def _record(self, uid: str) -> ClaimRecord | None:
        return await self._store.run(lambda store: store.claims().get(uid))

    async def sweep(self) -> list[str]:
        """Remove CDI specs of ours that no claim in the store has; returns the file names.

        Only when the store is known to have all that is prepared, see :attr:`restored`: nothing else tells a
        spec that a container uses from one that is left over.
        """
        if not self.restored.is_set():
            return []
        found = await self._files("list the CDI folder", self._specs.claim_uids)
        known = set(await self.records())
        return await self._files("sweep the CDI folder", lambda: self._specs.sweep(known, among=found))

    async def vanished(self) -> list[tuple[ClaimRecord, list[HeldDevice]]]:
        """The prepared claims of this boot whose MIG devices were destroyed behind their back, and which.

        What the last reading of the hardware does not show is looked for once more, under the GPU's lock.
        """
        known = await self._hardware.devices(_MEND_SECONDS)
        gpus = {device.gpu.pci: device.gpu for device in known.values()}
        found = []
        for record in (await self.records()).values():
            if any(_is_missing(held, gpus.get(held.footprint.gpu)) for held in self._in_use(record)):
                gone = await self._vanished(record.claim)
                found += [gone] if gone is not None else []
        return found

    async def _vanished(self, reference: ClaimReference) -> tuple[ClaimRecord, list[HeldDevice]] | None:
        async with self._gate(reference.uid):
            record = await self._record(reference.uid)
            if record is None:
                return None
            try:
                async with await self._enter(record.gpus, reference, _MEND_SECONDS):
                    gone = [held for held in self._in_use(record) if not await self._mig.is_there(held)]
            except (CardGone, MigOperationError, NvmlUnavailable, LaneTimeout, LockTimeout) as error:
                log.info("whether claim %s still has its MIG devices cannot be told: %s", reference, error)
                return None
        return (record, gone) if gone else None

    def _in_use(self, record: ClaimRecord) -> list[HeldDevice]:
        """The MIG devices that a prepared claim was given in this boot."""
        if record.state is not ClaimState.PREPARED or record.boot_id != self._boot_id:
            return []
        return [held for held in record.devices if held.gpu_instance_id is not None and not held.admin_access]

    async def put_back_intervals(self) -> list[str]:
        """Put back time-slice intervals that no claim asks for any more; returns what went wrong.

        A GPU that is not there now is passed over.
        """
        left_over = await self._timeslices.left_over()
        if not left_over:
            return []
        known = await self._hardware.devices(_MEND_SECONDS)
        present = {device.gpu.uuid for device in known.values()}
        problems = []
        for noted in left_over:
            if noted.gpu_uuid not in present:
                continue
            try:
                gpu, holder = [str(noted.pci)], "putting its time-slice interval back"
                async with self._locks.hold(gpu, holder, _MEND_SECONDS):
                    problems += await self._timeslices.put_back([noted.gpu_uuid])
            except LockTimeout as error:
                problems.append(f"a time-slice interval that was left over is not put back yet: {error}")
        return problems

    async def mend(self) -> list[ClaimReference]:
        """Write CDI specs again that prepared claims have lost; returns whose.

        A container that is started again inside its pod uses its spec without a Prepare.
        """
        present = await self._files("list the CDI folder", self._specs.claim_uids)
        lost = [
            record
            for uid, record in (await self.records()).items()
            if uid not in present and record.state is ClaimState.PREPARED and record.boot_id == self._boot_id
        ]
        mended = []
        for record in lost:
            try:
                mended += [record.claim] if await self._mend(record) else []
            except Exception as error:
                log.warning("the CDI spec of claim %s cannot be written again: %s", record.claim, error)
        return mended

    async def _mend(self, record: ClaimRecord) -> bool:
        uid = record.claim.uid
        known = await self._hardware.devices(_MEND_SECONDS)
        devices = [
            ContainerDevice.of(device, held)
            for held in record.devices
            if (device := known.get(held.device)) is not None
            and (device.partition is not None or device.uuid == held.uuid)
        ]
        async with self._gate(uid), await self._enter(record.gpus, record.claim, _MEND_SECONDS):
            if len(devices) != len(record.devices) or await self._record(uid) is None:
                return False
            await self._write(record.claim, await self._make_spec(record.claim, devices))
        return True

    async def _wait_restored(self, reference: ClaimReference, timeout: float) -> None:
        if not self.obstacle:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self.restored.wait()
        if not self.restored.is_set():
            raise self._not_ready(reference, "what is prepared on this node")

    async def _check_told(self, reference: ClaimReference, record: ClaimRecord | None) -> None:
        """Refuse to forget MIG devices as long as it is not known whether they were made for the claim."""
        if self.restored.is_set() or (record is not None and record.claim.name):
            return
        uid = reference.uid
        spec = await self._files(f"read the CDI spec of {uid}", lambda: self._specs.read(uid))
        with contextlib.suppress(ValueError):
            if any(MIG_MARK in name for name in spec_devices(uid, spec)):
                raise self._not_ready(reference, "whether its MIG devices are to be destroyed")

    def _not_ready(self, reference: ClaimReference, what: str) -> ClaimError:
        why = self.obstacle or "the store is being rebuilt"
        return ClaimError(
            "NotReady", f"claim {reference}: {what} is not known yet: {why}; trying again is safe"
        )

    async def _let_go(self, before: ClaimRecord, plan: PreparePlan) -> None:
        """Undo what the claim had when it was allocated otherwise, before the record of it is replaced."""
        wanted = {item.device.name for item in plan.devices}
        had = tuple(held for held in before.devices if held.device not in wanted)
        await self._release(before, had)
        asked = {item.device.gpu.uuid for item in plan.devices if item.interval is not None}
        no_more = tuple(held for held in before.devices if held.gpu_uuid not in asked)
        await self._timeslices.release(replace(before, devices=no_more))

    async def _release(self, record: ClaimRecord, devices: tuple[HeldDevice, ...]) -> None:
        """Undo what was done for some of a claim's devices, but not for what others share with it."""
        mine = replace(record, devices=devices)
        if any(is_share(held) for held in devices):
            held = mine
            mine = await self._store.run(lambda store: held_alone(store.claims(), held))
        await self._mig.release(mine)

    async def _prepare_locked(self, plan: PreparePlan, asked_at: float) -> ClaimRecord:
        reference = plan.claim.reference
        wanted = ClaimRecord(
            reference,
            ClaimState.PREPARING,
            self._boot_id,
            time.time(),
            tuple(self._held(reference.uid, item) for item in plan.devices),
        )
        with self._timed("presence"):
            try:
                in_mig_mode, spec = await self._look_and_make_spec(plan, wanted)
            except DevicePresenceError:
                # What another claim has made of the device says more than how the device looks now.
                await self._store.run(lambda store: intent.check_held(store, plan))
                raise
        with self._timed("intent"):
            begun, intervals_hold = await self._store.run(
                lambda store: (
                    intent.begin(store, plan, wanted, asked_at, self._hardware.why_not_offered),
                    self._timeslices.hold_already(store, wanted),
                )
            )
        before = begun.before
        partitions = ClaimPartitions(
            self._mig, self._store, begun.record, continued=begun.continued, joined=begun.joined
        )
        try:
            with self._timed("devices"):
                await partitions.make([item.device for item in plan.devices], in_mig_mode)
                if not intervals_hold:
                    await self._timeslices.hold(partitions.record)
            if spec is None:
                spec = await self._make_spec(reference, _injected(plan, partitions.record))
            with self._timed("cdi-write"):
                await self._write(reference, spec)
            done = replace(partitions.record, state=ClaimState.PREPARED)
            if before is None or not _same(before, done):
                with self._timed("commit"):
                    await self._store.run(lambda store: store.put(done))
        except BaseException:
            await asyncio.shield(self._undo(partitions, begun.record, forget=before is None))
            raise
        self.changed.set()
        return done

    async def _undo(self, partitions: ClaimPartitions, begun: ClaimRecord, *, forget: bool) -> None:
        """Undo what this attempt did; the claim is forgotten only when nothing of it is left."""
        reference = begun.claim
        try:
            await partitions.undo()
            if forget:
                await self._timeslices.release(begun)
                await self._files(
                    f"remove the CDI spec of {reference.uid}", lambda: self._specs.remove(reference.uid)
                )
                await self._store.run(lambda store: intent.forget(store, partitions.record))
            elif partitions.record != begun:
                await self._store.run(lambda store: store.put(partitions.record))
        except Exception as error:
            log.error("claim %s stays half prepared, the next attempt mends it: %s", reference, error)

    async def _look_and_make_spec(
        self, plan: PreparePlan, wanted: ClaimRecord
    ) -> tuple[set[str], bytes | None]:
        """Ask the hardware for what exists, and meanwhile make the CDI spec; both only read.

        Returns the names of the whole GPUs whose MIG mode has to be turned off, and the spec; ``None`` where
        a partition is among the devices, whose part of the spec is known when it is made.
        """
        existing = [item for item in plan.devices if item.device.partition is None]
        checked = list({item.device.name: item.device for item in existing if not item.admin_access}.values())
        works: list[Awaitable[bool | bytes]] = [self._hardware.verify(device) for device in checked]
        if len(existing) == len(plan.devices):
            works.append(self._make_spec(wanted.claim, _injected(plan, wanted)))
        # All are waited for, so that none goes on behind a claim that has failed.
        results = await asyncio.gather(*works, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        modes = zip(checked, results[: len(checked)], strict=True)
        in_mig_mode = {device.name for device, is_on in modes if is_on}
        return in_mig_mode, next((result for result in results if isinstance(result, bytes)), None)

    async def _make_spec(self, reference: ClaimReference, devices: Sequence[ContainerDevice]) -> bytes:
        return await self._files(
            f"make the CDI spec of {reference}", lambda: self._hardware.claim_spec(reference.uid, devices)
        )

    async def _write(self, reference: ClaimReference, spec: bytes) -> None:
        def write() -> None:
            if self._specs.read(reference.uid) != spec:
                self._specs.write(reference.uid, spec)

        await self._files(f"write the CDI spec of {reference}", write)

    def _held(self, claim_uid: str, item: PlannedDevice) -> HeldDevice:
        device = item.device
        existing = _seen(device) if item.admin_access else device.mig
        return HeldDevice(
            requests=item.requests,
            pool=item.pool,
            device=device.name,
            cdi_device=qualified_name(claim_uid, share_name(device.name, item.share_id)),
            uuid=existing.uuid if existing else device.uuid,
            gpu_uuid=device.gpu.uuid,
            footprint=device.footprint,
            published=self._hardware.published(device),
            admin_access=item.admin_access,
            share_id=item.share_id,
            gpu_instance_id=existing.gpu_instance_id if existing else None,
            compute_instance_id=existing.compute_instance_id if existing else None,
            profile_id=device.partition.profile.id if device.partition else None,
            memory_bytes=item.memory_bytes,
            interval=item.interval,
        )

    async def _files(self, call: str, function: Callable[[], T]) -> T:
        return await self._lanes.run(_FILES_LANE, call, function, _FILES_TIMEOUT_SECONDS)

    async def _enter(
        self, gpus: Collection[object], reference: ClaimReference, timeout: float
    ) -> contextlib.AsyncExitStack:
        """Take the locks now; the stack that is returned lets go of them."""
        async with contextlib.AsyncExitStack() as stack:
            names = [str(gpu) for gpu in gpus]
            await stack.enter_async_context(self._locks.hold(names, f"claim {reference}", timeout))
            return stack.pop_all()

    @contextlib.asynccontextmanager
    async def _gate(self, uid: str) -> AsyncIterator[None]:
        gate = self._gates.setdefault(uid, _Gate(asyncio.Lock()))
        gate.users += 1
        try:
            async with gate.lock:
                yield
        finally:
            gate.users -= 1
            if gate.users == 0:
                del self._gates[uid]

    def _timed(self, step: str) -> contextlib.AbstractContextManager[object]:
        return self._metrics.step_seconds.labels(step).time()


def spec_devices(claim_uid: str, spec: bytes | None) -> list[str]:
    """The devices that a claim's CDI spec has, by the names that the claim has for them.

    These are those in ResourceSlices, or those of shares, see :func:`driver.names.share_name`.

    Raises:
        ValueError: it is none that a runtime could read.
    """
    try:
        devices = json.loads(spec or b"{}")["devices"]
        return [str(entry["name"]).removeprefix(f"{claim_uid}-") for entry in devices]
    except (LookupError, TypeError, RecursionError) as error:
        raise ValueError(f"it has no list of devices: {error!r}") from error


def _seen(device: Device) -> MigDevice | None:
    """The MIG device that a device is now: of a partition, what was there when the hardware was read."""
    partition = device.partition
    if partition is None:
        return device.mig
    ids = {
        instance.id
        for instance in device.gpu.gpu_instances or ()
        if (instance.profile_id, instance.placement) == (partition.profile.id, partition.placement)
    }
    return next((mig for mig in device.gpu.mig_devices if mig.gpu_instance_id in ids), None)


def _is_missing(held: HeldDevice, gpu: Gpu | None) -> bool:
    """Whether a reading of its GPU does not show a held MIG device."""
    if gpu is None or gpu.uuid != held.gpu_uuid:
        return False
    return held.uuid not in {mig.uuid for mig in gpu.mig_devices}


def _injected(plan: PreparePlan, record: ClaimRecord) -> list[ContainerDevice]:
    """What a container gets: the plan's devices, as the instances that the record has for them."""
    return [
        ContainerDevice.of(item.device, held) for item, held in zip(plan.devices, record.devices, strict=True)
    ]


def _same(before: ClaimRecord, done: ClaimRecord) -> bool:
    return (before.state, before.boot_id, before.devices) == (done.state, done.boot_id, done.devices)


def _forget(store: Store, uid: str) -> None:
    record = store.claims().get(uid)
    if record is not None:
        intent.forget(store, record)
    store.remember_unprepared(uid)
