"""The node's hardware: NVML kept open, read again and again, and asked before each claim.

Readings run in lanes, so a GPU that answers slowly or not at all delays only itself. What is not answered in
time keeps its last reading, or, without one, is named as unreadable.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from cdi.driverroot import DriverRoot, DriverRootError
from driver.claim import ClaimError
from driver.devices import Device, OwnInstances, offered_devices
from driver.discovery import GpuReading, NodeReading, assemble, read_gpu, read_node
from driver.hostfiles import HostRoots
from driver.inventory import Gpu, Inventory, PciAddress, UnreadableField, UnreadableGpu
from driver.migoffer import MigOffer, MigPolicy, mig_offer
from driver.names import gpu_of
from driver.nodepolicy import NODE_POLICY, NodePolicy, RequestedPolicy
from driver.nvml import Code, Nvml, NvmlError, NvmlUnavailable
from driver.presence import DevicePresenceError, verify
from driver.resourceslices import published
from driver.shares import EVERY_MODE, ShareMode
from driver.timeslicing import Interval
from kube.conditions import Announce, Condition, Conditions, nobody
from kubeletplugin.claimspecs import ClaimSpecs, ContainerDevice
from kubeletplugin.conditions import of_inventory
from kubeletplugin.lanes import NODE_LANE, Busy, Lanes, LaneTimeout
from kubeletplugin.metrics import Metrics
from kubeletplugin.nodeview import NodeView, node_view
from kubeletplugin.nvidiasmi import KILL_SECONDS, NvidiaSmi, NvidiaSmiError
from kubeletplugin.nvmlsession import NvmlSession
from kubeletplugin.owninstances import merged, own_instances, strangers
from kubeletplugin.settings import Settings
from kubeletplugin.store import ClaimRecord, StoreError, StoreReplaced

T = TypeVar("T")

_SLOWEST_READING_SECONDS = 3600.0
_LONGEST_SMI_SECONDS = 10.0
"""A run that hangs and one to undo it end before the kubelet stops to wait."""
_MOST_READINGS = 3
_FIRST_RETRY_SECONDS = 1.0
_FIRST_REOPEN_SECONDS = 300.0
_LONGEST_REOPEN_SECONDS = 3600.0

log = logging.getLogger(__name__)


Records = Callable[[], Awaitable[Collection[ClaimRecord]]]
"""The claims in the store now."""


async def no_records() -> Collection[ClaimRecord]:
    """Where nothing is prepared."""
    return ()


class GpuHardware:
    """Discovery over time. ``changed`` is set when the inventory changed; whoever publishes clears it."""

    def __init__(
        self,
        settings: Settings,
        lanes: Lanes,
        metrics: Metrics,
        announce: Announce = nobody,
        records: Records = no_records,
    ) -> None:
        self._settings = settings
        self._conditions = Conditions(announce)
        self._lanes = lanes
        self._metrics = metrics
        self._roots = HostRoots(settings.proc_root, settings.sys_root)
        self._boot_id = self._read_boot_id()
        self._driver_root = DriverRoot(settings.driver_root, settings.host_driver_root)
        self._claim_specs = ClaimSpecs(settings, self._driver_root)
        self._session = NvmlSession(self._driver_root, settings.nvml_timeout_seconds)
        self._smi_timeout = min(settings.nvml_timeout_seconds, _LONGEST_SMI_SECONDS)
        self._smi = NvidiaSmi(self._driver_root, metrics, self._smi_timeout)
        self._records = records
        self._policy = settings.policy
        self._counters = True
        self._shares = True
        self._counted: Collection[ShareMode] = EVERY_MODE
        self._view = NodeView()
        self._readings: dict[int, asyncio.Task[GpuReading | UnreadableGpu]] = {}
        self._last: dict[int, GpuReading] = {}
        self._node_reading: asyncio.Task[NodeReading] | None = None
        self._unreadable_fields: set[UnreadableField] = set()
        self._hanging_gpus: set[int] = set()
        self._reopened_for: tuple[PciAddress, ...] = ()
        self._reopen_after = 0.0
        self._reopen_pause = _FIRST_REOPEN_SECONDS
        self._rescan = asyncio.Event()
        self.ready = asyncio.Event()
        self.requests_known = asyncio.Event()
        self.changed = asyncio.Event()
        self.unavailable = "the hardware has not been read yet"
        """Why there is no current reading; empty when there is one."""

    @property
    def view(self) -> NodeView:
        """What follows from the last reading and the policy."""
        return self._view

    @property
    def inventory(self) -> Inventory:
        return self._view.inventory

    @property
    def offered(self) -> tuple[Device, ...]:
        """The devices to publish, in order."""
        return self._view.offered

    @property
    def own_instances(self) -> OwnInstances:
        """The GPU instances that claims of this node held when the hardware was read."""
        return self._view.own_instances

    @property
    def counts(self) -> bool:
        """Whether any GPU would offer partitions if the API server stores counters."""
        return any(
            self._offer(gpu, self.own_instances).way.offers_partitions
            for gpu in self.inventory.gpus
            if not self._policy.excludes(gpu)
        )

    @property
    def policy(self) -> NodePolicy:
        """What the administrator wants of each GPU."""
        return self._policy

    def apply(self, policy: NodePolicy) -> None:
        """Offer the GPUs as another policy wants it; what is requested of them stays."""
        self._apply(replace(policy, requested=self._policy.requested))

    def apply_requested(self, requested: Mapping[str, RequestedPolicy]) -> None:
        """Offer the GPUs, by their UUIDs, as partition requests want it; before the first time none is."""
        self.requests_known.set()
        if requested != self._policy.requested:
            self._apply(replace(self._policy, requested=requested))

    def _apply(self, policy: NodePolicy) -> None:
        self._policy = policy
        if self.ready.is_set():
            self._derive(self._view.inventory, self._view.own_instances)
            self.changed.set()
        self.rescan()

    @property
    def uncounted(self) -> frozenset[ShareMode]:
        """In which ways the policy wants devices shared, but the scheduler does not count them right."""
        return self._view.uncounted

    def offer(
        self,
        own: OwnInstances,
        *,
        counters: bool,
        shares: bool,
        counted: Collection[ShareMode] = EVERY_MODE,
    ) -> None:
        """Offer anew: ``own`` are instances that are ours too; counters and shares the API server stores.

        ``counted`` are the modes in which a device that takes from counters may be shared.
        """
        self._counters, self._shares, self._counted = counters, shares, counted
        self._derive(self._view.inventory, merged(self._view.own_instances, own))

    def boot_id(self) -> str:
        """The kernel's boot id when this process started, empty if it cannot be read."""
        return self._boot_id

    def _read_boot_id(self) -> str:
        try:
            return self._roots.boot_id()
        except OSError as error:
            log.warning("the boot id cannot be read: %s", error)
            return ""

    async def devices(self, timeout: float) -> Mapping[str, Device]:
        try:
            async with asyncio.timeout(timeout):
                await self.ready.wait()
                await self.requests_known.wait()
        except TimeoutError:
            why = self.unavailable or "the API server has not told what partition requests want of them"
            raise ClaimError("NotReady", f"the node's GPUs are not known yet: {why}") from None
        return self._view.devices

    def why_not_offered(self, name: str) -> str:
        return self._view.why_not_offered(name)

    def hidden_by_policy(self, names: Collection[str]) -> set[str]:
        """Those of some devices that are not offered, and would be if the node had no policy."""
        view = self._view
        missing = set(names) - view.offered_names
        if not missing:
            return missing
        every = offered_devices(
            view.inventory,
            NodePolicy(),
            view.own_instances,
            counters=self._counters,
            shares=self._shares,
        )
        return missing & {device.name for device in every}

    def policy_of(self, name: str) -> str:
        """Who says what is offered of the GPU of a device, as the beginning of a sentence."""
        pci = gpu_of(name)
        sources = (self._policy.of(gpu).source for gpu in self.inventory.gpus if gpu.pci == pci)
        return next(sources, NODE_POLICY)

    def published(self, device: Device) -> dict[str, Any]:
        return published(device, self._view.inventory)

    async def on_gpu(self, pci: PciAddress, call: str, function: Callable[[Nvml], T], timeout: float) -> T:
        """Run a blocking function of NVML in the lane that the GPU's claims have.

        Raises:
            NvmlUnavailable: there is no NVML now.
            LaneTimeout: no answer within ``timeout`` seconds.
        """
        if self._session.current is None and self.unavailable:
            raise NvmlUnavailable(f"{call} is not possible: {self.unavailable}")

        def work() -> T:
            with self._session.use() as nvml:
                return function(nvml)

        return await self._lanes.run(_claims_lane(pci), call, work, timeout)

    async def set_interval(self, pci: PciAddress, gpu_uuid: str, interval: Interval, lock: int) -> None:
        """Run ``nvidia-smi`` in the lane that the GPU's claims have; needs no NVML.

        Raises:
            NvidiaSmiError: see :meth:`kubeletplugin.nvidiasmi.NvidiaSmi.set_interval`; also when its turn in
                the lane comes too late, and then it is not run.
            LaneTimeout: what is before it in the lane does not end.
        """
        call = f"nvidia-smi for the time-slice of GPU {pci}"
        too_late = time.monotonic() + self._smi_timeout

        def work() -> None:
            if time.monotonic() > too_late:
                raise NvidiaSmiError(f"{call} came too late behind other calls and was not run")
            self._smi.set_interval(gpu_uuid, interval, lock)

        # Long enough for a run that begins at the last moment and must be killed.
        await self._lanes.run(_claims_lane(pci), call, work, 2 * self._smi_timeout + KILL_SECONDS + 1.0)

    def describe_process(self, pid: int) -> str:
        return self._roots.process(pid)

    def driver_is_gone(self) -> bool:
        return self._session.current is None and "DRIVER_NOT_LOADED" in self.unavailable

    async def verify(self, device: Device) -> bool:
        try:
            return await self.on_gpu(
                device.gpu.pci,
                f"check of {device.name}",
                lambda nvml: verify(nvml, device),
                self._settings.nvml_timeout_seconds,
            )
        except DevicePresenceError:
            self.rescan()
            raise

    def claim_spec(self, claim_uid: str, devices: Sequence[ContainerDevice]) -> bytes:
        return self._claim_specs.build(claim_uid, devices, self._view.inventory.driver_version)

    def rescan(self) -> None:
        """Read the hardware again at once: something was done to it."""
        self._rescan.set()

    async def run(self) -> None:
        """Read the hardware for ever, every ``rescan_seconds`` and when :meth:`rescan` says so."""
        pause = _FIRST_RETRY_SECONDS
        while True:
            self._rescan.clear()
            if await self.read_once():
                pause = self._settings.rescan_seconds
            else:
                pause = min(2 * pause, self._settings.rescan_seconds)
            try:
                async with asyncio.timeout(pause):
                    await self._rescan.wait()
            except TimeoutError:
                continue

    async def read_once(self) -> bool:
        """Read everything once; false if the driver does not answer (``unavailable`` says why)."""
        started = time.monotonic()
        try:
            node, readings, own = await self._read_with_owners()
        except StoreReplaced:
            raise
        except StoreError as error:
            log.warning("the hardware is not read, whose its MIG instances are is not known: %s", error)
            if not self.ready.is_set():
                self.unavailable = str(error)
            return False
        except (NvmlUnavailable, NvmlError, DriverRootError, LaneTimeout) as error:
            self._metrics.discovery_errors.inc()
            if self._node_has_no_gpu() and isinstance(error, NvmlUnavailable | DriverRootError):
                looked = self._settings.sys_root / "bus/pci/devices"
                text = f"this node has no NVIDIA GPU, {looked} shows none; waiting for one"
                self._accept(Inventory(), {})
                self._conditions.stand([Condition("NoGpu", text)])
                return True
            self.unavailable = str(error)
            self._conditions.stand(
                [Condition("GpusUnavailable", f"the GPUs cannot be read: {self.unavailable}")]
            )
            return False
        self._metrics.discovery_seconds.observe(time.monotonic() - started)
        readings = [self._as_the_policy_wants(reading) for reading in readings]
        gpus = _gpus(readings)
        whole = [gpu.pci for gpu in gpus if self._offer(gpu, own).way.offers_whole_gpu]
        inventory = assemble(node, readings, whole)
        self._accept(inventory, own)
        self._conditions.stand(self._problems())
        return True

    def _problems(self) -> list[Condition]:
        view = self._view
        of_policy = [Condition("LayoutImpossible", problem) for problem in view.layout_problems]
        of_policy += [Condition("PolicyWithoutEffect", problem) for problem in view.without_effect]
        return of_inventory(view.inventory, view.without_devices) + of_policy

    async def _read_with_owners(
        self,
    ) -> tuple[NodeReading, list[GpuReading | UnreadableGpu], OwnInstances]:
        """The hardware, and which instances on it are ours.

        Whoever held an instance while it was read is in the store before or after; but a claim that came and
        went in between is in neither, so an instance of nobody is believed when it is there a second time.
        """
        known = strangers(self._view.inventory.gpus, self._view.own_instances)
        for _ in range(_MOST_READINGS):
            before = await self._records()
            node, readings = await self._read()
            after = await self._records()
            gpus = _gpus(readings)
            own = merged(*(own_instances(records, gpus, self._boot_id) for records in (before, after)))
            seen = strangers(gpus, own)
            # Before the first reading no claim is prepared.
            if seen <= known or not self.ready.is_set():
                break
            known = seen
        return node, readings, own

    def _node_has_no_gpu(self) -> bool:
        return not self._roots.nvidia_display_functions()

    def _offer(self, gpu: Gpu, own: OwnInstances) -> MigOffer:
        return mig_offer(gpu, own.get(gpu.pci, frozenset()), self._policy.of(gpu).mig, counters=True)

    def _as_the_policy_wants(self, reading: GpuReading | UnreadableGpu) -> GpuReading | UnreadableGpu:
        """The reading, without what makes MIG mode easy to change where it is not for us to change."""
        if isinstance(reading, UnreadableGpu) or self._policy.of(reading.gpu).mig is MigPolicy.DYNAMIC:
            return reading
        return replace(reading, gpu=replace(reading.gpu, resetless_mig=False))

    async def _read(self) -> tuple[NodeReading, list[GpuReading | UnreadableGpu]]:
        node = await self._read_node()
        begun = []
        for index in range(node.gpu_count):
            if index not in self._readings:
                self._readings[index] = asyncio.create_task(self._read_gpu(index))
                begun.append(self._readings[index])
        if begun:
            await asyncio.wait(begun, timeout=self._settings.nvml_timeout_seconds)
        answered = {index: self._taken(index) for index in range(node.gpu_count)}
        present = {reading.gpu.pci for reading in answered.values() if isinstance(reading, GpuReading)}
        readings = [
            self._earlier(index, present) if reading is None else reading
            for index, reading in answered.items()
        ]
        return node, readings

    async def _read_node(self) -> NodeReading:
        if self._node_reading is None:
            self._node_reading = asyncio.create_task(
                self._lanes.run(
                    NODE_LANE, "NVML start and node query", self._open_and_read, _SLOWEST_READING_SECONDS
                )
            )
        done, _ = await asyncio.wait([self._node_reading], timeout=self._settings.nvml_timeout_seconds)
        if not done:
            busy = self._busy(NODE_LANE)
            raise LaneTimeout(
                f"{busy or 'NVML'} has not answered within {self._settings.nvml_timeout_seconds:g} s"
            )
        task, self._node_reading = self._node_reading, None
        return task.result()

    def _open_and_read(self) -> NodeReading:
        nvml = self._session.open()
        try:
            node = read_node(nvml, self._roots)
        except NvmlError as error:
            if error.code in (Code.UNINITIALIZED, Code.DRIVER_NOT_LOADED, Code.LIB_RM_VERSION_MISMATCH):
                self._reopen()
            raise
        if self._lists_too_few(node):
            node = read_node(self._reopen(), self._roots)
        return node

    def _lists_too_few(self, node: NodeReading) -> bool:
        """Whether NVML should be initialised anew: it lists the GPUs that were there when it last was.

        A function that no driver will ever serve, such as an old card for a screen, is tried ever less often.
        """
        if len(node.display_functions) <= node.gpu_count:
            return False
        now = time.monotonic()
        if node.display_functions != self._reopened_for:
            self._reopen_pause = _FIRST_REOPEN_SECONDS
        elif node.gpu_count and now < self._reopen_after:
            return False
        else:
            self._reopen_pause = min(2 * self._reopen_pause, _LONGEST_REOPEN_SECONDS)
        self._reopened_for, self._reopen_after = node.display_functions, now + self._reopen_pause
        return True

    def _reopen(self) -> Nvml:
        # An index may be another GPU's from now on.
        self._readings.clear()
        self._last.clear()
        return self._session.reopen()

    async def _read_gpu(self, index: int) -> GpuReading | UnreadableGpu:
        nvml = self._session.current
        if nvml is None:
            return UnreadableGpu(f"index {index}", "NVML is not initialised")
        earlier = self._last.get(index)
        try:
            return await self._lanes.run(
                _reading_lane(index),
                f"reading of GPU index {index}",
                lambda: read_gpu(nvml, self._roots, index, earlier),
                _SLOWEST_READING_SECONDS,
            )
        except LaneTimeout as error:
            return UnreadableGpu(f"index {index}", str(error))

    def _taken(self, index: int) -> GpuReading | UnreadableGpu | None:
        """The finished reading of one GPU, ``None`` while it hangs."""
        task = self._readings[index]
        if not task.done():
            if index not in self._hanging_gpus:
                self._hanging_gpus.add(index)
                busy = self._busy(_reading_lane(index))
                seconds = busy.seconds if busy else self._settings.nvml_timeout_seconds
                log.warning(
                    "GPU index %d hangs: %s has not answered for %.0f s", index, busy or "NVML", seconds
                )
            return None
        if index in self._hanging_gpus:
            self._hanging_gpus.remove(index)
            log.info("GPU index %d has answered", index)
        del self._readings[index]
        reading = task.result()
        if isinstance(reading, GpuReading):
            self._last[index] = reading
        else:
            self._last.pop(index, None)
        return reading

    def _earlier(self, index: int, present: Collection[PciAddress]) -> GpuReading | UnreadableGpu:
        """The last reading of a GPU that hangs, unless the index was another GPU's then."""
        last = self._last.get(index)
        if last is not None and last.gpu.pci not in present:
            return last
        seconds = self._settings.nvml_timeout_seconds
        return UnreadableGpu(f"index {index}", f"NVML has not answered within {seconds:g} s")

    def _busy(self, lane: str) -> Busy | None:
        return next((busy for busy in self._lanes.busy() if busy.lane == lane), None)

    def _accept(self, inventory: Inventory, own: OwnInstances) -> None:
        self.unavailable = ""
        known = (self._view.inventory, self._view.own_instances)
        if not self.ready.is_set() or (inventory, own) != known:
            before = (self.ready.is_set(), _known_by(self._view))
            self._derive(inventory, own)
            # Each change of MIG for a claim is a new inventory, and the claim has log lines of its own.
            news = before != (True, _known_by(self._view))
            self._report(inventory, logging.INFO if news else logging.DEBUG)
            self.changed.set()
        self.ready.set()

    def _derive(self, inventory: Inventory, own: OwnInstances) -> None:
        offers = self._view.offers
        self._view = node_view(
            inventory,
            own,
            self._policy,
            counters=self._counters,
            shares=self._shares,
            counted=self._counted,
        )
        self._metrics.mig_without_instances.set(len(self._view.without_devices))
        if self._view.offers != offers:
            self._metrics.gpu_mig.clear()
        for pci, offer in self._view.offers.items():
            self._metrics.gpu_mig.labels(str(pci), offer.way).set(1)
            if offers.get(pci) != offer:
                log.info("GPU %s goes the way %s: %s", pci, offer.way, offer.reason)

    def _report(self, inventory: Inventory, level: int) -> None:
        metrics = self._metrics
        metrics.unreadable_gpus.set(len(inventory.unreadable_gpus))
        metrics.waiting_for_driver.set(inventory.waiting_for_driver)
        log.log(
            level,
            "found %d GPUs, %d devices to offer, driver %s",
            len(inventory.gpus),
            len(self._view.offered),
            inventory.driver_version or "unknown",
        )
        for problem in inventory.unreadable_fields:
            if problem not in self._unreadable_fields:
                self._unreadable_fields.add(problem)
                metrics.unreadable_fields.labels(problem.field).inc()
                log.warning("GPU %s: field %s cannot be read: %s", problem.gpu, problem.field, problem.reason)


def _gpus(readings: Collection[GpuReading | UnreadableGpu]) -> list[Gpu]:
    return [reading.gpu for reading in readings if isinstance(reading, GpuReading)]


def _known_by(view: NodeView) -> object:
    """What a person knows the node's GPUs by: which they are, and the way each goes."""
    inventory = view.inventory
    cards = {(gpu.pci, gpu.uuid) for gpu in inventory.gpus}
    return cards, inventory.unreadable_gpus, inventory.driver_version, view.offers


def _claims_lane(pci: PciAddress) -> str:
    return f"claims-gpu-{pci}"


def _reading_lane(index: int) -> str:
    """Apart from the claims' lane of the GPU: a whole reading makes a hundred calls, and a claim few."""
    return f"gpu-{index}"
