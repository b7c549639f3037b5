"""Claims that hold shares of devices, for an engine in this process."""

from __future__ import annotations

import uuid

from driver.claim import AllocatedClaim, AllocationResult, ClaimReference
from kubeletplugin.store import ClaimRecord, boot_seconds
from tests.harness.enginenode import CALL_SECONDS, POOL, EngineNode


def share_id(uid: str, number: int) -> str:
    """The id of a claim's share; the same each time the claim is prepared."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{uid}/{number}"))


def shares(uid: str, *devices: str, memory_bytes: int | None = None) -> AllocatedClaim:
    """A claim that has a share of each of these devices; one that is named twice, two shares."""
    results = tuple(
        AllocationResult(f"gpu-{number}", POOL, device, False, share_id(uid, number), memory_bytes)
        for number, device in enumerate(devices)
    )
    return AllocatedClaim(ClaimReference("default", f"claim-{uid}", uid), results, (), ())


async def prepare_shares(node: EngineNode, uid: str, *devices: str) -> ClaimRecord:
    return await node.engine.prepare(shares(uid, *devices), boot_seconds(), CALL_SECONDS)
