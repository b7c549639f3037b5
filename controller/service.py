"""The service: the parts of the controller, those of every replica and those of the one that leads."""

from __future__ import annotations

import asyncio
import logging
import signal
import uuid

from controller.admission.webhook import Webhook
from controller.deviceclasses.reconciler import DeviceClasses
from controller.metrics import Metrics
from controller.partitions.reconciler import Partitions
from controller.parts import Part, Surroundings, run_together
from controller.settings import Settings
from kube import logs
from kube.asyncclient import AsyncKubeClient
from kube.client import KubeClient
from kube.events import EventRecorder, ObjectReference
from kube.leadership import Leadership
from kube.probes import ProbeServer
from kube.resources import VALIDATING_WEBHOOKS

COMPONENT = "gpu-dra-controller"

log = logging.getLogger(__name__)


def parts(surroundings: Surroundings) -> list[Part]:
    """What the controller consists of."""
    found = []
    classes = surroundings.settings.classes
    if classes.create:
        found.append(Part("DeviceClasses", lambda: DeviceClasses(surroundings, classes.classes).run()))
    if surroundings.settings.partitions:
        layouts = surroundings.settings.layouts
        found.append(Part("PartitionRequests", lambda: Partitions(surroundings, layouts).run()))
    if (webhook_settings := surroundings.settings.webhook) is not None:
        about = ObjectReference(
            VALIDATING_WEBHOOKS.group_version, "ValidatingWebhookConfiguration", webhook_settings.name
        )
        webhook = Webhook(
            surroundings.client,
            webhook_settings,
            surroundings.metrics,
            lambda reason, message: surroundings.events.warning(about, reason, message),
        )
        found.append(Part("webhook", webhook.run, leading=False, not_ready=webhook.not_ready))
    return found


class Service:
    """All parts of one controller process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._metrics = metrics = Metrics()
        self._client = AsyncKubeClient(
            KubeClient.load(
                settings.kubeconfig,
                user_agent=COMPONENT,
                on_request=lambda verb, code, seconds: metrics.api_requests.labels(verb, code).inc(),
            )
        )
        self._events = EventRecorder(self._client, component=COMPONENT, host=settings.identity)
        self._parts = parts(Surroundings(settings, self._client, self._events, metrics))
        self._leadership = Leadership(
            self._client,
            settings.namespace,
            settings.lease_name,
            # Not the replica's name alone: two processes of one name must not both lead.
            f"{settings.identity}_{uuid.uuid4()}",
            on_change=metrics.leading.set,
        )
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT.

        Raises:
            ExceptionGroup: of OSError, when the probes' address cannot be listened on.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        loop.add_signal_handler(signal.SIGUSR1, logs.write_stacks)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._events.run(), name="events")
                group.create_task(self._on_every_replica(), name="parts of every replica")
                group.create_task(self._leadership.run(self._lead), name="leadership")
                if self._settings.http_address is not None:
                    probes = ProbeServer(
                        self._settings.http_address, self._metrics.registry, self._not_alive, self._not_ready
                    )
                    group.create_task(probes.run(), name="probes")
                group.create_task(self._stop(), name="end")
        except* _Stopped:
            log.info("stopped")
        finally:
            self._client.close()

    async def _lead(self) -> None:
        await run_together([part for part in self._parts if part.leading], self._metrics)

    async def _on_every_replica(self) -> None:
        await run_together([part for part in self._parts if not part.leading], self._metrics)

    async def _not_alive(self) -> list[str]:
        # That this is answered shows that the event loop is not held up.
        return []

    async def _not_ready(self) -> list[str]:
        return [problem for part in self._parts for problem in part.not_ready()]

    async def _stop(self) -> None:
        await self._stopping.wait()
        raise _Stopped


class _Stopped(Exception):
    """The process was asked to end."""


def serve(settings: Settings) -> None:
    """Run the service to its end."""

    async def run() -> None:
        await Service(settings).run()

    asyncio.run(run())
