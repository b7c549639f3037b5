"""Whose a DeviceClass and its fields are, and what is to be done with it: pure functions of values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from controller.deviceclasses.desired import DeviceClass
from kube.resources import DEVICE_CLASSES, Object

MANAGER = "gpu-dra-controller"
"""The field manager of server-side apply."""

MADE_BY = "gpudra.io/made-by"
"""The annotation on classes that this controller has made; it deletes no others."""

MANAGED_BY = {"app.kubernetes.io/managed-by": MANAGER}

_FIELDS = ("selectors", "config", "extendedResourceName")


@dataclass(frozen=True, slots=True)
class Owned:
    """Who owns the fields of a class's spec."""

    ours: frozenset[str]
    others: Mapping[str, str]
    """Fields of others, each with the name of one field manager."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be done with a class: a body to apply, or nothing; and what a person should know of it."""

    body: Object | None = None
    kept: Mapping[str, str] = field(default_factory=dict)
    """Fields that stay as others made them, each with the name of its field manager."""
    foreign: bool = False
    """Whether the class is somebody else's altogether, and is left alone."""


def owned(live: Object) -> Owned:
    """The owners of the spec's fields, by the API server's own bookkeeping."""
    ours: set[str] = set()
    others: dict[str, str] = {}
    for entry in live["metadata"].get("managedFields") or ():
        spec: Mapping[str, Any] = (entry.get("fieldsV1") or {}).get("f:spec") or {}
        names = {name for name in _FIELDS if f"f:{name}" in spec}
        if entry.get("manager") == MANAGER:
            ours |= names
        else:
            others |= {name: str(entry.get("manager")) for name in names}
    return Owned(frozenset(ours), others)


def is_ours(live: Object) -> bool:
    """Whether this controller made the class, and nobody has taken over a field of it.

    Only such a class may be deleted.
    """
    owners = owned(live)
    made_by = (live["metadata"].get("annotations") or {}).get(MADE_BY)
    return made_by == MANAGER and not owners.others.keys() - owners.ours


def judge(live: Object | None, wanted: DeviceClass, *, with_extended_resource: bool) -> Verdict:
    """Compare the class as it is, ``None`` if there is none, with what it should be.

    A field that another manager owns with another value stays. Of a class that somebody else made with other
    selectors nothing is touched: what it selects is not known, so an extended resource may not suit it.
    """
    spec = wanted.spec(with_extended_resource=with_extended_resource)
    if live is None:
        return Verdict(_body(wanted.name, spec, made_here=True))
    stands = live.get("spec") or {}
    owners = owned(live)
    made_here = (live["metadata"].get("annotations") or {}).get(MADE_BY) == MANAGER
    kept = {name: manager for name, manager in owners.others.items() if stands.get(name) != spec.get(name)}
    if not made_here and "selectors" in kept:
        return Verdict(kept=kept, foreign=True)
    ours = {name: value for name, value in spec.items() if name not in kept}
    is_true = (
        all(stands.get(name) == value for name, value in ours.items())
        and owners.ours <= ours.keys()
        and MANAGED_BY.items() <= (live["metadata"].get("labels") or {}).items()
    )
    body = None if is_true else _body(wanted.name, ours, made_here=made_here)
    return Verdict(body, kept)


def _body(name: str, spec: Object, *, made_here: bool) -> Object:
    metadata: Object = {"name": name, "labels": dict(MANAGED_BY)}
    if made_here:
        metadata["annotations"] = {MADE_BY: MANAGER}
    return {
        "apiVersion": DEVICE_CLASSES.group_version,
        "kind": "DeviceClass",
        "metadata": metadata,
        "spec": spec,
    }


def classes_named(claim: Object) -> tuple[str, ...]:
    """The DeviceClasses that a ResourceClaim's requests name."""
    devices = (claim.get("spec") or {}).get("devices") or {}
    named = set()
    for request in devices.get("requests") or ():
        for part in (request.get("exactly"), *(request.get("firstAvailable") or ())):
            if part:
                named.add(str(part.get("deviceClassName", "")))
    return tuple(sorted(named))
