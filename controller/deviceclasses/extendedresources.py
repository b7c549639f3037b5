"""Whether the API server stores the extended resource of a DeviceClass.

The feature gate ``DRAExtendedResource`` is off by default in Kubernetes 1.34 and 1.35; then the server
accepts a class and silently leaves the field out. A dry run shows it, and stores nothing.
"""

from __future__ import annotations

import logging

from prometheus_client import Gauge

from kube.asyncclient import AsyncKubeClient
from kube.backoff import Backoff
from kube.errors import ApiError
from kube.resources import DEVICE_CLASSES, Object
from kube.serverquestion import PERIOD_SECONDS, ServerQuestion

_PROBE = "gpudra.io/probe"

log = logging.getLogger(__name__)


class ExtendedResources(ServerQuestion):
    """Knows whether the field is stored, and learns from real writes, too."""

    def __init__(
        self,
        client: AsyncKubeClient,
        metric: Gauge,
        *,
        period: float = PERIOD_SECONDS,
        backoff: Backoff | None = None,
    ) -> None:
        """``metric`` is 1 while the field is stored."""
        super().__init__("whether the API server stores extended resources of DeviceClasses", period, backoff)
        self._client = client
        self._metric = metric
        self.supported = False

    async def answer(self) -> bool:
        """Whether the field is stored; waits for the first answer of the API server."""
        await self._first_answer()
        return self.supported

    def stored(self, sent: Object, stored: Object) -> bool:
        """Learn from a class that was written: whether its extended resource, if it has one, was stored."""
        dropped = "extendedResourceName" in sent["spec"] and "extendedResourceName" not in stored["spec"]
        if dropped:
            self._learn(f"it stored DeviceClass {stored['metadata']['name']} without it")
        return not dropped

    def _learn(self, reason: str) -> None:
        is_new = self.supported != (not reason)
        self.supported = not reason
        self._metric.set(self.supported)
        if self._answer(is_new=is_new):
            log.info("the API server stores extended resources of DeviceClasses: %s", reason or "yes")

    async def _ask(self) -> None:
        body: Object = {
            "apiVersion": DEVICE_CLASSES.group_version,
            "kind": "DeviceClass",
            "metadata": {"generateName": "feature-probe-"},
            "spec": {
                "selectors": [{"cel": {"expression": 'device.driver == "gpudra.io"'}}],
                "extendedResourceName": _PROBE,
            },
        }
        try:
            stored = await self._client.create(DEVICE_CLASSES, body, dry_run=True)
        except ApiError as error:
            if error.retriable or self._is_answered:
                raise
            self._learn(f"it refused one in a dry run: {error}")
            return
        is_stored = stored["spec"].get("extendedResourceName") == _PROBE
        self._learn("" if is_stored else "in a dry run it left extendedResourceName out")
