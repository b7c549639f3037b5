"""A question to the API server whose answer may change: asked when first needed, and again and again."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod

from kube.backoff import Backoff
from kube.errors import ApiError, ApiUnavailable

PERIOD_SECONDS = 600.0

log = logging.getLogger(__name__)


class ServerQuestion(ABC):
    """Asks from when the answer is first needed, then every ten minutes: clusters are upgraded.

    ``changed`` is set when the answer changes; whoever publishes clears it.
    """

    def __init__(self, about: str, period: float, backoff: Backoff | None) -> None:
        """``about`` is what is asked, as in "``about`` is not known"."""
        self._about = about
        self._period = period
        self._backoff = backoff or Backoff(0.5, 20.0)
        self._needed = asyncio.Event()
        self._answered = asyncio.Event()
        self.changed = asyncio.Event()

    async def run(self) -> None:
        """Never returns."""
        await self._needed.wait()
        while True:
            try:
                await self._ask()
            except (ApiError, ApiUnavailable) as error:
                log.warning("%s is not known: %s", self._about, error)
                await asyncio.sleep(self._backoff.next_delay())
                continue
            self._backoff.reset()
            await asyncio.sleep(self._period)

    @property
    def _is_answered(self) -> bool:
        return self._answered.is_set()

    async def _first_answer(self) -> None:
        """Wait for it, and have it asked for."""
        self._needed.set()
        await self._answered.wait()

    def _answer(self, *, is_new: bool) -> bool:
        """Note that the server has answered; whether this is the first answer, or another than before."""
        is_new = is_new or not self._is_answered
        if is_new:
            self.changed.set()
        self._answered.set()
        return is_new

    @abstractmethod
    async def _ask(self) -> None:
        """Ask once, and call :meth:`_answer`.

        Raises:
            ApiError, ApiUnavailable: the server did not answer this question.
        """
