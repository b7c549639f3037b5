"""``claim.status.devices``: which hardware a claim got, written after the kubelet has its answer.

The pod runs without it, but after a lost store it tells which MIG devices are ours: what can succeed later is
tried until it does. A claim that ends before its turn is not written at all.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from driver.claim import DRIVER_NAME, ClaimReference
from kube.asyncclient import AsyncKubeClient
from kube.errors import ApiError, ApiUnavailable
from kube.events import EventRecorder, ObjectReference
from kube.resources import RESOURCE_CLAIMS, Object
from kubeletplugin.metrics import Metrics
from kubeletplugin.store import ClaimRecord, HeldDevice

_DELAY_SECONDS = 0.25
_LONGEST_PAUSE_SECONDS = 60.0
MADE_FOR_CLAIM = "madeForClaim"
"""Key in a device's data: the MIG device was made for the claim and is destroyed with it."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Pending:
    record: ClaimRecord
    statuses: list[dict[str, Any]]
    due: float
    tries: int = 0


class StatusWriter:
    """Writes each prepared claim's devices with server-side apply, so that other drivers' entries stay."""

    def __init__(self, client: AsyncKubeClient, metrics: Metrics, events: EventRecorder) -> None:
        self._client = client
        self._metrics = metrics
        self._events = events
        self._pending: dict[str, _Pending] = {}
        self._wake = asyncio.Event()

    def prepared(self, record: ClaimRecord, claim: Object) -> None:
        """Write the record's devices soon, unless ``claim`` has them already."""
        statuses = device_statuses(record)
        if record.devices and not _has(claim, statuses):
            self._write_soon(record, statuses)
        else:
            self._pending.pop(record.claim.uid, None)

    def vanished(self, record: ClaimRecord, devices: Sequence[HeldDevice]) -> None:
        """Write soon that some of the record's MIG devices do not exist any more."""
        self._write_soon(record, device_statuses(record, devices))

    def _write_soon(self, record: ClaimRecord, statuses: list[dict[str, Any]]) -> None:
        self._pending[record.claim.uid] = _Pending(record, statuses, time.monotonic() + _DELAY_SECONDS)
        self._wake.set()

    def unprepared(self, uid: str) -> None:
        self._pending.pop(uid, None)

    async def run(self) -> None:
        """Write what is due, for ever."""
        while True:
            self._wake.clear()
            now = time.monotonic()
            for pending in [item for item in self._pending.values() if item.due <= now]:
                if self._pending.get(pending.record.claim.uid) is pending:
                    await self._write(pending)
            waits = [item.due - time.monotonic() for item in self._pending.values()]
            try:
                async with asyncio.timeout(max(0.0, min(waits)) if waits else None):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _write(self, pending: _Pending) -> None:
        reference = pending.record.claim
        problem: ApiError | ApiUnavailable
        retry_after: float | None = None
        try:
            await _apply(self._client, reference, pending.statuses)
        except ApiError as error:
            if error.not_found or error.conflict:
                self._done(pending)
                return
            self._metrics.status_errors.inc()
            if not error.retriable:
                self._done(pending)
                log.warning("status.devices of claim %s was not written: %s", reference, error)
                self._events.warning(
                    claim_object(reference), "StatusNotWritten", f"status.devices was not written: {error}"
                )
                return
            problem, retry_after = error, error.retry_after
        except ApiUnavailable as error:
            self._metrics.status_errors.inc()
            problem = error
        else:
            self._done(pending)
            return
        pending.tries += 1
        pause = min(max(2.0**pending.tries, retry_after or 0.0), _LONGEST_PAUSE_SECONDS)
        pending.due = time.monotonic() + pause
        level = logging.WARNING if pending.tries == 1 else logging.DEBUG
        log.log(
            level, "status.devices of claim %s is not written yet, it is tried again: %s", reference, problem
        )

    def _done(self, pending: _Pending) -> None:
        """Forget what was to be written, unless something else is to be written by now."""
        if self._pending.get(pending.record.claim.uid) is pending:
            del self._pending[pending.record.claim.uid]


async def write_missing(client: AsyncKubeClient, record: ClaimRecord, claim: Object) -> bool:
    """Write the devices that ``claim``, as the API server has it, does not tell; whether any were missing.

    What is told of them is left, also that one of them is not ready.

    Raises:
        ApiError, ApiUnavailable: they were not written.
    """
    statuses = device_statuses(record)
    if all(_is_told(claim, status) for status in statuses):
        return False
    await _apply(client, record.claim, statuses)
    return True


async def _apply(client: AsyncKubeClient, reference: ClaimReference, statuses: list[dict[str, Any]]) -> None:
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": reference.name, "namespace": reference.namespace, "uid": reference.uid},
        "status": {"devices": statuses},
    }
    await client.apply(
        RESOURCE_CLAIMS,
        reference.name,
        body,
        reference.namespace,
        field_manager=DRIVER_NAME,
        subresource="status",
    )


def claim_object(reference: ClaimReference) -> ObjectReference:
    """The claim, as events name it."""
    return ObjectReference(
        "resource.k8s.io/v1", "ResourceClaim", reference.name, reference.namespace, reference.uid
    )


def made_for_claim(claim: Object) -> frozenset[str]:
    """UUIDs of the MIG devices that, as a claim's status says, this driver made for it."""
    devices = (claim.get("status") or {}).get("devices") or []
    noted = [entry.get("data") or {} for entry in devices if entry.get("driver") == DRIVER_NAME]
    return frozenset(str(data.get("uuid")) for data in noted if data.get(MADE_FOR_CLAIM) is True)


def device_statuses(record: ClaimRecord, vanished: Collection[HeldDevice] = ()) -> list[dict[str, Any]]:
    """``AllocatedDeviceStatus`` of each device (resource.k8s.io/v1); what has ``vanished`` is not ready."""
    return [
        _device_status(held, _not_ready(held) if held in vanished else _ready(held, record.changed_at))
        for held in record.devices
    ]


def _ready(held: HeldDevice, since: float) -> dict[str, str]:
    return _condition("True", "Prepared", f"{held.device} is prepared as {held.uuid}", since)


def _not_ready(held: HeldDevice) -> dict[str, str]:
    return _condition("False", "MigDeviceGone", vanished_message(held), time.time())


def vanished_message(held: HeldDevice) -> str:
    """What a person should know of a MIG device that was destroyed while a claim holds it."""
    return (
        f"MIG device {held.uuid} of {held.device} (GPU instance {held.gpu_instance_id}, compute instance "
        f"{held.compute_instance_id} of GPU {held.gpu_uuid}) does not exist any more, and was not destroyed "
        "by this driver: delete the pods that use the claim"
    )


def _condition(status: str, reason: str, message: str, since: float) -> dict[str, str]:
    return {
        "type": "Ready",
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(since)),
    }


def _device_status(held: HeldDevice, condition: dict[str, str]) -> dict[str, Any]:
    data: dict[str, Any] = {
        "uuid": held.uuid,
        "parentUUID": held.gpu_uuid,
        "pciBusID": str(held.footprint.gpu),
    }
    if held.gpu_instance_id is not None:
        data["gpuInstanceID"] = held.gpu_instance_id
        data["computeInstanceID"] = held.compute_instance_id
    if held.profile_id is not None:
        data[MADE_FOR_CLAIM] = True
    status: dict[str, Any] = {
        "driver": DRIVER_NAME,
        "pool": held.pool,
        "device": held.device,
        "conditions": [condition],
        "data": data,
    }
    if held.share_id is not None:
        status["shareID"] = held.share_id
    return status


def _has(claim: Object, wanted: list[dict[str, Any]]) -> bool:
    stored = (claim.get("status") or {}).get("devices") or []
    return all(any(_alike(entry, status) for entry in stored) for status in wanted)


def _is_told(claim: Object, wanted: dict[str, Any]) -> bool:
    stored = (claim.get("status") or {}).get("devices") or []
    keys = ("driver", "pool", "device", "shareID")
    return any(all(entry.get(key) == wanted.get(key) for key in keys) for entry in stored)


def _alike(stored: Object, wanted: dict[str, Any]) -> bool:
    keys = ("driver", "pool", "device", "shareID", "data")
    return all(stored.get(key) == wanted.get(key) for key in keys) and _states(stored) == _states(wanted)


def _states(entry: Object) -> dict[str, str]:
    return {condition["type"]: condition["status"] for condition in entry.get("conditions") or []}
