"""One leader among several processes, by a Lease that the leader renews.

The official client's leader election blocks its thread, cannot be stopped and does not give a lease back,
so it is done here: :func:`decide` thinks, :class:`Leadership` asks and writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum, auto
from typing import Any

from kube.asyncclient import AsyncKubeClient
from kube.errors import ApiError, ApiUnavailable
from kube.resources import LEASES, Object

_RELEASE_SECONDS = 2.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. A leader that could not renew for ``renew`` stops; others take over after ``lease``.

    ``lease`` is longer than ``renew``, so that there are never two. ``retry`` lies between two tries.
    """

    lease: float = 12.0
    renew: float = 8.0
    retry: float = 2.0


class Step(StrEnum):
    """What a candidate does with a Lease."""

    CREATE = auto()
    TAKE = auto()
    RENEW = auto()
    WAIT = auto()


def decide(lease: Object | None, identity: str, unchanged_seconds: float, lease_seconds: float) -> Step:
    """What ``identity`` does with the Lease as it is now, ``None`` if there is none.

    ``unchanged_seconds``: for how long this process has seen it as it is. Times that others wrote are not
    compared with the clock here, since clocks differ.
    """
    if lease is None:
        return Step.CREATE
    spec = lease.get("spec") or {}
    holder = spec.get("holderIdentity")
    if holder == identity:
        return Step.RENEW
    promised = spec.get("leaseDurationSeconds")
    limit = float(promised) if isinstance(promised, int) and promised > 0 else lease_seconds
    return Step.TAKE if not holder or unchanged_seconds > limit else Step.WAIT


def lease_spec(lease: Object | None, step: Step, identity: str, lease_seconds: float, now: str) -> Object:
    """The spec to write; ``now`` as the API has times."""
    known: dict[str, Any] = ((lease or {}).get("spec") or {}) if step is not Step.CREATE else {}
    renewed = step is Step.RENEW
    return {
        "holderIdentity": identity,
        "leaseDurationSeconds": max(1, round(lease_seconds)),
        "acquireTime": known.get("acquireTime") or now if renewed else now,
        "renewTime": now,
        "leaseTransitions": known.get("leaseTransitions", 0) + (step is Step.TAKE),
    }


class Leadership:
    """Leads while it holds the Lease ``namespace``/``name``. ``identity`` must be this process's alone."""

    def __init__(
        self,
        client: AsyncKubeClient,
        namespace: str,
        name: str,
        identity: str,
        *,
        on_change: Callable[[bool], None] = lambda leading: None,
        timing: Timing | None = None,
    ) -> None:
        """``on_change`` is told whether this process leads, each time that it changes."""
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._on_change = on_change
        self._timing = timing or Timing()
        self._seen: Object | None = None
        self._seen_since = 0.0
        self._renewed = 0.0
        self._trouble = ""

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Run ``lead`` while leading, for ever; cancelled, the Lease is given back when ``lead`` has ended.

        When the Lease is lost, ``lead`` is cancelled. What ``lead`` raises comes out of here.
        """
        while True:
            if not await self._try():
                await asyncio.sleep(self._timing.retry)
                continue
            log.info("%s leads", self._identity)
            self._on_change(True)
            try:
                await self._lead(lead)
            finally:
                self._on_change(False)
                await asyncio.shield(self._release())
            log.warning("%s does not lead any more", self._identity)

    async def _lead(self, lead: Callable[[], Awaitable[None]]) -> None:
        leading = asyncio.ensure_future(lead())
        try:
            while await self._kept(leading):
                await asyncio.wait((leading,), timeout=self._timing.retry)
        finally:
            leading.cancel()
            await asyncio.wait((leading,))
        if not leading.cancelled():
            leading.result()

    async def _kept(self, leading: asyncio.Future[None]) -> bool:
        """Renew; whether the Lease is still held."""
        if leading.done():
            return False
        left = self._renewed + self._timing.renew - time.monotonic()
        try:
            async with asyncio.timeout(max(left, 0.0)):
                await self._try()
        except TimeoutError:
            return False
        spec = (self._seen or {}).get("spec") or {}
        return (
            spec.get("holderIdentity") == self._identity
            and time.monotonic() < self._renewed + self._timing.renew
        )

    async def _try(self) -> bool:
        """Try to get or to renew the Lease; whether that was done."""
        started = time.monotonic()
        try:
            step = await self._step()
        except (ApiError, ApiUnavailable) as error:
            # Another candidate was faster, and that is as it should be.
            if not (isinstance(error, ApiError) and (error.conflict or error.already_exists)):
                self._say(f"the Lease {self._namespace}/{self._name} cannot be renewed: {error}")
            return False
        self._say("")
        if step is Step.WAIT:
            return False
        # Counted from before the request, since others may have seen it written then.
        self._renewed = started
        return True

    async def _step(self) -> Step:
        try:
            found: Object | None = await self._client.get(LEASES, self._name, self._namespace)
        except ApiError as error:
            if not error.not_found:
                raise
            found = None
        if (found or {}).get("spec") != (self._seen or {}).get("spec"):
            self._seen_since = time.monotonic()
        self._seen = found
        unchanged = time.monotonic() - self._seen_since
        step = decide(found, self._identity, unchanged, self._timing.lease)
        if step is not Step.WAIT:
            self._seen = await self._write(found, step)
            self._seen_since = time.monotonic()
        return step

    async def _write(self, found: Object | None, step: Step) -> Object:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = lease_spec(found, step, self._identity, self._timing.lease, now)
        if found is None:
            body: Object = {
                "apiVersion": LEASES.group_version,
                "kind": "Lease",
                "metadata": {"name": self._name},
                "spec": spec,
            }
            return await self._client.create(LEASES, body, self._namespace)
        # With the resourceVersion that was read: whoever writes second is refused.
        return await self._client.replace(LEASES, self._name, {**found, "spec": spec}, self._namespace)

    async def _release(self) -> None:
        """Let another one lead at once; without an answer it waits until the Lease has run out."""
        with contextlib.suppress(ApiError, ApiUnavailable, TimeoutError):
            async with asyncio.timeout(_RELEASE_SECONDS):
                found = await self._client.get(LEASES, self._name, self._namespace)
                spec = found.get("spec") or {}
                if spec.get("holderIdentity") == self._identity:
                    released = {**found, "spec": {**spec, "holderIdentity": ""}}
                    await self._client.replace(LEASES, self._name, released, self._namespace)

    def _say(self, trouble: str) -> None:
        if trouble and not self._trouble:
            log.warning("%s", trouble)
        self._trouble = trouble
