"""Probes whether the API server stores what a feature of Kubernetes needs of a ResourceSlice.

With the feature's gate off, a server accepts slices and silently leaves its fields out: without shared
counters, partitions would be given out twice. A dry run shows what it would store, and stores nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from prometheus_client import Gauge

from kube.asyncclient import AsyncKubeClient
from kube.backoff import Backoff
from kube.errors import ApiError
from kube.resources import RESOURCE_SLICES, Object
from kube.serverquestion import PERIOD_SECONDS, ServerQuestion
from kubeletplugin.publisher import COUNTER_FIELDS, DroppedFields
from kubeletplugin.slicecomparison import dropped_fields

_REFUSALS = (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Feature:
    """What is asked for: the name of its gate, what it stores, in words, and in which fields of a slice.

    ``specs`` makes what differs between the specs of slices that show it. ``fields`` are paths, and
    beginnings of paths, as :class:`kubeletplugin.publisher.DroppedFields` has them.
    """

    gate: str
    stored: str
    fields: tuple[str, ...]
    specs: Callable[[], Sequence[Object]]


_COUNTER = {"probe": {"value": "1"}}
_POLICY = {"default": "1", "validRange": {"min": "1", "max": "2", "step": "1"}}

COUNTERS = Feature(
    "DRAPartitionableDevices",
    "shared counters",
    COUNTER_FIELDS,
    lambda: [
        {"sharedCounters": [{"name": "probe", "counters": _COUNTER}]},
        {"devices": [{"name": "probe", "consumesCounters": [{"counterSet": "probe", "counters": _COUNTER}]}]},
    ],
)
SHARED_DEVICES = Feature(
    "DRAConsumableCapacity",
    "devices that several claims share",
    ("devices[].allowMultipleAllocations",),
    lambda: [
        {
            "devices": [
                {
                    "name": "probe",
                    "allowMultipleAllocations": True,
                    "capacity": {"probe": {"value": "2", "requestPolicy": _POLICY}},
                }
            ]
        }
    ],
)
TAINTS = Feature(
    "DRADeviceTaints",
    "taints of devices",
    ("devices[].taints",),
    lambda: [{"devices": [{"name": "probe", "taints": [{"key": "probe", "effect": "NoSchedule"}]}]}],
)


class FeatureProbe(ServerQuestion):
    """Knows whether a feature's fields are stored, and learns from real writes, too."""

    def __init__(
        self,
        client: AsyncKubeClient,
        feature: Feature,
        metric: Gauge,
        *,
        driver: str,
        node_name: str,
        period: float = PERIOD_SECONDS,
        backoff: Backoff | None = None,
    ) -> None:
        """``metric`` is 1 while the feature is supported."""
        super().__init__(f"whether the API server stores {feature.stored}", period, backoff)
        self._client = client
        self.feature = feature
        self._metric = metric
        self._driver = driver
        self._node_name = node_name
        self.supported = False
        self.reason = "the API server has not been asked yet"
        """Why the feature is not supported; empty if it is."""

    async def answer(self) -> bool:
        """Whether the feature is supported; waits for the first answer of the API server."""
        await self._first_answer()
        return self.supported

    def refuted_by(self, dropped: DroppedFields) -> bool:
        """Learn from a slice that was stored with less than was sent: whether that was the feature's."""
        fields = [field for field in dropped.fields if field.startswith(self.feature.fields)]
        if fields:
            self._learn(f"it stored ResourceSlice {dropped.slice_name} without {', '.join(fields)}")
        return bool(fields)

    def _learn(self, reason: str) -> None:
        supported = not reason
        is_new = supported != self.supported
        self.supported, self.reason = supported, reason
        self._metric.set(supported)
        if self._answer(is_new=is_new):
            log.info("the API server stores %s: %s", self.feature.stored, reason or "yes")

    async def _ask(self) -> None:
        self._learn(await self._why_not())

    async def _why_not(self) -> str:
        """Why the feature is not supported, or nothing.

        Raises:
            ApiError, ApiUnavailable: the server did not answer this question.
        """
        for spec in self._specs():
            body = {
                "apiVersion": RESOURCE_SLICES.group_version,
                "kind": "ResourceSlice",
                "metadata": {"generateName": f"feature-probe-{self._node_name}"[:50].rstrip("-.") + "-"},
                "spec": spec,
            }
            try:
                stored = await self._client.create(RESOURCE_SLICES, body, dry_run=True)
            except ApiError as error:
                if error.status in _REFUSALS or not (error.retriable or self._is_answered):
                    return f"it refused them in a dry run: {error}"
                raise
            fields = dropped_fields(spec, stored["spec"])
            if fields:
                return f"in a dry run it left out {', '.join(fields)}"
        return ""

    def _specs(self) -> list[Object]:
        pool = {"name": self._node_name, "generation": 1, "resourceSliceCount": 2}
        common = {"driver": self._driver, "nodeName": self._node_name, "pool": pool}
        return [{**common, **spec} for spec in self.feature.specs()]
