"""Events: short messages on an object, where ``kubectl describe`` shows them."""

from __future__ import annotations

import asyncio
import collections
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, TypeVar

from kube.asyncclient import AsyncKubeClient
from kube.backoff import Backoff
from kube.errors import ApiError, ApiUnavailable
from kube.resources import EVENTS, Object

logger = logging.getLogger(__name__)

K = TypeVar("K")
V = TypeVar("V")

EventType = Literal["Normal", "Warning"]

MESSAGE_BYTES = 1024
"""The API server refuses longer messages."""

SERIES_SECONDS = 600.0
"""The same event within this time of the one before is counted up, not written anew."""

REPEAT_SECONDS = 60.0
"""A count that goes up is written at most this often."""

OBJECT_BURST = 25
OBJECT_REFILL_SECONDS = 300.0
"""As in client-go: one object gets 25 different events, and then one more each five minutes."""

_QUEUE_SIZE = 256
_REMEMBERED = 1024
_TRIES = 4
_NAME_LENGTH = 253


@dataclass(frozen=True, slots=True)
class ObjectReference:
    """What an event is about; ``namespace`` is empty for cluster-scoped objects."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""


_Key = tuple[ObjectReference, EventType, str, str]


@dataclass(slots=True)
class _Series:
    name: str
    first: float
    last: float
    count: int = 1
    queued: bool = False
    written: float | None = None


@dataclass(slots=True)
class _Allowance:
    tokens: float
    updated: float


class EventRecorder:
    """Writes events one after another, repeated ones as a count on the first.

    Recording never fails and never waits: what is too much (a full queue, an object with too many events) or
    cannot be written in four tries is lost, and counted in ``lost``. To be used in the event loop only.
    """

    def __init__(
        self,
        client: AsyncKubeClient,
        *,
        component: str,
        host: str,
        clock: Callable[[], float] = time.time,
        backoff: Backoff | None = None,
    ) -> None:
        self._client = client
        self._component = component
        self._host = host
        self._clock = clock
        self._backoff = backoff or Backoff(0.5, 10.0)
        self._series: collections.OrderedDict[_Key, _Series] = collections.OrderedDict()
        self._allowances: collections.OrderedDict[ObjectReference, _Allowance] = collections.OrderedDict()
        self._queue: asyncio.Queue[_Key] = asyncio.Queue(_QUEUE_SIZE)
        self._last_name = 0
        self._refused = ""
        self.lost = 0

    def warning(self, about: ObjectReference, reason: str, message: str) -> None:
        """``reason`` is one CamelCase word; the message is cut at 1,024 bytes."""
        self._record((about, "Warning", reason, _cut(message)))

    def normal(self, about: ObjectReference, reason: str, message: str) -> None:
        """As ``warning``, for what is as it should be."""
        self._record((about, "Normal", reason, _cut(message)))

    async def run(self) -> None:
        """Writes what was recorded; ends by cancellation."""
        while True:
            key = await self._queue.get()
            series = self._series.get(key)
            if series is None:
                continue
            series.queued = False
            if not await self._write(key, series):
                self.lost += 1

    def _record(self, key: _Key) -> None:
        now = self._clock()
        series = self._series.get(key)
        if series is not None and now - series.last <= SERIES_SECONDS:
            series.count += 1
            series.last = now
        elif self._allowed(key[0], now):
            series = self._series[key] = _Series(self._new_name(key[0], now), now, now)
        else:
            self.lost += 1
            return
        _remember_newest(self._series, key)
        if series.queued or (series.written is not None and now - series.written < REPEAT_SECONDS):
            return
        try:
            self._queue.put_nowait(key)
            series.queued = True
        except asyncio.QueueFull:
            self.lost += 1

    def _allowed(self, about: ObjectReference, now: float) -> bool:
        allowance = self._allowances.setdefault(about, _Allowance(OBJECT_BURST, now))
        _remember_newest(self._allowances, about)
        refill = (now - allowance.updated) / OBJECT_REFILL_SECONDS
        allowance.tokens = min(OBJECT_BURST, allowance.tokens + refill)
        allowance.updated = now
        if allowance.tokens < 1:
            return False
        allowance.tokens -= 1
        return True

    def _new_name(self, about: ObjectReference, now: float) -> str:
        self._last_name = max(self._last_name + 1, int(now * 1e9))
        suffix = f".{self._last_name:x}"
        return about.name[: _NAME_LENGTH - len(suffix)].rstrip(".-") + suffix

    async def _write(self, key: _Key, series: _Series) -> bool:
        for _ in range(_TRIES):
            try:
                await self._write_once(key, series)
            except ApiUnavailable:
                await asyncio.sleep(self._backoff.next_delay())
            except ApiError as error:
                if not error.retriable:
                    self._report_refusal(error)
                    return False
                await asyncio.sleep(self._backoff.next_delay(error.retry_after))
            else:
                self._backoff.reset()
                return True
        return False

    async def _write_once(self, key: _Key, series: _Series) -> None:
        about, event_type, reason, message = key
        namespace = about.namespace or "default"
        started = self._clock()
        progress: Object = {"count": series.count, "lastTimestamp": _timestamp(series.last)}
        if series.written is not None:
            try:
                await self._client.patch(EVENTS, series.name, progress, namespace)
                series.written = started
                return
            except ApiError as error:
                # Events are kept for an hour only, as a rule.
                if not error.not_found:
                    raise
        involved = {
            "apiVersion": about.api_version,
            "kind": about.kind,
            "name": about.name,
            "namespace": about.namespace,
            "uid": about.uid,
        }
        body: Object = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": series.name, "namespace": namespace},
            "involvedObject": {field: value for field, value in involved.items() if value},
            "type": event_type,
            "reason": reason,
            "message": message,
            "source": {"component": self._component, "host": self._host},
            "reportingComponent": self._component,
            "reportingInstance": self._host,
            "firstTimestamp": _timestamp(series.first),
            **progress,
        }
        try:
            await self._client.create(EVENTS, body, namespace)
        except ApiError as error:
            # A try before may have been carried out although no answer came.
            if not error.already_exists:
                raise
        series.written = started

    def _report_refusal(self, error: ApiError) -> None:
        if error.message != self._refused:
            self._refused = error.message
            logger.warning("an event was refused, and this is said once: %s", error)


def _remember_newest(remembered: collections.OrderedDict[K, V], key: K) -> None:
    remembered.move_to_end(key)
    if len(remembered) > _REMEMBERED:
        remembered.popitem(last=False)


def _cut(message: str) -> str:
    data = message.encode(errors="replace")
    if len(data) <= MESSAGE_BYTES:
        return data.decode()
    mark = "…"
    return data[: MESSAGE_BYTES - len(mark.encode())].decode(errors="ignore") + mark


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
