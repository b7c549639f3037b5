"""Lanes: the worker threads that blocking calls run in: for each GPU one that reads it and one for claims.

A slow GPU holds up only its own lane. A caller waits until its deadline, no longer; the call itself cannot be
stopped and keeps its lane busy, which the liveness probe sees.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

NODE_LANE = "node"


class LaneTimeout(Exception):
    """A hardware call did not answer in time; the text names the call, the lane and the seconds."""


@dataclass(frozen=True, slots=True)
class Busy:
    """What a lane does right now, in which function, and for how many seconds.

    Reads ``reading of GPU index 2 (gpu-2, in nvmlDeviceGetName)``.
    """

    lane: str
    call: str
    function: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.call} ({self.lane}{', in ' + self.function if self.function else ''})"


class _Lane:
    def __init__(self, name: str) -> None:
        self.name = name
        self.call = ""
        self.since = 0.0
        self.thread = 0
        self._queue: queue.SimpleQueue[tuple[str, Callable[[], None]]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=f"lane-{name}", daemon=True).start()

    def put(self, call: str, function: Callable[[], None]) -> None:
        self._queue.put((call, function))

    def _work(self) -> None:
        self.thread = threading.get_ident()
        while True:
            call, function = self._queue.get()
            self.since, self.call = time.monotonic(), call
            function()
            self.call = ""


class Lanes:
    """Threads by name, made when first used. They end with the process.

    ``function_of`` tells by a thread's identity which function it is in, for messages.
    """

    def __init__(self, function_of: Callable[[int], str]) -> None:
        self._function_of = function_of
        self._lanes: dict[str, _Lane] = {}

    async def run(self, lane: str, call: str, function: Callable[[], T], timeout: float) -> T:
        """Run ``function`` in ``lane`` and wait ``timeout`` seconds for it.

        Raises:
            LaneTimeout: no answer in time, of this call or of one before it in the lane.
            BaseException: whatever ``function`` raised.
        """
        worker = self._lanes.get(lane)
        if worker is None:
            worker = self._lanes[lane] = _Lane(lane)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            try:
                result = function()
            except BaseException as error:
                _tell(loop, future, None, error)
            else:
                _tell(loop, future, result, None)

        worker.put(call, work)
        try:
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError:
            busy = self._busy(worker)
            text = f"{call} ({lane}) has not answered within {timeout:g} s"
            if busy is not None and busy.call != call:
                text += f", waiting behind {busy}"
            elif busy is not None and busy.function:
                text += f", it is in {busy.function}"
            raise LaneTimeout(text) from None

    def busy(self) -> list[Busy]:
        """The lanes at work, longest first."""
        found = [busy for lane in self._lanes.values() if (busy := self._busy(lane))]
        return sorted(found, key=lambda item: -item.seconds)

    def _busy(self, lane: _Lane) -> Busy | None:
        call, seconds = lane.call, time.monotonic() - lane.since
        return Busy(lane.name, call, self._function_of(lane.thread), seconds) if call else None


def _tell(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], result: Any, error: BaseException | None
) -> None:
    def deliver() -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    if not loop.is_closed():
        loop.call_soon_threadsafe(deliver)
