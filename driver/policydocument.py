"""The document of a node policy, ``kind: NodePolicy``, which an administrator writes: checked by field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, ValidationError
from pydantic_core import PydanticCustomError

from driver.gpuselection import GpuSelection, GpuSelectionError
from driver.migoffer import MigPolicy
from driver.nodepolicy import Layout, PolicyEntry
from driver.shares import MOST_PLACES, ShareMode, Shares
from driver.strictmodel import Strict, problems, shown

API_VERSION = "gpudra.io/v1alpha1"
KIND = "NodePolicy"


class PolicyDocumentError(ValueError):
    """The document is not acceptable; the text names the field, the value and what is allowed."""


def _parsed_shares(value: object) -> Shares:
    if isinstance(value, int) and not isinstance(value, bool) and 2 <= value <= MOST_PLACES:
        return Shares(ShareMode.PLACES, value)
    if isinstance(value, str) and value in (ShareMode.MEMORY, ShareMode.UNLIMITED):
        return Shares(ShareMode(value))
    raise PydanticCustomError(
        "shares", f"it should be a number of places from 2 to {MOST_PLACES}, 'memory' or 'unlimited'"
    )


def _as_text(value: object) -> object:
    """An NVML index may stand there without quotes."""
    is_index = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return str(value) if is_index else value


SharesField = Annotated[Shares, PlainValidator(_parsed_shares)]
"""A field ``shares``: a number of places, or the name of another way of sharing."""
LayoutField = dict[str, Annotated[int, Field(ge=1, le=64)]]
"""A field ``layout``: MIG profiles, and how many partitions of each."""
_GpuName = Annotated[str, BeforeValidator(_as_text)]


class ProfilePolicy(Strict):
    """What is to hold for the MIG devices of one profile."""

    shares: SharesField | None = None


class Entry(Strict):
    """What is to hold for the GPUs that ``gpus`` names: UUIDs, PCI addresses, indexes, product regexes."""

    gpus: list[_GpuName] | None = None
    exclude: bool = False
    mig: Literal["dynamic", "static", "off"] | None = None
    shares: SharesField | None = None
    profiles: dict[str, ProfilePolicy] = Field(default_factory=dict)
    layout: LayoutField = Field(default_factory=dict)


class Spec(Strict):
    """The entries: for each GPU, the first that names it holds."""

    entries: list[Entry] = Field(default_factory=list)


class Document(Strict):
    """The whole document; ``metadata`` is there for tools that want a name, and says nothing to us."""

    api_version: Literal["gpudra.io/v1alpha1"]
    kind: Literal["NodePolicy"]
    metadata: dict[str, Any] = Field(default_factory=dict)
    spec: Spec = Field(default_factory=Spec)


def parse(document: object) -> tuple[PolicyEntry, ...]:
    """The entries of a NodePolicy, as YAML or JSON has it.

    Raises:
        PolicyDocumentError: wrong version, kind, field, type or value.
    """
    if not isinstance(document, Mapping):
        raise PolicyDocumentError(f"must be an object with kind {KIND}, not {shown(document)}")
    for field, allowed in (("apiVersion", API_VERSION), ("kind", KIND)):
        if document.get(field) != allowed:
            raise PolicyDocumentError(
                f"field {field}: {shown(document.get(field))} is not known; allowed: {allowed}"
            )
    try:
        parsed = Document.model_validate(dict(document))
    except ValidationError as error:
        raise PolicyDocumentError(problems(Document, document, error)) from None
    return tuple(_entry(f"spec.entries.{index}", entry) for index, entry in enumerate(parsed.spec.entries))


def _entry(path: str, entry: Entry) -> PolicyEntry:
    mig = MigPolicy(entry.mig) if entry.mig is not None else None
    if entry.layout and mig not in (None, MigPolicy.DYNAMIC):
        raise PolicyDocumentError(
            f"field {path}.layout: its partitions are made by the driver, which field {path}.mig: "
            f"{entry.mig!r} forbids; leave one of them out"
        )
    if entry.gpus == []:
        raise PolicyDocumentError(f"field {path}.gpus: [] names no GPU; name some, or leave it out for all")
    try:
        gpus = None if entry.gpus is None else GpuSelection.parse(entry.gpus)
    except GpuSelectionError as error:
        raise PolicyDocumentError(f"field {path}.gpus: {error}") from None
    shares = {name: profile.shares for name, profile in entry.profiles.items()}
    layout: Layout = tuple(entry.layout.items())
    return PolicyEntry(
        gpus,
        entry.exclude,
        mig,
        entry.shares,
        tuple((name, value) for name, value in shares.items() if value is not None),
        layout,
    )
