"""One entry of ``spec.gpus`` of a NodePartition, checked field by field."""

from __future__ import annotations

from typing import Any

from pydantic import Field, ValidationError

from driver.migoffer import MigPolicy
from driver.nodepartition import BusyField, MigField, WantedGpu, mig_policy
from driver.nodepolicy import RequestedPolicy
from driver.policydocument import LayoutField, SharesField
from driver.strictmodel import Strict, problems, shown


class WantedError(ValueError):
    """The entry is not acceptable; the text names the field, the value and what is allowed."""


class _Gpu(Strict):
    uuid: str
    source: str
    mig: MigField | None = None
    layout: LayoutField = Field(default_factory=dict)
    shares: SharesField | None = None
    when_busy: BusyField = "Wait"


def read_wanted(path: str, entry: Any) -> WantedGpu:
    """Read the entry that lies at ``path``.

    Raises:
        WantedError: unknown field, wrong type or value, or fields that exclude each other.
    """
    if not isinstance(entry, dict):
        raise WantedError(f"field {path}: it must be an object, not {shown(entry)}")
    try:
        parsed = _Gpu.model_validate(entry)
    except ValidationError as error:
        raise WantedError(problems(_Gpu, entry, error, path)) from None
    mig = mig_policy(parsed.mig)
    if parsed.layout and mig not in (None, MigPolicy.DYNAMIC):
        raise WantedError(
            f"field {path}.layout: its partitions are made by the driver, which field {path}.mig: "
            f"{parsed.mig!r} forbids; leave one of them out"
        )
    return WantedGpu(
        parsed.uuid,
        RequestedPolicy(
            parsed.source,
            mig,
            tuple(sorted(parsed.layout.items())),
            parsed.shares,
            parsed.when_busy == "Evict",
        ),
    )
