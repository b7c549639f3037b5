"""The allocated claim: what of a ResourceClaim concerns this driver, as plain values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from driver.quantity import parse_quantity

DRIVER_NAME = "gpu.nvidia.com"
SCHEDULE_ANEW = "delete the pod to have it scheduled anew"
"""What helps a claim whose devices cannot be given to it."""

_UID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_LONGEST_UID = 128
_SHARE_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class ClaimError(Exception):
    """A claim cannot be prepared.

    ``cause`` is one word, for metrics and events; the text names the claim's part, the value, and what to do.
    ``problem`` is the text without ``remedy``, which is what to do on a cluster, where pods use the claim.
    """

    def __init__(self, cause: str, problem: str, remedy: str = "") -> None:
        super().__init__(f"{problem}; {remedy}" if remedy else problem)
        self.cause = cause
        self.problem = problem
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class ClaimReference:
    """Which claim: the name may be used again by a later claim, the UID never is."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name} (UID {self.uid})"

    def check(self) -> None:
        """Check that the UID can name the claim's CDI spec and devices, as every UID of Kubernetes can.

        Raises:
            ClaimError: it cannot.
        """
        if len(self.uid) > _LONGEST_UID or not _UID.fullmatch(self.uid):
            raise ClaimError(
                "BadUid",
                f"claim {self.namespace}/{self.name}: its UID {self.uid[:_LONGEST_UID]!r} is none of "
                f"Kubernetes: allowed are 1 to {_LONGEST_UID} letters, digits, '-', '_' and '.', a letter or "
                "digit first and last; ask with metadata.uid of the ResourceClaim",
            )


@dataclass(frozen=True, slots=True)
class AllocationResult:
    """One device given to the claim. ``request`` may be ``request/subrequest`` (prioritized list).

    ``share_id``, a UUID, is set when the device is shared, ``memory_bytes`` when the share is granted memory.
    """

    request: str
    pool: str
    device: str
    admin_access: bool = False
    share_id: str | None = None
    memory_bytes: int | None = None

    @property
    def base_request(self) -> str:
        """What the kubelet matches containers with: the request without its sub-request."""
        return self.request.partition("/")[0]


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One entry of ``status.allocation.devices.config`` for this driver, unparsed."""

    index: int
    source: str
    requests: tuple[str, ...]
    parameters: object

    def names(self, result: AllocationResult) -> bool:
        return result.request in self.requests or result.base_request in self.requests

    def __str__(self) -> str:
        return (
            f"status.allocation.devices.config[{self.index}].opaque.parameters ({self.source or 'no source'})"
        )


@dataclass(frozen=True, slots=True)
class Consumer:
    """One entry of ``status.reservedFor``."""

    resource: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class AllocatedClaim:
    """The part of an allocated ResourceClaim that this driver acts on: its own results and configuration."""

    reference: ClaimReference
    results: tuple[AllocationResult, ...]
    configs: tuple[ConfigEntry, ...]
    consumers: tuple[Consumer, ...]


def read_claim(
    reference: ClaimReference, claim: Mapping[str, Any], driver: str = DRIVER_NAME
) -> AllocatedClaim:
    """Take what concerns ``driver`` out of a ``resource.k8s.io/v1`` ResourceClaim object.

    Raises:
        ClaimError: the object is another claim (UID), is not allocated or reserved for nobody; or the UID
            is none, see :meth:`ClaimReference.check`; or a share is not as the API has it.
    """
    reference.check()
    found = claim.get("metadata", {}).get("uid")
    if found != reference.uid:
        raise ClaimError(
            "Replaced",
            f"claim {reference.namespace}/{reference.name} has UID {found}, asked for was {reference.uid}",
        )
    status = claim.get("status") or {}
    allocation = status.get("allocation")
    if not allocation:
        raise ClaimError("NotAllocated", f"claim {reference} is not allocated: status.allocation is empty")
    consumers = tuple(
        Consumer(entry.get("resource", ""), entry.get("name", ""), entry.get("uid", ""))
        for entry in status.get("reservedFor") or []
    )
    if not consumers:
        raise ClaimError(
            "NotReserved", f"claim {reference} is reserved for no pod: status.reservedFor is empty"
        )
    devices = allocation.get("devices") or {}
    results = tuple(
        AllocationResult(
            result["request"],
            result["pool"],
            result["device"],
            bool(result.get("adminAccess")),
            _share_id(reference, result),
            _memory_bytes(reference, result),
        )
        for result in devices.get("results") or []
        if result.get("driver") == driver
    )
    configs = tuple(
        ConfigEntry(
            index,
            entry.get("source", ""),
            tuple(entry.get("requests") or ()),
            entry["opaque"].get("parameters"),
        )
        for index, entry in enumerate(devices.get("config") or [])
        if (entry.get("opaque") or {}).get("driver") == driver
    )
    return AllocatedClaim(reference, results, configs, consumers)


def _share_id(reference: ClaimReference, result: Mapping[str, Any]) -> str | None:
    """The share, which becomes part of a CDI device's name."""
    share_id = result.get("shareID")
    if share_id is None:
        return None
    if not isinstance(share_id, str) or not _SHARE_ID.fullmatch(share_id):
        raise _bad(reference, result, "shareID", f"{share_id!r} is no UUID in lower case")
    return share_id


def _memory_bytes(reference: ClaimReference, result: Mapping[str, Any]) -> int | None:
    """What a share is granted of its device's memory; ``None`` where that is nothing.

    Admin access is granted nothing: it takes from no capacity.
    """
    consumed = result.get("consumedCapacity")
    if consumed is None or result.get("shareID") is None or result.get("adminAccess"):
        return None
    if not isinstance(consumed, Mapping):
        raise _bad(reference, result, "consumedCapacity", f"{consumed!r} is no map of quantities")
    if "memory" not in consumed:
        return None
    try:
        granted = int(parse_quantity(str(consumed["memory"])))
    except ValueError as error:
        raise _bad(reference, result, "consumedCapacity.memory", str(error)) from None
    if granted < 0:
        raise _bad(reference, result, "consumedCapacity.memory", f"{granted} is below 0")
    return granted or None


def _bad(reference: ClaimReference, result: Mapping[str, Any], field: str, why: str) -> ClaimError:
    return ClaimError(
        "BadAllocation",
        f"claim {reference}: {field} of device {result['device']} (request {result['request']}): {why}",
        SCHEDULE_ANEW,
    )
