"""The review of one object: from what the API server asks to what it is answered. Pure.

Judged are opaque configuration of this driver and PartitionRequests.

Facts: ``admission.k8s.io/v1``. In ResourceClaims, ResourceClaimTemplates and DeviceClasses, all versions of
``resource.k8s.io`` have their configuration at the same place; they differ only in how requests are written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from controller.partitions import request as partitionrequest
from controller.partitions.request import RequestError
from driver.claim import DRIVER_NAME
from driver.configuration import ConfigurationError, parse

API_VERSION = "admission.k8s.io/v1"
GROUP = "resource.k8s.io"
VERSIONS = ("v1", "v1beta2", "v1beta1")
LONGEST_MESSAGE = 4096

_CONFIG_PATHS: dict[str, tuple[str, ...]] = {
    "DeviceClass": ("spec", "config"),
    "ResourceClaim": ("spec", "devices", "config"),
    "ResourceClaimTemplate": ("spec", "spec", "devices", "config"),
}
_PARTITION_REQUEST = ("gpudra.io", "v1alpha1", "PartitionRequest")
KINDS = tuple(_CONFIG_PATHS)
"""The kinds with configuration of drivers."""

Answer = dict[str, Any]


class ReviewError(ValueError):
    """What came is no review that can be answered; the text says what is wrong with it."""


def answer(review: object) -> Answer:
    """The AdmissionReview that answers one, both as JSON has them.

    Refused is only what is wrong in what the write brings: what was stored before stays writable, so that its
    labels and finalizers can change.

    Raises:
        ReviewError: it is no AdmissionReview, or of a kind or version that this driver does not judge.
    """
    if not isinstance(review, Mapping) or review.get("kind") != "AdmissionReview":
        raise ReviewError("the body is no AdmissionReview")
    if review.get("apiVersion") != API_VERSION:
        raise ReviewError(f"apiVersion {review.get('apiVersion')!r} is not known; allowed: {API_VERSION}")
    request = _mapping(review, "request")
    uid = request.get("uid")
    if not isinstance(uid, str) or not uid:
        raise ReviewError("request.uid is missing")
    problems = _problems(request)
    response: dict[str, Any] = {"uid": uid, "allowed": not problems}
    if problems:
        message = "; ".join(problems)
        if len(message) > LONGEST_MESSAGE:
            message = message[: LONGEST_MESSAGE - 1] + "…"
        response["status"] = {
            "status": "Failure",
            "code": 422,
            "reason": "Invalid",
            "message": message,
        }
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}


def kind_of(review: object) -> str:
    """The kind of the reviewed object, for a metric; empty if it is none that is judged."""
    try:
        kind = review["request"]["kind"]["kind"]  # type: ignore[index]
    except (KeyError, TypeError):
        return ""
    return kind if kind in (*KINDS, _PARTITION_REQUEST[2]) else ""


def _problems(request: Mapping[str, Any]) -> list[str]:
    kind = _mapping(request, "kind")
    given = (kind.get("group"), kind.get("version"), kind.get("kind"))
    path = _CONFIG_PATHS.get(str(given[2])) if given[0] == GROUP and given[1] in VERSIONS else None
    if path is None and given != _PARTITION_REQUEST:
        raise ReviewError(
            f"request.kind: {'/'.join(str(part) for part in given)} is not judged here; allowed: "
            f"{', '.join(KINDS)} of {GROUP}, versions {', '.join(VERSIONS)}, and "
            f"{'/'.join(_PARTITION_REQUEST)}"
        )
    # A status has nothing that a user writes.
    if request.get("operation") not in ("CREATE", "UPDATE") or request.get("subResource"):
        return []
    if path is None:
        return _problems_of_partition_request(request)
    old = request.get("oldObject")
    stored = {_canonical(parameters) for _, parameters in _own_parameters(old, path, "request.oldObject")}
    problems = []
    for place, parameters in _own_parameters(_mapping(request, "object"), path, "request.object"):
        try:
            parse(parameters, place)
        except ConfigurationError as error:
            if _canonical(parameters) not in stored:
                problems.append(str(error))
    return problems


def _problems_of_partition_request(request: Mapping[str, Any]) -> list[str]:
    old = request.get("oldObject")
    spec = _mapping(request, "object").get("spec")
    if isinstance(old, Mapping) and _canonical(old.get("spec")) == _canonical(spec):
        return []
    try:
        partitionrequest.parse(spec, "")
    except RequestError as error:
        return [str(error)]
    return []


def _own_parameters(item: object, path: tuple[str, ...], root: str) -> Iterator[tuple[str, object]]:
    """Place and value of each ``opaque.parameters`` of this driver in an object."""
    here: object = item
    for length, part in enumerate(path):
        if here is None:
            return
        if not isinstance(here, Mapping):
            raise ReviewError(f"{'.'.join((root, *path[:length]))} is no object")
        here = here.get(part)
    where = ".".join(path)
    if here is None:
        return
    if not isinstance(here, list):
        raise ReviewError(f"{root}.{where} is no list")
    for index, entry in enumerate(here):
        opaque = entry.get("opaque") if isinstance(entry, Mapping) else None
        if isinstance(opaque, Mapping) and opaque.get("driver") == DRIVER_NAME:
            yield f"{where}[{index}].opaque.parameters", opaque.get("parameters")


def _canonical(value: object) -> str:
    """One text for equal JSON values: in Python ``True == 1``, in JSON they differ."""
    return json.dumps(value, sort_keys=True)


def _mapping(parent: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    value = parent.get(field)
    if not isinstance(value, Mapping):
        raise ReviewError(f"{field} is missing or no object")
    return value
