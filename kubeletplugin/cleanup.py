"""Clean-up: claims that the kubelet has forgotten, CDI specs that no claim has, and what is missing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence

from driver.claim import DRIVER_NAME, ClaimReference
from kube.asyncclient import AsyncKubeClient
from kube.conditions import Announce, Condition, Conditions
from kube.errors import ApiError, ApiUnavailable
from kube.resources import RESOURCE_CLAIMS, Object
from kubeletplugin.claimstatus import write_missing
from kubeletplugin.engine import ClaimEngine
from kubeletplugin.failures import failure
from kubeletplugin.metrics import Metrics
from kubeletplugin.store import ClaimRecord, ClaimState, HeldDevice, StoreReplaced

_UNPREPARE_SECONDS = 30.0
_JITTER = 0.1
_MEND_PERIOD_SECONDS = 20.0

OnVanished = Callable[[ClaimRecord, Sequence[HeldDevice]], None]
"""Told of a claim whose MIG devices were destroyed behind its back, once for each device."""

log = logging.getLogger(__name__)


class Cleanup:
    """Compares the store with the API server; what has no claim there for a grace time is unprepared.

    Any doubt keeps a claim: only an answer that it is gone, replaced or allocated elsewhere counts. A claim
    that is only half prepared needs no grace, since no pod was ever told of it.
    """

    def __init__(
        self,
        engine: ClaimEngine,
        client: AsyncKubeClient,
        metrics: Metrics,
        *,
        pool: str,
        period_seconds: float,
        grace_seconds: float,
        on_vanished: OnVanished,
        announce: Announce,
    ) -> None:
        self._engine = engine
        self._client = client
        self._metrics = metrics
        self._pool = pool
        self._period = period_seconds
        self._grace = grace_seconds
        self._gone_since: dict[str, float] = {}
        self._on_vanished = on_vanished
        self._conditions = Conditions(announce)
        self._vanished: set[tuple[str, str]] = set()

    async def run(self) -> None:
        """Clean up now and then, for ever. The period varies, so that nodes do not ask all at once.

        Raises:
            StoreReplaced: the store that this process has is not the node's any more.
        """
        while not self._engine.restored.is_set():
            await self._try("the look at the store", self._engine.records())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_MEND_PERIOD_SECONDS):
                    await self._engine.restored.wait()
        due = time.monotonic()
        while True:
            await self._try("the mending of CDI specs", self._mend())
            await self._try("the look for MIG devices in use", self._look_for_vanished())
            if time.monotonic() >= due:
                await self._try("the clean-up", self.once())
                pause = self._period * random.uniform(1 - _JITTER, 1 + _JITTER)
                due = time.monotonic() + (min(pause, self._grace) if self._gone_since else pause)
            await asyncio.sleep(max(0.0, min(_MEND_PERIOD_SECONDS, due - time.monotonic())))

    async def _try(self, what: str, work: Awaitable[object]) -> None:
        try:
            await work
        except StoreReplaced:
            raise
        except Exception as error:
            log.warning("%s stopped half way, the next one goes on: %s", what, failure(error))

    async def _mend(self) -> None:
        for claim in await self._engine.mend():
            log.warning("the CDI spec of claim %s was gone and is written again", claim)

    async def _look_for_vanished(self) -> None:
        still: set[tuple[str, str]] = set()
        for record, devices in await self._engine.vanished():
            gone = {(record.claim.uid, held.uuid) for held in devices}
            if not gone <= self._vanished:
                self._on_vanished(record, devices)
            still |= gone
        self._vanished = still

    async def _sweep(self) -> None:
        for name in await self._engine.sweep():
            log.info("removed %s from the CDI folder: no claim has it", name)

    async def _put_back_intervals(self) -> None:
        problems = await self._engine.put_back_intervals()
        self._conditions.stand(Condition("TimeSliceLeft", problem) for problem in problems)

    async def once(self) -> None:
        """One round over the CDI folder and all claims in the store."""
        await self._try("the sweep of the CDI folder", self._sweep())
        await self._try("the look for time-slice intervals left over", self._put_back_intervals())
        records = await self._engine.records()
        self._metrics.prepared_claims.set(len(records))
        self._gone_since = {uid: since for uid, since in self._gone_since.items() if uid in records}
        for record in records.values():
            try:
                claim = await self._found(record.claim)
            except (ApiError, ApiUnavailable) as error:
                log.info("claim %s is kept, the API server did not tell: %s", record.claim, error)
                continue
            reason = self._why_gone(record, claim)
            if reason is None:
                self._gone_since.pop(record.claim.uid, None)
                if claim is not None and record.claim.name and record.state is ClaimState.PREPARED:
                    await self._try(f"the status of claim {record.claim}", self._write_status(record, claim))
            elif self._is_due(record):
                await self._try(f"unprepare of claim {record.claim}", self._unprepare(record, reason))

    def _is_due(self, record: ClaimRecord) -> bool:
        now = time.monotonic()
        since = self._gone_since.setdefault(record.claim.uid, now)
        return record.state is ClaimState.PREPARING or now - since >= self._grace

    async def _unprepare(self, record: ClaimRecord, reason: str) -> None:
        log.warning("claim %s is unprepared without the kubelet: %s", record.claim, reason)
        await self._engine.unprepare(record.claim, _UNPREPARE_SECONDS)
        self._gone_since.pop(record.claim.uid, None)
        self._metrics.claims_cleaned.inc()

    async def _write_status(self, record: ClaimRecord, claim: Object) -> None:
        """Write ``status.devices`` where it is missing, as when a process ended right after its answer."""
        if await write_missing(self._client, record, claim):
            log.info("status.devices of claim %s was missing and is written", record.claim)

    def _why_gone(self, record: ClaimRecord, claim: Object | None) -> str | None:
        """Why no pod can use the claim here any more; ``None`` if one can."""
        reference = record.claim
        if claim is None:
            return "the claim does not exist any more"
        uid = claim["metadata"]["uid"]
        if uid != reference.uid:
            return f"another claim has its name (UID {uid})"
        allocation = (claim.get("status") or {}).get("allocation") or {}
        results = (allocation.get("devices") or {}).get("results") or []
        ours = [
            item for item in results if item.get("driver") == DRIVER_NAME and item.get("pool") == self._pool
        ]
        if not ours:
            return "the claim is not allocated on this node any more"
        return None

    async def _found(self, reference: ClaimReference) -> Object | None:
        """The claim of that name now; the one of that UID where the store was rebuilt without names."""
        if not reference.name:
            items, _ = await self._client.list(RESOURCE_CLAIMS)
            return next((item for item in items if item["metadata"]["uid"] == reference.uid), None)
        try:
            return await self._client.get(RESOURCE_CLAIMS, reference.name, reference.namespace)
        except ApiError as error:
            if error.not_found:
                return None
            raise
