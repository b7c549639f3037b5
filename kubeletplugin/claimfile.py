"""A claim in a file that a person wrote or got from the API server: read, and checked where we rely on it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from driver.strictmodel import Strict, problems
from kube.names import LABEL_RULE, SUBDOMAIN_RULE, is_label, is_subdomain
from kube.plainyaml import PlainYamlError, load_all

_KINDS = ("ResourceClaim", "ResourceClaimTemplate")


class ClaimFileError(Exception):
    """The file holds no claim that can be used; the text names the file and the field."""


def _claim_name(name: str) -> str:
    if not is_subdomain(name):
        raise PydanticCustomError("name", "it cannot be a claim's name: {rule}", {"rule": SUBDOMAIN_RULE})
    return name


def _namespace(name: str) -> str:
    if not is_label(name):
        raise PydanticCustomError("name", "it cannot be a namespace's name: {rule}", {"rule": LABEL_RULE})
    return name


class _Object(Strict):
    """Types are checked, and other fields are passed over: a later Kubernetes may have more."""

    model_config = ConfigDict(extra="ignore")


class _Capacity(_Object):
    requests: dict[str, str | int] | None = None


class _Asked(_Object):
    allocation_mode: Literal["ExactCount", "All"] | None = None
    count: Annotated[int, Field(ge=1)] | None = None
    admin_access: bool | None = None
    capacity: _Capacity | None = None


class _SubRequest(_Asked):
    name: str


class _Request(_Object):
    name: str
    exactly: _Asked | None = None
    first_available: list[_SubRequest] | None = None


class _Opaque(_Object):
    driver: str


class _Config(_Object):
    source: str | None = None
    requests: list[str] | None = None
    opaque: _Opaque | None = None


class _Result(_Object):
    request: str
    driver: str
    pool: str
    device: str


class _Requests(_Object):
    requests: list[_Request] | None = None
    config: list[_Config] | None = None


class _Results(_Object):
    results: list[_Result] | None = None
    config: list[_Config] | None = None


class _Allocation(_Object):
    devices: _Results | None = None


class _Metadata(_Object):
    name: Annotated[str, AfterValidator(_claim_name)] | None = None
    namespace: Annotated[str, AfterValidator(_namespace)] | None = None
    uid: str | None = None


class _Spec(_Object):
    devices: _Requests | None = None


class _Status(_Object):
    allocation: _Allocation | None = None
    reserved_for: list[dict[str, Any]] | None = None


class _Claim(_Object):
    api_version: Literal["resource.k8s.io/v1", "resource.k8s.io/v1beta2"] | None = None
    """These have claims of one shape."""
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
        documents = load_all(path.read_bytes())
    except (OSError, PlainYamlError) as error:
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
        raise ClaimFileError(f"the {claim['kind']} in {path}: {problems(_Claim, claim, error)}") from None
    return claim
