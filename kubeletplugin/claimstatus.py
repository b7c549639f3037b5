"""``claim.status.devices``: which hardware a claim got, written after the kubelet has its answer.

Best effort: the pod runs without it. A claim that ends before its turn is not written at all.
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
_TRIES = 3
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
                if self._pending.pop(pending.record.claim.uid, None) is not None:
                    await self._write(pending)
            waits = [item.due - time.monotonic() for item in self._pending.values()]
            try:
                async with asyncio.timeout(max(0.0, min(waits)) if waits else None):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _write(self, pending: _Pending) -> None:
        reference = pending.record.claim
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": reference.name, "namespace": reference.namespace, "uid": reference.uid},
            "status": {"devices": pending.statuses},
        }
        try:
            await self._client.apply(
                RESOURCE_CLAIMS,
                reference.name,
                body,
                reference.namespace,
                field_manager=DRIVER_NAME,
                subresource="status",
            )
        except ApiError as error:
            if error.not_found or error.conflict:
                return
            self._metrics.status_errors.inc()
            log.warning("status.devices of claim %s was not written: %s", reference, error)
            self._events.warning(
                claim_object(reference), "StatusNotWritten", f"status.devices was not written: {error}"
            )
        except ApiUnavailable as error:
            self._metrics.status_errors.inc()
            pending.tries += 1
            if pending.tries < _TRIES:
                pending.due = time.monotonic() + 2.0**pending.tries
                self._pending.setdefault(reference.uid, pending)
            else:
                log.warning("status.devices of claim %s was not written: %s", reference, error)


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


def _alike(stored: Object, wanted: dict[str, Any]) -> bool:
    keys = ("driver", "pool", "device", "shareID", "data")
    return all(stored.get(key) == wanted.get(key) for key in keys) and _states(stored) == _states(wanted)


def _states(entry: Object) -> dict[str, str]:
    return {condition["type"]: condition["status"] for condition in entry.get("conditions") or []}
