"""Rebuilding a store that was lost or cannot be read, from CDI specs, the API server and the hardware."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdi.claimspec import qualified_name
from cdi.specfolder import SpecFolder
from driver.claim import AllocatedClaim, ClaimError, ClaimReference, read_claim
from driver.devices import Device, Footprint
from driver.inventory import PciAddress
from driver.resourceslices import published
from kube.asyncclient import AsyncKubeClient
from kube.errors import ApiError, ApiUnavailable
from kube.resources import RESOURCE_CLAIMS
from kubeletplugin.claimstatus import made_for_claim
from kubeletplugin.hardware import GpuHardware
from kubeletplugin.store import (
    STORE_NAME,
    ClaimRecord,
    ClaimState,
    HeldDevice,
    Store,
    StoreCorrupt,
    StoreError,
    set_aside,
)
from kubeletplugin.storethread import StoreThread

_API_SECONDS = 10.0
_NAME = re.compile(r"gpu-([0-9a-f]{4,8})-([0-9a-f]{2})-([0-9a-f]{2})-([0-7])(?:-.*)?")

log = logging.getLogger(__name__)


def open_store(data_path: Path) -> tuple[Store, Path | None]:
    """Open the store in the plugin's data folder, which is made if missing.

    A damaged store is set aside (its new path is returned) and an empty one made.

    Raises:
        StoreError: it is newer than this program, or its disk cannot be used.
    """
    try:
        (data_path / "locks").mkdir(mode=0o750, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"the data folder {data_path} cannot be made: {error}") from error
    path = data_path / STORE_NAME
    try:
        return Store(path), None
    except StoreCorrupt as error:
        aside = set_aside(path)
        log.error("%s; it was moved to %s and is rebuilt from what is on the node", error, aside)
        return Store(path), aside


async def rebuild(
    store: StoreThread,
    specs: SpecFolder,
    hardware: GpuHardware,
    client: AsyncKubeClient | None,
    boot_id: str,
) -> int:
    """Put a record for each CDI spec of ours into a store that is new; returns how many.

    A spec means that a pod may be using its devices. Names and requests come from the API server if it
    answers; without it the records have only the UID, which is enough to unprepare. A store that was made
    new is complete only after this, however often the process is killed meanwhile.
    """
    if await store.run(lambda target: target.is_complete()):
        return 0
    names = _device_names(specs)
    records: list[ClaimRecord] = []
    if names:
        await hardware.ready.wait()
        claims = await _claims_of(client, set(names))
        devices = await hardware.devices(timeout=1.0)
        records = [
            _record(uid, held, claims.get(uid), devices, hardware, boot_id) for uid, held in names.items()
        ]

    def put(target: Store) -> int:
        target.set_complete()
        missing = [
            record
            for record in records
            if record.claim.uid not in target.claims() and target.unprepared_at(record.claim.uid) is None
        ]
        for record in missing:
            target.put(record)
        return len(missing)

    return await store.run(put)


def _device_names(specs: SpecFolder) -> dict[str, list[str]]:
    """The devices of each of our claims that has a spec; one that no runtime could read is nobody's."""
    names = {}
    for uid in specs.claim_uids():
        try:
            devices = json.loads(specs.read(uid) or b"{}")["devices"]
            names[uid] = [str(entry["name"]).removeprefix(f"{uid}-") for entry in devices]
        except (ValueError, LookupError, TypeError) as error:
            log.warning("the CDI spec of claim UID %s is no use for the rebuild: %r", uid, error)
    return names


@dataclass(frozen=True, slots=True)
class _Known:
    """What the API server tells of a claim; ``made`` are UUIDs of MIG devices that are ours to destroy."""

    claim: AllocatedClaim
    made: frozenset[str]


async def _claims_of(client: AsyncKubeClient | None, uids: set[str]) -> dict[str, _Known]:
    if client is None:
        return {}
    try:
        async with asyncio.timeout(_API_SECONDS):
            items, _ = await client.list(RESOURCE_CLAIMS)
    except (ApiError, ApiUnavailable, TimeoutError) as error:
        log.warning("the store is rebuilt without the API server's help: %s", error)
        return {}
    claims = {}
    for item in items:
        metadata = item["metadata"]
        if metadata["uid"] in uids:
            reference = ClaimReference(metadata["namespace"], metadata["name"], metadata["uid"])
            try:
                claims[reference.uid] = _Known(read_claim(reference, item), made_for_claim(item))
            except ClaimError as error:
                log.warning("claim %s has a CDI spec here: %s", reference, error)
    return claims


def _record(
    uid: str,
    names: list[str],
    known: _Known | None,
    devices: Mapping[str, Device],
    hardware: GpuHardware,
    boot_id: str,
) -> ClaimRecord:
    reference = known.claim.reference if known else ClaimReference("", "", uid)
    held = tuple(_held(uid, name, known, devices.get(name), hardware) for name in names)
    return ClaimRecord(reference, ClaimState.PREPARED, boot_id, time.time(), held)


def _held(
    uid: str, name: str, known: _Known | None, device: Device | None, hardware: GpuHardware
) -> HeldDevice:
    results = [result for result in known.claim.results if result.device == name] if known else []
    values: dict[str, Any] = {
        "requests": tuple(dict.fromkeys(result.base_request for result in results)),
        "pool": results[0].pool if results else "",
        "device": name,
        "cdi_device": qualified_name(uid, name),
        "admin_access": bool(results) and all(result.admin_access for result in results),
        "share_id": results[0].share_id if results else None,
    }
    if device is None:
        return HeldDevice(
            **values, uuid="", gpu_uuid="", footprint=Footprint(_address(name)), published={"name": name}
        )
    return HeldDevice(
        **values,
        uuid=device.uuid,
        gpu_uuid=device.gpu.uuid,
        footprint=device.footprint,
        published=published(device, hardware.inventory),
        gpu_instance_id=device.mig.gpu_instance_id if device.mig else None,
        compute_instance_id=device.mig.compute_instance_id if device.mig else None,
        profile_id=_profile_id(device) if known and device.uuid in known.made else None,
    )


def _profile_id(device: Device) -> int | None:
    """The profile of the GPU instance that a MIG device lies in."""
    instances = device.gpu.gpu_instances or ()
    return next(
        (one.profile_id for one in instances if device.mig and one.id == device.mig.gpu_instance_id), None
    )


def _address(name: str) -> PciAddress:
    match = _NAME.fullmatch(name)
    if match is None:
        return PciAddress(0, 0, 0, 0)
    return PciAddress.parse("{}:{}:{}.{}".format(*match.groups()))
