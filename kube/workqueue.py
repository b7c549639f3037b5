"""What is to be worked on: each key once, however often it was asked for meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from kube.backoff import Backoff

K = TypeVar("K", bound=Hashable)


class WorkQueue(Generic[K]):
    """Keys with the time when each is due. For one worker, in the event loop."""

    def __init__(self, backoff: Callable[[], Backoff] = Backoff) -> None:
        """``backoff`` makes the delays of one key that fails again and again."""
        self._make_backoff = backoff
        self._due: dict[K, float] = {}
        self._backoffs: dict[K, Backoff] = {}
        self._changed = asyncio.Event()

    def add(self, key: K, delay: float = 0.0) -> None:
        """The key is due in ``delay`` seconds, or sooner where that was asked for before."""
        due = asyncio.get_running_loop().time() + delay
        if due < self._due.get(key, float("inf")):
            self._due[key] = due
            self._changed.set()

    def failed(self, key: K, at_least: float | None = None) -> None:
        """The key is due again after a back-off of its own, and after ``at_least`` seconds."""
        backoff = self._backoffs.setdefault(key, self._make_backoff())
        self.add(key, backoff.next_delay(at_least))

    def succeeded(self, key: K) -> None:
        """The next failure of this key starts with the shortest delay."""
        self._backoffs.pop(key, None)

    async def get(self) -> K:
        """The key that has been due for longest; waits until there is one."""
        while True:
            self._changed.clear()
            key = min(self._due, key=self._due.__getitem__, default=None)
            if key is None:
                await self._changed.wait()
                continue
            left = self._due[key] - asyncio.get_running_loop().time()
            if left <= 0:
                del self._due[key]
                return key
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                continue
