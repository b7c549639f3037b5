"""How long to wait before the next try."""

from __future__ import annotations

import random
import time
from collections.abc import Callable


class Backoff:
    """Exponential delays with jitter, so that the agents of many nodes do not come back together.

    The n-th delay lies between half of ``initial * factor**n`` and it, never above ``maximum`` (seconds).
    When ``reset_after`` seconds went by since the last delay was asked for, the row starts anew.
    """

    def __init__(
        self,
        initial: float = 0.5,
        maximum: float = 30.0,
        *,
        factor: float = 2.0,
        reset_after: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._initial = initial
        self._maximum = maximum
        self._factor = factor
        self._reset_after = reset_after
        self._clock = clock
        self._uniform = uniform
        self._ceiling = initial
        self._asked: float | None = None

    def next_delay(self, at_least: float | None = None) -> float:
        """Seconds to wait now. A server's Retry-After is given as ``at_least``; jitter comes on top."""
        now = self._clock()
        if self._asked is not None and now - self._asked > self._reset_after:
            self.reset()
        ceiling = self._ceiling
        self._ceiling = min(ceiling * self._factor, self._maximum)
        delay = self._uniform(ceiling / 2, ceiling)
        if at_least is not None and at_least > delay:
            delay = at_least + self._uniform(0.0, ceiling / 2)
        self._asked = now + delay
        return delay

    def reset(self) -> None:
        """A try succeeded: the next failure starts with the shortest delay."""
        self._ceiling = self._initial
        self._asked = None
