"""The admission webhook in threads of the test, called by a real API server over TLS."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from controller.admission.certificates import Schedule
from controller.admission.settings import WebhookSettings
from controller.admission.webhook import Webhook
from controller.metrics import Metrics
from kube.asyncclient import AsyncKubeClient
from kube.client import KubeClient
from tests.cluster.api import ApiError, Object, wait_until
from tests.cluster.controlplane import ControlPlane, free_ports
from tests.harness.chart import RELEASE, rendered

NAMESPACE = "webhook-test"
NAME = f"{RELEASE}-webhook"
CONFIGURATIONS = "admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration"
STEP_SECONDS = 20.0
"""How long the webhook may take for what it does within its check interval of a quarter of a second."""


class Clock:
    """The time as a replica sees it: that of the machine and an offset that a test moves."""

    def __init__(self) -> None:
        self.offset = timedelta(0)

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.offset


class Installed:
    """The chart's webhook objects on an API server, which calls `https://localhost:<port>`, no Service."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.port = free_ports(1)[0]
        self.announced: list[str] = []

    def install(self) -> None:
        api = self.plane.api
        self._kubeconfig = self.plane.kubeconfig_for_service_account(NAMESPACE, f"{RELEASE}-controller")
        self.objects = rendered("webhook.yaml", NAMESPACE)
        for item in self.objects:
            if item["kind"] == "ValidatingWebhookConfiguration":
                # There are no pods for a Service to lead to.
                for webhook in item["webhooks"]:
                    del webhook["clientConfig"]["service"]
                    webhook["clientConfig"]["url"] = f"https://localhost:{self.port}/validate"
            api.create(item)

    def remove(self) -> None:
        for item in self.objects:
            metadata = item["metadata"]
            self.plane.api.delete(
                item["apiVersion"], item["kind"], metadata["name"], metadata.get("namespace", "")
            )

    def _announced(self, reason: str, message: str) -> None:
        self.announced.append(f"{reason}: {message}")

    def secret(self) -> Object:
        return self.plane.api.get("v1", "Secret", NAME, NAMESPACE)

    def stored(self, key: str) -> bytes:
        return base64.b64decode((self.secret().get("data") or {}).get(key, ""))

    def trusted(self) -> bytes:
        webhooks = self.plane.api.get(*CONFIGURATIONS, NAME)["webhooks"]
        return base64.b64decode(webhooks[0]["clientConfig"].get("caBundle", ""))

    @contextmanager
    def replica(self, clock: Clock, schedule: Schedule | None = None, port: int = 0) -> Iterator[Webhook]:
        """A replica with the rights of the chart's controller, running until the end of the block."""
        client = AsyncKubeClient(KubeClient.load(self._kubeconfig))
        settings = WebhookSettings(
            ("", port or self.port),
            NAMESPACE,
            NAME,
            hosts=("localhost",),
            schedule=schedule or Schedule(),
            check_seconds=0.25,
        )
        loop = asyncio.new_event_loop()
        webhook = Webhook(client, settings, Metrics(), self._announced, clock)
        task = loop.create_task(webhook.run())

        def run() -> None:
            try:
                loop.run_until_complete(task)
            except asyncio.CancelledError:
                return

        thread = threading.Thread(target=run, name="webhook")
        thread.start()
        try:
            yield webhook
        finally:
            loop.call_soon_threadsafe(task.cancel)
            thread.join(10)
            client.close()
            if not loop.is_running():
                loop.close()

    def wait_refusing(self, refused: Object) -> str:
        """Wait until the webhook refuses `refused` (by a dry run); returns the message."""
        return wait_until(lambda: self.verdict(refused), "the webhook to refuse", STEP_SECONDS)

    def verdict(self, item: Object) -> str:
        """What a dry run of the creation is refused with; empty if it is not."""
        resource = self.plane.api.resource(item["apiVersion"], item["kind"])
        try:
            self.plane.api.request("POST", resource.path(None, "default"), item, {"dryRun": "All"})
        except ApiError as error:
            return error.message
        return ""
