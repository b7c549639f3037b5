"""A PartitionRequest as a value, and its document, which an administrator writes: checked by field."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field, PlainValidator, ValidationError
from pydantic_core import PydanticCustomError

from driver.inventory import PciAddress
from driver.migoffer import MigPolicy
from driver.nodepartition import BusyField, GpuReport, MigField, mig_policy
from driver.nodepolicy import Layout
from driver.policydocument import LayoutField, SharesField
from driver.shares import Shares
from driver.strictmodel import Strict, problems
from kube.resources import Object

MOST_GPUS = 64
LOWEST_PRIORITY, HIGHEST_PRIORITY = -1_000_000_000, 1_000_000_000
_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
_LONGEST_GRACE_SECONDS = 7 * 24 * 3600


class RequestError(ValueError):
    """The request cannot be used; the text names the field, the value and what is allowed."""


@dataclass(frozen=True, slots=True)
class GpuChoice:
    """Which GPUs of a node are meant: those that all of the given fields name; ``count``: so many of them."""

    product: re.Pattern[str] | None = None
    pci_bus_ids: frozenset[str] = frozenset()
    uuids: frozenset[str] = frozenset()
    indexes: frozenset[int] = frozenset()
    count: int | None = None

    def names(self, gpu: GpuReport) -> bool:
        return (
            (self.product is None or self.product.search(gpu.product) is not None)
            and (not self.pci_bus_ids or gpu.pci_bus_id in self.pci_bus_ids)
            and (not self.uuids or gpu.uuid.lower() in self.uuids)
            and (not self.indexes or gpu.index in self.indexes)
        )


@dataclass(frozen=True, slots=True)
class PartitionRequest:
    """What is wanted of some GPUs of some nodes.

    ``source`` is how people know it. ``layout`` is a fixed one, the name of one, or empty. ``created`` is the
    time of its creation as the API server writes it. Of two for one GPU the one with the higher priority
    holds, then the older one. ``grace_seconds`` replaces the pods' own time to end.
    """

    source: str
    node_selector: tuple[tuple[str, str], ...] = ()
    gpus: GpuChoice = field(default_factory=GpuChoice)
    layout: Layout | str = ()
    mig: MigPolicy | None = None
    shares: Shares | None = None
    evict: bool = False
    grace_seconds: int | None = None
    priority: int = 0
    created: str = ""

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels is meant."""
        return all(labels.get(key) == value for key, value in self.node_selector)

    @property
    def rank(self) -> tuple[int, str, str]:
        """Sorts the one first that holds against the others."""
        return -self.priority, self.created, self.source


def source_of(name: str) -> str:
    """How people know the PartitionRequest of this name."""
    return f"PartitionRequest {name}"


def _seconds(value: object) -> object:
    match = _DURATION.fullmatch(value) if isinstance(value, str) and value else None
    if match is not None:
        hours, minutes, seconds = (int(part or 0) for part in match.groups())
        total = hours * 3600 + minutes * 60 + seconds
        if total <= _LONGEST_GRACE_SECONDS:
            return total
    raise PydanticCustomError("duration", "it should be a time such as 90s, 10m or 1h, of at most a week")


_Duration = Annotated[int, PlainValidator(_seconds)]


class _Gpus(Strict):
    product: str | None = None
    pci_bus_ids: list[str] = Field(default_factory=list, alias="pciBusIDs", max_length=MOST_GPUS)
    uuids: list[str] = Field(default_factory=list, max_length=MOST_GPUS)
    indexes: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list, max_length=MOST_GPUS)
    count: Annotated[int, Field(ge=1, le=MOST_GPUS)] | None = None


class _Spec(Strict):
    node_selector: dict[str, str] = Field(default_factory=dict)
    gpus: _Gpus = Field(default_factory=_Gpus)
    layout: LayoutField | str = ""
    mig: MigField | None = None
    shares: SharesField | None = None
    when_busy: BusyField = "Wait"
    grace_period: _Duration | None = None
    priority: Annotated[int, Field(ge=LOWEST_PRIORITY, le=HIGHEST_PRIORITY)] = 0


def read(item: Object) -> PartitionRequest:
    """Read a PartitionRequest as the API server has it.

    Raises:
        RequestError: unknown field, wrong type or value, or fields that exclude each other.
    """
    metadata = item["metadata"]
    return parse(item.get("spec"), source_of(metadata["name"]), metadata.get("creationTimestamp", ""))


def parse(spec: object, source: str, created: str = "") -> PartitionRequest:
    """Read the ``spec`` of a PartitionRequest.

    Raises:
        RequestError: as :func:`read`.
    """
    if not isinstance(spec, dict):
        raise RequestError("field spec is required, and must be an object")
    try:
        parsed = _Spec.model_validate(spec)
    except ValidationError as error:
        raise RequestError(problems(_Spec, spec, error, "spec")) from None
    mig = mig_policy(parsed.mig)
    if parsed.layout and mig not in (None, MigPolicy.DYNAMIC):
        raise RequestError(
            f"field spec.layout: its partitions are made by the driver, which field spec.mig: {parsed.mig!r} "
            "forbids; leave one of them out"
        )
    if not (parsed.layout or mig or parsed.shares):
        raise RequestError("spec wants nothing: give layout, mig or shares")
    if parsed.grace_period is not None and parsed.when_busy != "Evict":
        raise RequestError("field spec.gracePeriod is for pods that are evicted: set spec.whenBusy to Evict")
    layout = parsed.layout if isinstance(parsed.layout, str) else tuple(sorted(parsed.layout.items()))
    return PartitionRequest(
        source,
        tuple(sorted(parsed.node_selector.items())),
        _choice(parsed.gpus),
        layout or (),
        mig,
        parsed.shares,
        parsed.when_busy == "Evict",
        parsed.grace_period,
        parsed.priority,
        created,
    )


def _choice(given: _Gpus) -> GpuChoice:
    addresses = [
        _address(f"spec.gpus.pciBusIDs.{index}", text) for index, text in enumerate(given.pci_bus_ids)
    ]
    product = None
    if given.product is not None:
        try:
            product = re.compile(given.product)
        except re.error as error:
            raise RequestError(
                f"field spec.gpus.product: {given.product!r} is no regular expression: {error}"
            ) from None
    return GpuChoice(
        product,
        frozenset(addresses),
        frozenset(uuid.lower() for uuid in given.uuids),
        frozenset(given.indexes),
        given.count,
    )


def _address(path: str, text: str) -> str:
    try:
        return str(PciAddress.parse(text))
    except ValueError as error:
        raise RequestError(f"field {path}: {error}") from None
