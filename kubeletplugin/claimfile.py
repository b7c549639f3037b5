"""A claim in a file that a person wrote or got from the API server: read, and checked where we rely on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

_KINDS = ("ResourceClaim", "ResourceClaimTemplate")


class ClaimFileError(Exception):
    """The file holds no claim that can be used; the text names the file and the field."""


class _Request(BaseModel):
    name: str
    exactly: dict[str, Any] | None = None


class _Result(BaseModel):
    request: str
    driver: str
    pool: str
    device: str


class _Requests(BaseModel):
    requests: list[_Request] | None = None
    config: list[dict[str, Any]] | None = None


class _Results(BaseModel):
    results: list[_Result] | None = None
    config: list[dict[str, Any]] | None = None


class _Allocation(BaseModel):
    devices: _Results | None = None


class _Metadata(BaseModel):
    name: str | None = None
    namespace: str | None = None
    uid: str | None = None


class _Spec(BaseModel):
    devices: _Requests | None = None


class _Status(BaseModel):
    allocation: _Allocation | None = None
    reservedFor: list[dict[str, Any]] | None = None  # noqa: N815 - the API's name


class _Claim(BaseModel):
    metadata: _Metadata | None = None
    spec: _Spec
    status: _Status | None = None


def read_claim_file(path: Path) -> dict[str, Any]:
    """The one claim in a YAML or JSON file, as a ResourceClaim; a template's metadata stands for the claim's.

    Other objects in the file, such as the pod that uses the claim, are passed over.

    Raises:
        ClaimFileError: no or several claims, or one of another shape than ``resource.k8s.io/v1`` has.
    """
    try:
        documents = list(yaml.safe_load_all(path.read_text()))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ClaimFileError(f"{path} cannot be read: {error}") from None
    kinds = [item.get("kind") if isinstance(item, dict) else None for item in documents]
    claims = [item for item, kind in zip(documents, kinds, strict=True) if kind in _KINDS]
    if len(claims) != 1:
        found = ", ".join(str(kind or "something without a kind") for kind in kinds) or "nothing"
        raise ClaimFileError(f"{path} must hold exactly one {' or '.join(_KINDS)}; it holds {found}")
    claim: dict[str, Any] = claims[0]
    spec = claim.get("spec")
    if claim["kind"] == "ResourceClaimTemplate" and isinstance(spec, dict):
        spec = spec.get("spec")
    if not isinstance(spec, dict):
        raise ClaimFileError(f"the {claim['kind']} in {path} has no spec")
    claim = {**claim, "spec": spec}
    try:
        _Claim.model_validate(claim)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ClaimFileError(f"the {claim['kind']} in {path}: {where}: {first['msg']}") from None
    return claim
