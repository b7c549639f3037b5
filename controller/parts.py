"""Parts: what the controller consists of, each on its own, and what they are given."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from controller.metrics import Metrics
from controller.settings import Settings
from kube.asyncclient import AsyncKubeClient
from kube.backoff import Backoff
from kube.errors import ApiError, ApiUnavailable
from kube.events import EventRecorder
from kube.resources import Resource

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every part may use: the API server, events, metrics, and the settings of this run."""

    settings: Settings
    client: AsyncKubeClient
    events: EventRecorder
    metrics: Metrics

    def watch_trouble(self, resource: Resource) -> Callable[[ApiError | ApiUnavailable], None]:
        """What a reflector of ``resource`` calls with each failure: counted, and each kind logged once."""
        said: set[str] = set()

        def tell(error: ApiError | ApiUnavailable) -> None:
            self.metrics.watch_errors.labels(resource.plural).inc()
            kind = str(error.status) if isinstance(error, ApiError) else "unavailable"
            level = logging.DEBUG if kind in said else logging.WARNING
            said.add(kind)
            log.log(level, "%s cannot be watched, and it is tried again: %s", resource, error)

        return tell


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the controller.

    ``run`` does its work for ever, until it is cancelled, and handles what the API server refuses. It is
    called anew each time that this replica comes to lead; with ``leading`` false it runs on every replica
    from the start. ``not_ready`` says what is missing before the replica can be of use, for ``/readyz``.
    """

    name: str
    run: Callable[[], Awaitable[None]]
    leading: bool = True
    not_ready: Callable[[], Sequence[str]] = tuple


async def keep_running(part: Part, metrics: Metrics, backoff: Backoff | None = None) -> None:
    """Run the part for ever: what it did not expect is logged, and it is started anew after a while.

    So one part that fails takes no other one along.
    """
    backoff = backoff or Backoff(1.0, 60.0)
    while True:
        try:
            await part.run()
            log.error("%s has ended, and is started anew", part.name)
        except Exception:
            log.exception("%s failed, and is started anew", part.name)
        metrics.part_failures.labels(part.name).inc()
        await asyncio.sleep(backoff.next_delay())


async def run_together(parts: Sequence[Part], metrics: Metrics) -> None:
    """Run all parts for ever, also if there is none."""
    async with asyncio.TaskGroup() as group:
        for part in parts:
            group.create_task(keep_running(part, metrics), name=part.name)
        await asyncio.Event().wait()
