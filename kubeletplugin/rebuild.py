"""Rebuilding what a lost, damaged or older store lacks, from CDI specs, API server and hardware."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdi.claimspec import qualified_name
from cdi.specfolder import SpecFolder
from driver.claim import DRIVER_NAME, AllocatedClaim, AllocationResult, ClaimError, ClaimReference, read_claim
from driver.devices import Device, Footprint
from driver.inventory import PciAddress
from driver.names import device_and_share
from driver.plan import asked_interval
from driver.resourceslices import published
from driver.timeslicing import Interval, NotedInterval
from kube.asyncclient import AsyncKubeClient
from kube.errors import ApiError, ApiUnavailable
from kube.resources import RESOURCE_CLAIMS, Object
from kubeletplugin.claimstatus import made_for_claim
from kubeletplugin.engine import MIG_MARK, spec_devices
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
_API_SECONDS_WHEN_NEEDED = 60.0
_API_PAUSES_SECONDS = (0.5, 1.0, 2.0, 4.0)
_NAME = re.compile(r"gpu-([0-9a-f]{4,8})-([0-9a-f]{2})-([0-9a-f]{2})-([0-7])(?:-.*)?")

log = logging.getLogger(__name__)


class ClaimsUnknown(StoreError):
    """What is prepared here cannot be told before the API server has answered; asking again is all to do."""


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
    """Put a record for each CDI spec of ours into a store that has none for it; returns how many.

    A spec means that a pod may be using its devices, also where the store is not new but an older copy. Names
    and requests come from the API server if it answers; without it the records have only the UID, which is
    enough to hold whole GPUs and to unprepare, and get the rest at a later start. A store that was made new
    is complete only after this, however often the process is killed meanwhile, and only with a ``client``.

    Raises:
        ClaimsUnknown: MIG devices are among them, and the API server does not tell whose they are.
        SpecFolderError: the CDI folder cannot be read.
        StoreError: the store cannot be used.
    """
    names = _device_names(specs)
    untold, is_complete = await store.run(lambda target: (_untold(target, names), target.is_complete()))
    if is_complete and not untold:
        return 0
    records: list[ClaimRecord] = []
    if untold:
        await hardware.ready.wait()
        with_mig = any(MIG_MARK in name for uid in untold for name in names[uid])
        claims = await _claims_of(client, set(untold), insist=with_mig)
        gone = {uid for uid in untold if is_complete and claims is not None and uid not in claims}
        devices = await hardware.devices(timeout=1.0)
        records = [
            _record(uid, names[uid], (claims or {}).get(uid), devices, hardware, boot_id)
            for uid in untold
            if uid not in gone
        ]

    still = specs.claim_uids()

    def put(target: Store) -> int:
        if client is not None:
            target.set_complete()
        wanted = {record.claim.uid: record for record in records if record.claim.uid in still}
        before = len(target.claims())
        for uid in _untold(target, wanted):
            target.put(wanted[uid])
            _note_intervals(target, wanted[uid])
        return len(target.claims()) - before

    return await store.run(put)


def _note_intervals(target: Store, record: ClaimRecord) -> None:
    """Note that GPUs may have the intervals that a rebuilt claim asked for, so that they are put back."""
    for held in record.devices:
        if held.interval is not None and target.noted_interval(held.gpu_uuid) is None:
            target.note_interval(
                NotedInterval(held.footprint.gpu, held.gpu_uuid, held.interval, record.boot_id, holds=False)
            )


def _untold(target: Store, uids: Iterable[str]) -> list[str]:
    """Those claims of which the store has no record, or one without what the API server would tell."""
    return [
        uid
        for uid in uids
        if target.unprepared_at(uid) is None
        and ((record := target.claims().get(uid)) is None or not record.claim.name)
    ]


def _device_names(specs: SpecFolder) -> dict[str, list[str]]:
    """The devices of each of our claims that has a spec; one that no runtime could read is nobody's."""
    names = {}
    for uid in specs.claim_uids():
        try:
            names[uid] = spec_devices(uid, specs.read(uid))
        except ValueError as error:
            log.warning("the CDI spec of claim UID %s is no use for the rebuild: %s", uid, error)
    return names


@dataclass(frozen=True, slots=True)
class _Known:
    """What the API server tells of a claim; ``made`` are UUIDs of MIG devices that are ours to destroy.

    ``claim`` is ``None`` where it is there with devices of ours but cannot be read.
    """

    claim: AllocatedClaim | None
    made: frozenset[str]


async def _claims_of(
    client: AsyncKubeClient | None, uids: set[str], *, insist: bool
) -> dict[str, _Known] | None:
    """Those of the claims that are allocated devices of ours; ``None`` if the API server does not tell."""
    if client is None:
        return None
    try:
        items = await _list_claims(client, insist=insist)
    except (ApiError, ApiUnavailable, TimeoutError) as error:
        why = str(error) or "no answer in time"
        if insist:
            raise ClaimsUnknown(
                f"CDI specs name MIG devices of {len(uids)} claims that have no record, and only the API "
                f"server can tell which were made for a claim; it does not answer: {why}; the list of "
                "ResourceClaims is asked for until it does"
            ) from error
        log.warning("claims that have CDI specs are taken up without the API server's help: %s", why)
        return None
    claims = {}
    for item in items:
        metadata = item["metadata"]
        if metadata["uid"] in uids and _has_ours(item):
            reference = ClaimReference(metadata["namespace"], metadata["name"], metadata["uid"])
            claim = None
            try:
                claim = read_claim(reference, item)
            except ClaimError as error:
                log.warning("claim %s has a CDI spec here: %s", reference, error)
            claims[reference.uid] = _Known(claim, made_for_claim(item))
    return claims


async def _list_claims(client: AsyncKubeClient, *, insist: bool) -> Sequence[Object]:
    """All ResourceClaims; with ``insist`` asked for several times before it is given up."""
    for pause in _API_PAUSES_SECONDS if insist else ():
        with contextlib.suppress(ApiError, ApiUnavailable, TimeoutError):
            async with asyncio.timeout(_API_SECONDS_WHEN_NEEDED):
                return (await client.list(RESOURCE_CLAIMS))[0]
        await asyncio.sleep(pause)
    async with asyncio.timeout(_API_SECONDS):
        return (await client.list(RESOURCE_CLAIMS))[0]


def _has_ours(claim: Object) -> bool:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or []
    return any(result.get("driver") == DRIVER_NAME for result in results)


def _record(
    uid: str,
    names: list[str],
    known: _Known | None,
    devices: Mapping[str, Device],
    hardware: GpuHardware,
    boot_id: str,
) -> ClaimRecord:
    reference = known.claim.reference if known and known.claim else ClaimReference("", "", uid)
    held = tuple(_held(uid, name, known, devices, hardware) for name in names)
    return ClaimRecord(reference, ClaimState.PREPARED, boot_id, time.time(), held)


def _held(
    uid: str, spec_name: str, known: _Known | None, devices: Mapping[str, Device], hardware: GpuHardware
) -> HeldDevice:
    name, share_id = device_and_share(spec_name)
    device = devices.get(name)
    allocated = known.claim.results if known and known.claim else ()
    results = [one for one in allocated if one.device == name and share_id in (None, one.share_id)]
    values: dict[str, Any] = {
        "requests": tuple(dict.fromkeys(result.base_request for result in results)),
        "pool": results[0].pool if results else "",
        "device": name,
        "cdi_device": qualified_name(uid, spec_name),
        "admin_access": bool(results) and all(result.admin_access for result in results),
        "share_id": share_id or (results[0].share_id if results else None),
        "memory_bytes": results[0].memory_bytes if results else None,
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
        interval=_interval(known.claim, results, device) if known and known.claim else None,
    )


def _interval(claim: AllocatedClaim, results: Iterable[AllocationResult], device: Device) -> Interval | None:
    """The time-slice interval that the claim asks for with its results of a device."""
    try:
        found = [asked_interval(claim, result, device) for result in results]
    except ClaimError as error:
        log.warning("claim %s: its configuration is no use for the rebuild: %s", claim.reference, error)
        return None
    return next((interval for interval in found if interval is not None), None)


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
