"""Standalone mode: inventory, prepare, unprepare and list on one machine, without an API server.

The same hardware, engine, store and CDI folder as the service uses, so what is prepared here is seen there.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdi.specfolder import SpecFolder
from driver.claim import DRIVER_NAME, AllocatedClaim, ClaimError, ClaimReference, read_claim
from driver.nvml import call_of_thread
from driver.resourceslices import counter_sets, desired, slice_specs
from kube.names import SUBDOMAIN_RULE, is_subdomain
from kubeletplugin.chosendevices import ChoiceError, allocation
from kubeletplugin.claimfile import ClaimFileError, read_claim_file
from kubeletplugin.engine import ClaimEngine
from kubeletplugin.gpulocks import GpuLocks
from kubeletplugin.hardware import GpuHardware, Records
from kubeletplugin.lanes import Lanes
from kubeletplugin.metrics import Metrics
from kubeletplugin.rebuild import open_store, rebuild
from kubeletplugin.settings import Settings
from kubeletplugin.store import STORE_NAME, ClaimRecord, Store, boot_seconds
from kubeletplugin.storethread import StoreThread

_TIMEOUT_SECONDS = 40.0
_UNALLOCATED = (
    "it has no status.allocation, which a scheduler would write: name the devices with "
    "--device REQUEST=DEVICE (see inventory)"
)
_REMEDIES = {
    "UnknownDevice": "inventory shows the devices that can be had",
    "NotOffered": "inventory shows the devices that can be had",
    "BadAllocation": "correct status.allocation in the claim's file",
    "InUse": "choose another (see inventory), or give that claim back with gpu-kubelet-plugin unprepare if "
    "nobody uses it",
    "CardSwapped": "give the claim back with gpu-kubelet-plugin unprepare, and prepare it again",
}
"""By cause, what to do here in place of what helps on a cluster."""


class StandaloneError(Exception):
    """A command cannot be done; the text says what is wrong with its input."""


@dataclass(slots=True)
class Node:
    """This machine's claim engine, and its devices."""

    engine: ClaimEngine
    hardware: GpuHardware

    def shared(self) -> dict[str, dict[str, str]]:
        """The devices that claims share: what a share takes of each capacity that is not asked for."""
        return {
            device.name: {
                name: value["requestPolicy"]["default"]
                for name, value in self.hardware.published(device)["capacity"].items()
            }
            for device in self.hardware.offered
            if device.shares is not None
        }

    async def prepare(self, claim: Mapping[str, Any]) -> ClaimRecord:
        """Prepare an allocated ResourceClaim object.

        Raises:
            StandaloneError: it is prepared with other devices, which are not taken away from who uses them;
                or it cannot be prepared, with what helps where no scheduler places pods.
            Exception: what the engine raises.
        """
        try:
            allocated = read_claim(reference_of(claim), claim)
            _check_devices_stay((await self.engine.records()).get(allocated.reference.uid), allocated)
            return await self.engine.prepare(allocated, boot_seconds(), _TIMEOUT_SECONDS)
        except ClaimError as error:
            if error.remedy and (remedy := _REMEDIES.get(error.cause)):
                raise StandaloneError(f"{error.cause}: {error.problem}; {remedy}") from error
            raise

    async def unprepare(self, name: str) -> ClaimRecord:
        """Unprepare the claim known by ``namespace/name`` or UID.

        Raises:
            StandaloneError: no prepared claim has that name.
        """
        for record in (await self.engine.records()).values():
            reference = record.claim
            if name in (reference.uid, f"{reference.namespace}/{reference.name}"):
                await self.engine.unprepare(reference, _TIMEOUT_SECONDS)
                return record
        raise StandaloneError(f"no prepared claim is called {name}; list shows those that are")


def _check_devices_stay(held: ClaimRecord | None, wanted: AllocatedClaim) -> None:
    if held is None:
        return
    has = {(device.device, device.share_id) for device in held.devices}
    named = {(result.device, result.share_id): result for result in wanted.results}
    # A device that is looked at with admin access may be away.
    lacks = {key for key, result in named.items() if key not in has and not result.admin_access}
    if has <= named.keys() and not lacks:
        return
    name = f"{wanted.reference.namespace}/{wanted.reference.name}"
    raise StandaloneError(
        f"claim {wanted.reference} holds {_names(has)} already, and {_names(named)} is asked for; give it "
        f"back first (gpu-kubelet-plugin unprepare {name}), or give the claim in the file another name"
    )


def _names(devices: Iterable[tuple[str, str | None]]) -> str:
    return ", ".join(sorted(name for name, _ in devices))


async def inventory(settings: Settings) -> list[dict[str, Any]]:
    """The ResourceSlices that the service would publish, as API objects. Leaves nothing on the machine.

    Raises:
        StandaloneError: the hardware cannot be read.
    """
    hardware = GpuHardware(settings, Lanes(call_of_thread), Metrics(), records=_records_on_disk(settings))
    await _read(hardware)
    offered = hardware.offered
    devices = desired([hardware.published(device) for device in offered], [])
    counters = counter_sets(offered, hardware.own_instances)
    specs = slice_specs(devices, settings.node_name, settings.pool_name, counters=counters)
    for spec in specs:
        spec["pool"]["generation"] = 1
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"{index:05x}-{DRIVER_NAME}-{settings.node_name}"},
            "spec": spec,
        }
        for index, spec in enumerate(specs)
    ]


def _records_on_disk(settings: Settings) -> Records:
    """What is prepared here, of a store that is there already."""

    async def records() -> Collection[ClaimRecord]:
        path = settings.data_path / STORE_NAME
        if not path.exists():
            return ()
        store = Store(path)
        try:
            with store.transaction():
                return tuple(store.claims().values())
        finally:
            store.close()

    return records


async def _read(hardware: GpuHardware, *, insist: bool = True) -> None:
    if not await hardware.read_once():
        if insist:
            raise StandaloneError(hardware.unavailable)
        return
    hardware.apply_requested({})
    hardware.offer({}, counters=True, shares=True)


@contextlib.asynccontextmanager
async def open_node(settings: Settings, *, read_hardware: bool, insist: bool = True) -> AsyncIterator[Node]:
    """Open the store and, if asked, read the hardware once; without ``insist`` also where it cannot be read.

    Raises:
        StandaloneError: the hardware cannot be read.
        StoreError: the store cannot be opened.
    """
    lanes, metrics = Lanes(call_of_thread), Metrics()
    opened, _ = open_store(settings.data_path)
    store = StoreThread(opened)

    async def records() -> Collection[ClaimRecord]:
        return await store.run(lambda target: tuple(target.claims().values()))

    hardware = GpuHardware(settings, lanes, metrics, records=records)
    try:
        if read_hardware:
            await _read(hardware, insist=insist)
        boot_id = hardware.boot_id()
        await store.run(lambda target: target.enter_boot(boot_id))
        specs = SpecFolder(settings.cdi_root)
        if hardware.ready.is_set():
            await rebuild(store, specs, hardware, None, boot_id)
        engine = ClaimEngine(
            hardware=hardware,
            store=store,
            locks=GpuLocks(settings.data_path / "locks"),
            specs=specs,
            lanes=lanes,
            metrics=metrics,
            pool=settings.pool_name,
            boot_id=boot_id,
        )
        engine.restored.set()
        yield Node(engine, hardware)
    finally:
        await asyncio.to_thread(store.close)


def reference_of(claim: Mapping[str, Any]) -> ClaimReference:
    """Which claim an object is."""
    metadata = claim["metadata"]
    return ClaimReference(metadata["namespace"], metadata["name"], metadata["uid"])


def load_claim(
    path: Path, devices: Sequence[str], pool: str, shared: Mapping[str, Mapping[str, str]]
) -> dict[str, Any]:
    """Read the one ResourceClaim or ResourceClaimTemplate of a YAML or JSON file, completed for use here.

    Other objects in the file, such as the pod that uses the claim, are passed over. A UID, a namespace and a
    consumer are made up where there are none. ``devices`` (``DEVICE`` or ``REQUEST=DEVICE``) stand for the
    scheduler's choice; of those that are ``shared``, see :meth:`Node.shared`, the claim gets a share.

    Raises:
        StandaloneError: the file does not hold one claim, or the devices are not what it asks for, or it has
            no allocation and no devices were named.
    """
    try:
        loaded = read_claim_file(path)
    except ClaimFileError as error:
        raise StandaloneError(str(error)) from None
    spec = loaded["spec"]
    metadata = loaded.get("metadata") or {}
    name = metadata.get("name") or path.stem
    if not is_subdomain(name):
        raise StandaloneError(
            f"the claim in {path} has no metadata.name, and the file's name cannot be one: {SUBDOMAIN_RULE}"
        )
    namespace = metadata.get("namespace") or "default"
    uid = metadata.get("uid") or str(uuid.uuid5(uuid.NAMESPACE_URL, f"{namespace}/{name}"))
    claim: dict[str, Any] = {
        "metadata": {"namespace": namespace, "name": name, "uid": uid},
        "spec": spec,
        "status": dict(loaded.get("status") or {}),
    }
    if devices:
        try:
            claim["status"]["allocation"] = allocation(
                spec.get("devices") or {}, devices, pool, claim_uid=uid, shared=shared
            )
        except ChoiceError as error:
            raise StandaloneError(f"claim {namespace}/{name} in {path}: {error}") from None
    if not claim["status"].get("allocation"):
        raise StandaloneError(f"claim {namespace}/{name} in {path}: {_UNALLOCATED}")
    if not claim["status"].get("reservedFor"):
        claim["status"]["reservedFor"] = [{"resource": "pods", "name": "standalone", "uid": uid}]
    return claim
