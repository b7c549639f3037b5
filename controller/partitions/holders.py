"""The pods that hold a claim, and their eviction: at the API server."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from driver.claim import ClaimReference
from kube.asyncclient import AsyncKubeClient
from kube.errors import ApiError
from kube.resources import PODS, RESOURCE_CLAIMS

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Holder:
    """A pod for which a claim is reserved."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


async def holders(client: AsyncKubeClient, claim: ClaimReference) -> Sequence[Holder]:
    """The pods that hold the claim; none if it has gone.

    Raises:
        ApiError, ApiUnavailable: the claim cannot be read.
    """
    try:
        item = await client.get(RESOURCE_CLAIMS, claim.name, claim.namespace)
    except ApiError as error:
        if error.not_found:
            return ()
        raise
    if item["metadata"]["uid"] != claim.uid:
        return ()
    return [
        Holder(claim.namespace, consumer["name"], consumer["uid"])
        for consumer in (item.get("status") or {}).get("reservedFor") or ()
        if consumer.get("resource") == "pods" and not consumer.get("apiGroup")
    ]


async def evict(
    client: AsyncKubeClient, pods: Iterable[Holder], grace_seconds: int | None
) -> dict[Holder, str]:
    """Ask for the eviction of each pod; returns what keeps those that stay, as a sentence.

    The eviction API decides: a PodDisruptionBudget holds. A pod that is ending already is not hurried.

    Raises:
        ApiUnavailable: no answer came.
    """
    kept: dict[Holder, str] = {}
    for pod in pods:
        try:
            if await _is_ending(client, pod):
                continue
            options: dict[str, object] = {"preconditions": {"uid": pod.uid}}
            if grace_seconds is not None:
                options["gracePeriodSeconds"] = grace_seconds
            body = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": pod.name, "namespace": pod.namespace},
                "deleteOptions": options,
            }
            await client.create(PODS, body, pod.namespace, of=(pod.name, "eviction"))
            log.info("pod %s is evicted: its GPU is to be partitioned anew", pod)
        except ApiError as error:
            if error.not_found or error.conflict:
                continue
            held = error.status == HTTPStatus.TOO_MANY_REQUESTS
            kept[pod] = "a PodDisruptionBudget holds it" if held else f"it cannot be evicted: {error}"
    return kept


async def _is_ending(client: AsyncKubeClient, pod: Holder) -> bool:
    item = await client.get(PODS, pod.name, pod.namespace)
    return item["metadata"]["uid"] != pod.uid or "deletionTimestamp" in item["metadata"]
