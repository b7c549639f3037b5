"""The release of Kubernetes, as the API server tells it: for what cannot be seen in what it stores.

How the scheduler counts is in no field, so nothing but its release tells whether it does it right. The
scheduler is taken to be of the API server's release.
"""

from __future__ import annotations

import asyncio
import logging
import re

from driver.shares import Release
from kube.asyncclient import AsyncKubeClient
from kube.backoff import Backoff
from kube.errors import ApiError, ApiUnavailable

PERIOD_SECONDS = 600.0

log = logging.getLogger(__name__)


def parse_release(version: str) -> Release | None:
    """``v1.36.3``, ``v1.36.3-gke.100`` or ``v1.36.3+k3s1`` as numbers; ``None`` if it is none of them."""
    found = re.match(r"v?(\d+)\.(\d+)\.(\d+)(?![\d.])", version, re.ASCII)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


class ServerVersion:
    """Asks from when the answer is first needed, then every ten minutes: clusters are upgraded.

    ``changed`` is set when the answer changes; whoever publishes clears it.
    """

    def __init__(
        self, client: AsyncKubeClient, *, period: float = PERIOD_SECONDS, backoff: Backoff | None = None
    ) -> None:
        self._client = client
        self._period = period
        self._backoff = backoff or Backoff(0.5, 20.0)
        self._needed = asyncio.Event()
        self._answered = asyncio.Event()
        self.changed = asyncio.Event()
        self.release: Release | None = None
        self.version = "a version that is not known yet"
        """The version in words, for messages."""

    async def answer(self) -> Release | None:
        """The release, ``None`` if the server does not say; waits for its first answer."""
        self._needed.set()
        await self._answered.wait()
        return self.release

    async def run(self) -> None:
        """Never returns."""
        await self._needed.wait()
        while True:
            try:
                release, version = await self._ask()
            except (ApiError, ApiUnavailable) as error:
                log.warning("the version of Kubernetes is not known: %s", error)
                await asyncio.sleep(self._backoff.next_delay())
                continue
            self._backoff.reset()
            if not self._answered.is_set() or release != self.release:
                log.info("Kubernetes is %s", version)
                self.changed.set()
            self.release, self.version = release, version
            self._answered.set()
            await asyncio.sleep(self._period)

    async def _ask(self) -> tuple[Release | None, str]:
        """The release and the version in words.

        Raises:
            ApiError, ApiUnavailable: the server did not answer this question.
        """
        try:
            told = (await self._client.version()).get("gitVersion")
        except ApiError as error:
            if error.retriable or self._answered.is_set():
                raise
            return None, f"a version that is not known ({error})"
        return (
            (parse_release(told), told)
            if isinstance(told, str)
            else (None, "a version that it does not tell")
        )
