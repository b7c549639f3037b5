"""The Secret that holds the webhook's certificates, and whom the API server is told to trust.

All replicas look at both and write what is due; every write is bound to what was read, so that of two
replicas that want the same one wins and the other looks again. Secret and configuration belong to the chart:
they are changed, never made, so that no right to make Secrets is needed.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime

from controller.admission.certificates import (
    Certificates,
    Schedule,
    ServingCertificate,
    renewed,
    split_bundle,
)
from kube.asyncclient import AsyncKubeClient
from kube.errors import ApiError
from kube.resources import SECRETS, VALIDATING_WEBHOOKS, Object

FIELD_MANAGER = "gpu-dra-controller-webhook"
_TRIES = 5

log = logging.getLogger(__name__)


class CertificatesUnavailable(Exception):
    """The certificates cannot be read or kept true now; the text says why and what helps."""


class CertificateSecret:
    """The stored certificates, kept true together with the ``caBundle`` of the webhook configuration."""

    def __init__(
        self,
        client: AsyncKubeClient,
        *,
        namespace: str,
        secret: str,
        configuration: str,
        names: Sequence[str],
        schedule: Schedule,
    ) -> None:
        """``names`` are the DNS names under which the API server calls; the others name the two objects."""
        self._client = client
        self._namespace = namespace
        self._secret = secret
        self._configuration = configuration
        self._names = names
        self._schedule = schedule

    async def refresh(self, now: datetime) -> Certificates:
        """Read both objects, write what is due, and return what is to be served.

        Raises:
            CertificatesUnavailable: one of the objects is missing, or other replicas were always faster.
            ApiError, ApiUnavailable: the API server refused, or gave no answer.
        """
        for _ in range(_TRIES):
            # The Secret last: a configuration that another replica writes between the two makes the write of
            # this one a conflict, so an older bundle never replaces a newer one.
            configuration = await self._read_configuration()
            secret = await self._read_secret()
            current = _stored(secret)
            due = renewed(current, self._names, now, self._schedule, _trusted(configuration))
            try:
                if due != current:
                    await self._client.replace(
                        SECRETS, self._secret, {**secret, "data": _data(due)}, self._namespace
                    )
                    log.info("the certificates of the webhook were renewed in Secret %s", self._secret)
                await self._trust(configuration, due)
            except ApiError as error:
                if error.conflict:
                    continue
                raise
            return due
        raise CertificatesUnavailable(
            f"Secret {self._namespace}/{self._secret} or ValidatingWebhookConfiguration "
            f"{self._configuration} changed {_TRIES} times while they were written; it is tried again"
        )

    async def _read_configuration(self) -> Object:
        try:
            return await self._client.get(VALIDATING_WEBHOOKS, self._configuration)
        except ApiError as error:
            if error.not_found:
                raise CertificatesUnavailable(
                    f"ValidatingWebhookConfiguration {self._configuration} does not exist, so nothing is "
                    "checked at admission; install the chart again, or turn its webhook off"
                ) from None
            raise

    async def _read_secret(self) -> Object:
        try:
            return await self._client.get(SECRETS, self._secret, self._namespace)
        except ApiError as error:
            if error.not_found:
                raise CertificatesUnavailable(
                    f"Secret {self._namespace}/{self._secret}, for the webhook's certificates, does not "
                    "exist; install the chart again, or turn its webhook off"
                ) from None
            raise

    async def _trust(self, configuration: Object, certificates: Certificates) -> None:
        """Tell the API server the authorities, where it does not have just these."""
        bundle = base64.b64encode(certificates.bundle).decode()
        webhooks = configuration.get("webhooks") or []
        if all(each["clientConfig"].get("caBundle") == bundle for each in webhooks):
            return
        await self._client.apply(
            VALIDATING_WEBHOOKS,
            self._configuration,
            {
                "apiVersion": VALIDATING_WEBHOOKS.group_version,
                "kind": "ValidatingWebhookConfiguration",
                "metadata": {
                    "name": self._configuration,
                    # With a version that is gone, the apply of a deleted object is a conflict, not a new one.
                    "resourceVersion": configuration["metadata"]["resourceVersion"],
                },
                "webhooks": [
                    {"name": each["name"], "clientConfig": {"caBundle": bundle}} for each in webhooks
                ],
            },
            field_manager=FIELD_MANAGER,
        )


def _stored(secret: Object) -> Certificates:
    data = secret.get("data") or {}
    return Certificates(_pair(data, "tls"), _pair(data, "next"), split_bundle(_decoded(data, "ca.crt")))


def _pair(data: Mapping[str, str], name: str) -> ServingCertificate | None:
    certificate, key = _decoded(data, f"{name}.crt"), _decoded(data, f"{name}.key")
    return ServingCertificate(certificate, key) if certificate and key else None


def _decoded(data: Mapping[str, str], key: str) -> bytes:
    try:
        return base64.b64decode(data.get(key) or "", validate=True)
    except binascii.Error:
        return b""


def _data(certificates: Certificates) -> dict[str, str]:
    content = {"ca.crt": certificates.bundle}
    for name, pair in (("tls", certificates.serving), ("next", certificates.following)):
        if pair is not None:
            content |= {f"{name}.crt": pair.certificate, f"{name}.key": pair.key}
    return {key: base64.b64encode(value).decode() for key, value in content.items()}


def _trusted(configuration: Object) -> bytes:
    """The bundle that each webhook of the configuration trusts; empty where they differ."""
    bundles = {each["clientConfig"].get("caBundle") or "" for each in configuration.get("webhooks") or []}
    return base64.b64decode(bundles.pop()) if len(bundles) == 1 else b""
