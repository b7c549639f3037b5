"""Lanes: the worker threads that blocking hardware calls run in, one for each GPU and one for the node.

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
    """What a lane does right now, and for how many seconds."""

    lane: str
    call: str
    seconds: float


class _Lane:
    def __init__(self, name: str) -> None:
        self.name = name
        self.call = ""
        self.since = 0.0
        self._queue: queue.SimpleQueue[tuple[str, Callable[[], None]]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=f"lane-{name}", daemon=True).start()

    def put(self, call: str, function: Callable[[], None]) -> None:
        self._queue.put((call, function))

    def _work(self) -> None:
        while True:
            call, function = self._queue.get()
            self.since, self.call = time.monotonic(), call
            function()
            self.call = ""


class Lanes:
    """Threads by name, made when first used. They end with the process."""

    def __init__(self) -> None:
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
            busy = worker.call
            behind = "" if busy in ("", call) else f", waiting behind {busy}"
            raise LaneTimeout(f"{call} ({lane}) has not answered within {timeout:g} s{behind}") from None

    def busy(self) -> list[Busy]:
        """The lanes at work, longest first."""
        now = time.monotonic()
        found = [Busy(lane.name, lane.call, now - lane.since) for lane in self._lanes.values() if lane.call]
        return sorted(found, key=lambda item: -item.seconds)


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
