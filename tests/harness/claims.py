"""Claims as the scheduler leaves them: created, allocated and reserved in a real API server."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.cluster.api import Api

API_VERSION = "resource.k8s.io/v1"
DRIVER = "gpu.nvidia.com"

_numbers = itertools.count()


@dataclass(frozen=True)
class Claim:
    """A claim in the API server."""

    namespace: str
    name: str
    uid: str


def result(device: str, pool: str, request: str = "gpu", **more: Any) -> dict[str, Any]:
    """One entry of ``status.allocation.devices.results``."""
    return {"request": request, "driver": DRIVER, "pool": pool, "device": device, **more}


def opaque(parameters: Any, requests: Sequence[str] = (), driver: str = DRIVER) -> dict[str, Any]:
    """One entry of ``status.allocation.devices.config``, as it comes from a claim."""
    return {
        "source": "FromClaim",
        "requests": list(requests),
        "opaque": {"driver": driver, "parameters": parameters},
    }


def create_claim(
    api: Api,
    results: Sequence[Mapping[str, Any]],
    *,
    name: str | None = None,
    namespace: str = "default",
    configs: Sequence[Mapping[str, Any]] = (),
    node: str | None = None,
    reserved: bool = True,
    allocated: bool = True,
) -> Claim:
    """Create a claim; allocate and reserve it for a made-up pod unless told otherwise.

    A request is added to the spec for each request name in ``results`` and ``configs``.
    """
    name = name or f"claim-{next(_numbers)}-{uuid.uuid4().hex[:6]}"
    named = [entry["request"] for entry in results]
    named += [request for entry in configs for request in entry.get("requests", []) if "/" in request]
    admin = {entry["request"] for entry in results if entry.get("adminAccess")}
    body: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"devices": {"requests": _requests(named or ["gpu"], admin)}},
    }
    created = api.create(body)
    claim = Claim(namespace, name, created["metadata"]["uid"])
    if allocated:
        allocate(api, claim, results, configs=configs, node=node, reserved=reserved)
    return claim


def _requests(names: Sequence[str], admin: Collection[str]) -> list[dict[str, Any]]:
    subrequests: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        base, _, sub = name.partition("/")
        subrequests.setdefault(base, []).extend([sub] if sub else [])
    return [_request(base, subs, base in admin) for base, subs in subrequests.items()]


def _request(name: str, subrequests: Sequence[str], admin: bool) -> dict[str, Any]:
    if subrequests:
        choices = [{"name": sub, "deviceClassName": DRIVER} for sub in subrequests]
        return {"name": name, "firstAvailable": choices}
    exactly: dict[str, Any] = {"deviceClassName": DRIVER}
    if admin:
        exactly["adminAccess"] = True
    return {"name": name, "exactly": exactly}


def allocate(
    api: Api,
    claim: Claim,
    results: Sequence[Mapping[str, Any]],
    *,
    configs: Sequence[Mapping[str, Any]] = (),
    node: str | None = None,
    reserved: bool = True,
) -> None:
    """Write the allocation, as the scheduler would."""
    status: dict[str, Any] = {"allocation": {"devices": {"results": list(results), "config": list(configs)}}}
    if node is not None:
        fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
        status["allocation"]["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": fields}]}
    if reserved:
        status["reservedFor"] = [{"resource": "pods", "name": f"{claim.name}-pod", "uid": str(uuid.uuid4())}]
    # As text first: parameters that cannot be written are a mistake of the test.
    body = json.loads(json.dumps({"status": status}))
    api.patch(API_VERSION, "ResourceClaim", claim.name, body, claim.namespace, subresource="status")


def delete_claim(api: Api, claim: Claim) -> None:
    """Delete the claim, whatever state it is in."""
    api.patch(API_VERSION, "ResourceClaim", claim.name, {"metadata": {"finalizers": None}}, claim.namespace)
    api.delete(API_VERSION, "ResourceClaim", claim.name, claim.namespace)
