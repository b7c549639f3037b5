"""The DRA service: what the kubelet calls, for both versions of its contract."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

import grpc

from driver.claim import ClaimReference
from kube.logs import about
from kube.resources import Object
from kubeletplugin.api import dra_v1_pb2, dra_v1beta1_pb2
from kubeletplugin.api.dra_v1_pb2_grpc import DRAPluginServicer as V1Servicer
from kubeletplugin.api.dra_v1_pb2_grpc import add_DRAPluginServicer_to_server as add_v1
from kubeletplugin.api.dra_v1beta1_pb2_grpc import DRAPluginServicer as V1beta1Servicer
from kubeletplugin.api.dra_v1beta1_pb2_grpc import add_DRAPluginServicer_to_server as add_v1beta1
from kubeletplugin.claimsource import ClaimSource
from kubeletplugin.engine import ClaimEngine
from kubeletplugin.failures import Failure, failure
from kubeletplugin.metrics import Metrics
from kubeletplugin.store import ClaimRecord, boot_seconds

R = TypeVar("R", ClaimRecord, ClaimRecord | None)

_MOST_SECONDS = 40.0
"""The kubelet gives up after 45 s; an answer must come before that."""
_SHARE_OF_DEADLINE = 0.9
_SHARE_WHEN_LATE = 0.97
"""What the work itself says of being late tells more than that it is late, so it gets this much longer."""

log = logging.getLogger(__name__)


class ClaimObserver(Protocol):
    """Who wants to know how claims went: status, events."""

    def prepared(self, record: ClaimRecord, claim: Object) -> None:
        """The claim was prepared; ``claim`` is the API object that was read for it."""

    def unprepared(self, reference: ClaimReference) -> None:
        """The claim was unprepared."""

    def failed(self, operation: str, reference: ClaimReference, reason: Failure) -> None:
        """Preparing or unpreparing (``operation``) failed."""


class DraService:
    """Prepares and unprepares the claims of one call at the same time, each with its own answer."""

    def __init__(
        self, engine: ClaimEngine, source: ClaimSource, observer: ClaimObserver, metrics: Metrics
    ) -> None:
        self._engine = engine
        self._source = source
        self._observer = observer
        self._metrics = metrics
        self._work: set[asyncio.Task[Any]] = set()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serve ``v1.DRAPlugin`` and ``v1beta1.DRAPlugin`` on ``server``."""
        add_v1(_Servicer(self, dra_v1_pb2, with_shares=True), server)
        add_v1beta1(_Servicer(self, dra_v1beta1_pb2, with_shares=False), server)

    @property
    def under_way(self) -> int:
        """How many claims are being worked on."""
        return len(self._work)

    async def drain(self, timeout: float) -> None:
        """Wait for work whose caller is gone, at most ``timeout`` seconds."""
        if self._work:
            await asyncio.wait(self._work, timeout=timeout)

    def prepare(self, reference: ClaimReference, timeout: float) -> Awaitable[ClaimRecord | Failure]:
        """Read, plan and carry out one claim; never raises for what is wrong with it."""
        return self._carry_out("prepare", reference, self._prepare(reference, timeout))

    def unprepare(self, reference: ClaimReference, timeout: float) -> Awaitable[ClaimRecord | Failure | None]:
        return self._carry_out("unprepare", reference, self._unprepare(reference, timeout))

    async def _prepare(self, reference: ClaimReference, timeout: float) -> ClaimRecord:
        asked_at = boot_seconds()
        with self._metrics.step_seconds.labels("api-read").time():
            claim, found = await self._source.read(reference, timeout)
        record = await self._engine.prepare(claim, asked_at, timeout - (boot_seconds() - asked_at))
        self._observer.prepared(record, found)
        return record

    async def _unprepare(self, reference: ClaimReference, timeout: float) -> ClaimRecord | None:
        reference.check()
        record = await self._engine.unprepare(reference, timeout)
        self._observer.unprepared(reference)
        return record

    def _carry_out(
        self, operation: str, reference: ClaimReference, work: Awaitable[R]
    ) -> asyncio.Future[R | Failure]:
        """Run ``work`` to its end even when the caller gives up, so that nothing stays half done."""
        task = asyncio.create_task(self._observed(operation, reference, work))
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return asyncio.shield(task)

    async def _observed(self, operation: str, reference: ClaimReference, work: Awaitable[R]) -> R | Failure:
        metrics = self._metrics
        with (
            about(f"{reference.namespace}/{reference.name}"),
            metrics.in_flight.labels(operation).track_inprogress(),
            metrics.claim_seconds.labels(operation).time(),
        ):
            try:
                record = await work
            except Exception as error:
                reason = failure(error)
                metrics.claims.labels(operation, reason.cause).inc()
                log.warning("%s of claim %s failed: %s", operation, reference, reason)
                self._observer.failed(operation, reference, reason)
                return reason
            metrics.claims.labels(operation, "").inc()
            names = ", ".join(held.device for held in record.devices) if record else "nothing was prepared"
            log.info("%sd claim %s: %s", operation, reference, names)
            return record


class _Servicer(V1Servicer, V1beta1Servicer):
    """One version of the contract; the versions differ only in their message classes and in shares."""

    def __init__(self, service: DraService, messages: Any, *, with_shares: bool) -> None:
        self._service = service
        self._messages = messages
        self._with_shares = with_shares

    async def NodePrepareResources(self, request: Any, context: Any) -> Any:  # noqa: N802
        response = self._messages.NodePrepareResourcesResponse()
        outcomes = await self._for_each(request, context, self._service.prepare)
        for uid, outcome in outcomes.items():
            entry = response.claims[uid]
            if isinstance(outcome, Failure):
                entry.error = outcome.message
            else:
                self._add_devices(entry, outcome)
        return response

    async def NodeUnprepareResources(self, request: Any, context: Any) -> Any:  # noqa: N802
        response = self._messages.NodeUnprepareResourcesResponse()
        outcomes = await self._for_each(request, context, self._service.unprepare)
        for uid, outcome in outcomes.items():
            entry = response.claims[uid]
            if isinstance(outcome, Failure):
                entry.error = outcome.message
        return response

    async def _for_each(
        self, request: Any, context: Any, work: Callable[[ClaimReference, float], Awaitable[Any]]
    ) -> dict[str, Any]:
        remaining = context.time_remaining()
        limit = _MOST_SECONDS / _SHARE_OF_DEADLINE
        remaining = limit if remaining is None else min(limit, remaining)
        timeout = _SHARE_OF_DEADLINE * remaining
        references = {
            claim.uid: ClaimReference(claim.namespace, claim.name, claim.uid) for claim in request.claims
        }
        if not references:
            return {}
        works = {
            uid: asyncio.ensure_future(work(reference, timeout)) for uid, reference in references.items()
        }
        await asyncio.wait(works.values(), timeout=_SHARE_WHEN_LATE * remaining)
        return {
            uid: one.result() if one.done() else _in_progress(references[uid], timeout)
            for uid, one in works.items()
        }

    def _add_devices(self, entry: Any, record: ClaimRecord) -> None:
        for held in record.devices:
            device = entry.devices.add(
                request_names=held.requests,
                pool_name=held.pool,
                device_name=held.device,
                cdi_device_ids=[held.cdi_device],
            )
            if self._with_shares and held.share_id is not None:
                device.share_id = held.share_id


def _in_progress(reference: ClaimReference, timeout: float) -> Failure:
    return Failure(
        "InProgress",
        f"claim {reference}: the work on it goes on, it has not ended within {timeout:.0f} s; the next try "
        "will find it done",
    )
