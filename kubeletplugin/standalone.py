"""Standalone mode: inventory, prepare, unprepare and list on one machine, without an API server.

The same hardware, engine, store and CDI folder as the service uses, so what is prepared here is seen there.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cdi.specfolder import SpecFolder
from driver.claim import DRIVER_NAME, ClaimReference, read_claim
from driver.nvml import call_of_thread
from driver.resourceslices import counter_sets, desired, slice_specs
from kubeletplugin.engine import ClaimEngine
from kubeletplugin.gpulocks import GpuLocks
from kubeletplugin.hardware import GpuHardware
from kubeletplugin.lanes import Lanes
from kubeletplugin.metrics import Metrics
from kubeletplugin.rebuild import open_store, rebuild
from kubeletplugin.settings import Settings
from kubeletplugin.store import ClaimRecord, boot_seconds
from kubeletplugin.storethread import StoreThread

_TIMEOUT_SECONDS = 40.0
_UNALLOCATED = (
    "it has no status.allocation, which a scheduler would write: name the devices with "
    "--device REQUEST=DEVICE (see inventory)"
)


class StandaloneError(Exception):
    """A command cannot be done; the text says what is wrong with its input."""


@dataclass(slots=True)
class Node:
    """This machine: its hardware, read once, and the claim engine."""

    settings: Settings
    hardware: GpuHardware
    engine: ClaimEngine

    async def slices(self) -> list[dict[str, Any]]:
        """The ResourceSlices that the service would publish, as API objects."""
        offered = self.hardware.offered
        counters = counter_sets(offered, self.hardware.own_instances)
        current = [self.hardware.published(device) for device in offered]
        devices = desired(current, [])
        specs = slice_specs(devices, self.settings.node_name, self.settings.pool_name, counters=counters)
        for spec in specs:
            spec["pool"]["generation"] = 1
        return [
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {"name": f"{index:05x}-{DRIVER_NAME}-{self.settings.node_name}"},
                "spec": spec,
            }
            for index, spec in enumerate(specs)
        ]

    async def prepare(self, claim: Mapping[str, Any]) -> ClaimRecord:
        """Prepare an allocated ResourceClaim object. Raises what the engine raises."""
        allocated = read_claim(reference_of(claim), claim)
        return await self.engine.prepare(allocated, boot_seconds(), _TIMEOUT_SECONDS)

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


@contextlib.asynccontextmanager
async def open_node(settings: Settings, *, read_hardware: bool) -> AsyncIterator[Node]:
    """Open the store and, if asked, read the hardware once.

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
        if read_hardware and not await hardware.read_once():
            raise StandaloneError(hardware.unavailable)
        boot_id = hardware.boot_id()
        await store.run(lambda target: target.enter_boot(boot_id))
        specs = SpecFolder(settings.cdi_root)
        if read_hardware:
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
        yield Node(settings, hardware, engine)
    finally:
        await asyncio.to_thread(store.close)


def reference_of(claim: Mapping[str, Any]) -> ClaimReference:
    """Which claim an object is."""
    metadata = claim["metadata"]
    return ClaimReference(metadata["namespace"], metadata["name"], metadata["uid"])


def load_claim(path: Path, devices: Sequence[str], pool: str) -> dict[str, Any]:
    """Read the one ResourceClaim or ResourceClaimTemplate of a YAML or JSON file, completed for use here.

    Other objects in the file, such as the pod that uses the claim, are passed over. A UID, a namespace and a
    consumer are made up where there are none. ``devices`` (``DEVICE`` or ``REQUEST=DEVICE``) stand for the
    scheduler's choice.

    Raises:
        StandaloneError: the file does not hold one claim, or the claim has no allocation and no devices were
            named.
    """
    loaded = _only_claim(path)
    spec = loaded.get("spec")
    if loaded["kind"] == "ResourceClaimTemplate" and isinstance(spec, dict):
        spec = spec.get("spec")
    if not isinstance(spec, dict):
        raise StandaloneError(f"the {loaded['kind']} in {path} has no spec")
    metadata = loaded.get("metadata") or {}
    namespace, name = metadata.get("namespace") or "default", metadata.get("name") or path.stem
    uid = metadata.get("uid") or str(uuid.uuid5(uuid.NAMESPACE_URL, f"{namespace}/{name}"))
    claim: dict[str, Any] = {
        "metadata": {"namespace": namespace, "name": name, "uid": uid},
        "spec": spec,
        "status": dict(loaded.get("status") or {}),
    }
    if devices:
        claim["status"]["allocation"] = _allocation(spec.get("devices") or {}, devices, pool)
    if not claim["status"].get("allocation"):
        raise StandaloneError(f"claim {namespace}/{name} in {path}: {_UNALLOCATED}")
    claim["status"].setdefault("reservedFor", [{"resource": "pods", "name": "standalone", "uid": uid}])
    return claim


def _only_claim(path: Path) -> dict[str, Any]:
    try:
        documents = list(yaml.safe_load_all(path.read_text()))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise StandaloneError(f"{path} cannot be read: {error}") from None
    kinds = [document.get("kind") if isinstance(document, dict) else None for document in documents]
    claims = [
        document
        for document, kind in zip(documents, kinds, strict=True)
        if kind in ("ResourceClaim", "ResourceClaimTemplate")
    ]
    if len(claims) != 1:
        found = ", ".join(kind or "something without a kind" for kind in kinds) or "nothing"
        raise StandaloneError(
            f"{path} must hold exactly one ResourceClaim or ResourceClaimTemplate; it holds {found}"
        )
    claim: dict[str, Any] = claims[0]
    return claim


def _allocation(devices: Mapping[str, Any], chosen: Sequence[str], pool: str) -> dict[str, Any]:
    requests = {request["name"]: request for request in devices.get("requests") or []}
    names = list(requests)
    results: list[dict[str, Any]] = []
    for choice in chosen:
        request, separator, device = choice.rpartition("=")
        if not separator:
            if len(names) != 1:
                raise StandaloneError(f"--device {choice}: name the request too, one of {', '.join(names)}")
            request = names[0]
        if request.partition("/")[0] not in names:
            raise StandaloneError(
                f"--device {choice}: the claim has no request {request}; it has {', '.join(names)}"
            )
        result: dict[str, Any] = {"request": request, "driver": DRIVER_NAME, "pool": pool, "device": device}
        if (requests[request.partition("/")[0]].get("exactly") or {}).get("adminAccess"):
            result["adminAccess"] = True
        results.append(result)
    configs = [{"source": "FromClaim", **entry} for entry in devices.get("config") or []]
    return {"devices": {"results": results, "config": configs}}
