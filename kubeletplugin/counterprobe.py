"""Probes whether the API server stores shared counters, without which partitions would be given out twice.

With the feature gate DRAPartitionableDevices off, a server accepts slices and silently leaves the counters
out. A dry run shows what it would store, and stores nothing.
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus

from kube.asyncclient import AsyncKubeClient
from kube.backoff import Backoff
from kube.errors import ApiError, ApiUnavailable
from kube.resources import RESOURCE_SLICES, Object
from kubeletplugin.metrics import Metrics
from kubeletplugin.publisher import COUNTER_FIELDS, DroppedFields
from kubeletplugin.slicecomparison import dropped_fields

FEATURE_GATE = "DRAPartitionableDevices"
PERIOD_SECONDS = 600.0

_REFUSALS = (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY)

log = logging.getLogger(__name__)


class CounterProbe:
    """Knows whether counters are stored: asks at the start, every ten minutes, and learns from real writes.

    ``changed`` is set when the answer changes; whoever publishes clears it.
    """

    def __init__(
        self,
        client: AsyncKubeClient,
        metrics: Metrics,
        *,
        driver: str,
        node_name: str,
        period: float = PERIOD_SECONDS,
        backoff: Backoff | None = None,
    ) -> None:
        self._client = client
        self._metrics = metrics
        self._driver = driver
        self._node_name = node_name
        self._period = period
        self._backoff = backoff or Backoff(0.5, 20.0)
        self._needed = asyncio.Event()
        self._answered = asyncio.Event()
        self.changed = asyncio.Event()
        self.supported = False
        self.reason = "the API server has not been asked yet"
        """Why counters are not supported; empty if they are."""

    async def answer(self) -> bool:
        """Whether counters are supported; waits for the first answer of the API server."""
        self._needed.set()
        await self._answered.wait()
        return self.supported

    async def run(self) -> None:
        """Ask again and again, from when the answer is first needed. Never returns."""
        await self._needed.wait()
        while True:
            try:
                reason = await self._ask()
            except (ApiError, ApiUnavailable) as error:
                log.warning("whether the API server stores shared counters is not known: %s", error)
                await asyncio.sleep(self._backoff.next_delay())
                continue
            self._backoff.reset()
            self._learn(reason)
            await asyncio.sleep(self._period)

    def refuted_by(self, dropped: DroppedFields) -> bool:
        """Learn from a slice that was stored with less than was sent: whether that were its counters."""
        fields = [field for field in dropped.fields if field.startswith(COUNTER_FIELDS)]
        if fields:
            self._learn(f"it stored ResourceSlice {dropped.slice_name} without {', '.join(fields)}")
        return bool(fields)

    def _learn(self, reason: str) -> None:
        supported = not reason
        if not self._answered.is_set() or supported != self.supported:
            log.info("the API server stores shared counters: %s", reason or "yes")
            self.changed.set()
        self.supported, self.reason = supported, reason
        self._metrics.counters_supported.set(supported)
        self._answered.set()

    async def _ask(self) -> str:
        """Why counters are not supported, or nothing.

        Raises:
            ApiError, ApiUnavailable: the server did not answer this question.
        """
        for spec in self._specs():
            body = {
                "apiVersion": RESOURCE_SLICES.group_version,
                "kind": "ResourceSlice",
                "metadata": {"generateName": f"counter-probe-{self._node_name}"[:50].rstrip("-.") + "-"},
                "spec": spec,
            }
            try:
                stored = await self._client.create(RESOURCE_SLICES, body, dry_run=True)
            except ApiError as error:
                if error.status in _REFUSALS or not (error.retriable or self._answered.is_set()):
                    return f"it refused them in a dry run: {error}"
                raise
            fields = dropped_fields(spec, stored["spec"])
            if fields:
                return f"in a dry run it left out {', '.join(fields)}"
        return ""

    def _specs(self) -> list[Object]:
        pool = {"name": self._node_name, "generation": 1, "resourceSliceCount": 2}
        common = {"driver": self._driver, "nodeName": self._node_name, "pool": pool}
        counters = {"probe": {"value": "1"}}
        return [
            {**common, "sharedCounters": [{"name": "probe", "counters": counters}]},
            {
                **common,
                "devices": [
                    {
                        "name": "probe",
                        "consumesCounters": [{"counterSet": "probe", "counters": counters}],
                    }
                ],
            },
        ]
