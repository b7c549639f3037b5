"""The release of Kubernetes, as the API server tells it: for what cannot be seen in what it stores.

How the scheduler counts is in no field, so nothing but its release tells whether it does it right. The
scheduler is taken to be of the API server's release.
"""

from __future__ import annotations

import logging
import re

from driver.shares import Release
from kube.asyncclient import AsyncKubeClient
from kube.backoff import Backoff
from kube.errors import ApiError
from kube.serverquestion import PERIOD_SECONDS, ServerQuestion

log = logging.getLogger(__name__)


def parse_release(version: str) -> Release | None:
    """``v1.36.3``, ``v1.36.3-gke.100`` or ``v1.36.3+k3s1`` as numbers; ``None`` if it is none of them."""
    found = re.match(r"v?(\d+)\.(\d+)\.(\d+)(?![\d.])", version, re.ASCII)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


class ServerVersion(ServerQuestion):
    """Knows the release, or that the server does not tell it."""

    def __init__(
        self, client: AsyncKubeClient, *, period: float = PERIOD_SECONDS, backoff: Backoff | None = None
    ) -> None:
        super().__init__("the version of Kubernetes", period, backoff)
        self._client = client
        self.release: Release | None = None
        self.version = "a version that is not known yet"
        """The version in words, for messages."""

    async def answer(self) -> Release | None:
        """The release, ``None`` if the server does not say; waits for its first answer."""
        await self._first_answer()
        return self.release

    async def _ask(self) -> None:
        release, version = await self._told()
        is_new = release != self.release
        self.release, self.version = release, version
        if self._answer(is_new=is_new):
            log.info("Kubernetes is %s", version)

    async def _told(self) -> tuple[Release | None, str]:
        """The release and the version in words.

        Raises:
            ApiError, ApiUnavailable: the server did not answer this question.
        """
        try:
            told = (await self._client.version()).get("gitVersion")
        except ApiError as error:
            if error.retriable or self._is_answered:
                raise
            return None, f"a version that is not known ({error})"
        return (
            (parse_release(told), told)
            if isinstance(told, str)
            else (None, "a version that it does not tell")
        )
