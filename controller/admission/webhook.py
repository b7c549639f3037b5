"""The admission webhook of one replica: its certificate kept true, its endpoint served."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from controller.admission.certificates import Certificates, expiry
from controller.admission.certificatesecret import CertificateSecret, CertificatesUnavailable
from controller.admission.endpoint import Endpoint
from controller.admission.settings import WebhookSettings
from controller.metrics import Metrics
from kube.asyncclient import AsyncKubeClient
from kube.backoff import Backoff
from kube.conditions import Announce, Condition, Conditions
from kube.errors import ApiError, ApiUnavailable


class Webhook:
    """Runs on every replica. A replica without a certificate does not listen, and says so when asked."""

    def __init__(
        self,
        client: AsyncKubeClient,
        settings: WebhookSettings,
        metrics: Metrics,
        announce: Announce,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._conditions = Conditions(announce)
        self._now = now
        self._secret = CertificateSecret(
            client,
            namespace=settings.namespace,
            secret=settings.name,
            configuration=settings.name,
            names=(f"{settings.name}.{settings.namespace}.svc", *settings.hosts),
            schedule=settings.schedule,
        )
        self._endpoint = Endpoint(settings.address, self._reviewed)
        self._has_certificate = asyncio.Event()
        self._trouble = ""

    def not_ready(self) -> Sequence[str]:
        """What is missing before reviews are answered."""
        if self._has_certificate.is_set():
            return ()
        return (f"the webhook has no certificate yet: {self._trouble or 'it was not read yet'}",)

    async def run(self) -> None:
        """Keep the certificate true and answer reviews, until cancelled.

        Raises:
            ExceptionGroup: of OSError, when the address cannot be listened on.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_certificate(), name="webhook certificate")
            group.create_task(self._serve(), name="webhook endpoint")

    async def _serve(self) -> None:
        await self._has_certificate.wait()
        await self._endpoint.run()

    async def _keep_certificate(self) -> None:
        backoff = Backoff(maximum=self._settings.check_seconds)
        while True:
            try:
                self._use(await self._secret.refresh(self._now()))
                self._trouble = ""
                self._conditions.stand(())
                # Replicas that started together should not all renew together.
                delay = self._settings.check_seconds * random.uniform(0.75, 1.25)
            except (ApiError, ApiUnavailable, CertificatesUnavailable, ssl.SSLError) as error:
                self._metrics.certificate_errors.inc()
                self._trouble = str(error)
                self._conditions.stand([Condition("WebhookCertificateNotKept", self._trouble)])
                delay = backoff.next_delay(getattr(error, "retry_after", None))
            await asyncio.sleep(delay)

    def _use(self, certificates: Certificates) -> None:
        if certificates.serving is None:
            return
        self._endpoint.use(certificates.serving)
        self._metrics.certificate_expiry.set(expiry(certificates.serving).timestamp())
        self._has_certificate.set()

    def _reviewed(self, kind: str, outcome: str) -> None:
        self._metrics.admission_reviews.labels(kind, outcome).inc()
