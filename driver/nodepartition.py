"""The document of a NodePartition: what is wanted of each GPU of a node, and what its plugin reports of them.

The controller writes ``spec``, the node's plugin ``status``; the schema is that of the chart's CRD.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, Self

from driver.claim import ClaimReference
from driver.migoffer import MigPolicy
from driver.nodepolicy import Kept, Layout, RequestedPolicy

API_VERSION = "gpudra.io/v1alpha1"
KIND = "NodePartition"

MigField = Literal["Dynamic", "Static", "Off"]
BusyField = Literal["Wait", "Evict"]


class GpuState(StrEnum):
    """How far a GPU is with what is wanted of it.

    ``DEFAULT``: nothing is wanted. ``APPLIED``: it is as wanted. ``WAITING``: claims are in the way.
    ``FAILED``: it cannot be so, and the message says why.
    """

    DEFAULT = "Default"
    APPLIED = "Applied"
    WAITING = "Waiting"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class ProfileReport:
    """A MIG profile of a GPU: units of a placement, where one may start, NVML's number of instances."""

    name: str
    slices: int
    size: int
    count: int
    placements: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GpuReport:
    """What a plugin tells of one GPU.

    ``source`` is who wants something of it, empty for nobody; ``layout`` and ``placed`` are the partitions of
    a fixed layout that is offered. ``claims`` are in the way. ``closed``: nobody new is given a device of it.
    """

    uuid: str
    pci_bus_id: str
    index: int
    product: str
    profiles: tuple[ProfileReport, ...] = ()
    source: str = ""
    state: GpuState = GpuState.DEFAULT
    layout: Layout = ()
    placed: Kept = ()
    claims: tuple[ClaimReference, ...] = ()
    closed: bool = False
    message: str = ""

    def document(self) -> dict[str, Any]:
        """As ``status.gpus`` has it; empty fields are left out."""
        written = {
            "uuid": self.uuid,
            "pciBusID": self.pci_bus_id,
            "index": self.index,
            "product": self.product,
            "profiles": [
                {
                    "name": one.name,
                    "slices": one.slices,
                    "size": one.size,
                    "count": one.count,
                    "placements": list(one.placements),
                }
                for one in self.profiles
            ],
            "source": self.source,
            "state": str(self.state),
            "layout": dict(self.layout),
            "partitions": [{"profile": profile, "start": start} for profile, start in self.placed],
            "claims": [
                {"namespace": claim.namespace, "name": claim.name, "uid": claim.uid} for claim in self.claims
            ],
            "closed": self.closed,
            "message": self.message,
        }
        return {key: value for key, value in written.items() if value or key == "index"}

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        """From ``status.gpus``.

        Raises:
            KeyError, TypeError, ValueError: somebody wrote what no plugin writes.
        """
        return cls(
            document["uuid"],
            document["pciBusID"],
            document["index"],
            document.get("product", ""),
            tuple(
                ProfileReport(one["name"], one["slices"], one["size"], one["count"], tuple(one["placements"]))
                for one in document.get("profiles", ())
            ),
            document.get("source", ""),
            GpuState(document["state"]),
            tuple(sorted(document.get("layout", {}).items())),
            tuple((one["profile"], one["start"]) for one in document.get("partitions", ())),
            tuple(
                ClaimReference(one["namespace"], one["name"], one["uid"])
                for one in document.get("claims", ())
            ),
            document.get("closed", False),
            document.get("message", ""),
        )


@dataclass(frozen=True, slots=True)
class WantedGpu:
    """What is wanted of one GPU, as ``spec.gpus`` has it."""

    uuid: str
    policy: RequestedPolicy

    def document(self) -> dict[str, Any]:
        """As ``spec.gpus`` has it; what is not wanted is left out."""
        wanted = self.policy
        shares = wanted.shares
        written = {
            "uuid": self.uuid,
            "source": wanted.source,
            "mig": wanted.mig.capitalize() if wanted.mig is not None else None,
            "layout": dict(wanted.layout),
            "shares": None if shares is None else shares.places or str(shares.mode),
            "whenBusy": "Evict" if wanted.evict else "Wait",
        }
        return {key: value for key, value in written.items() if value}


def wanted_gpus(spec: Mapping[str, Any]) -> tuple[dict[str, RequestedPolicy], dict[str, str]]:
    """What ``spec`` wants, by the GPU's UUID, and what is wrong with it, by the UUID too: sentences.

    One entry that is wrong leaves the others as they are.
    """
    entries = spec.get("gpus")
    if not entries:
        return {}, {}
    # Not at the top: pydantic takes memory that a node of which nothing is wanted need not hold.
    from driver.nodepartitiondocument import WantedError, read_wanted

    found: dict[str, RequestedPolicy] = {}
    wrong: dict[str, str] = {}
    for index, entry in enumerate(entries):
        try:
            wanted = read_wanted(f"spec.gpus.{index}", entry)
        except WantedError as error:
            uuid = entry.get("uuid") if isinstance(entry, Mapping) else None
            wrong[uuid if isinstance(uuid, str) else ""] = str(error)
            continue
        if wanted.uuid in found:
            wrong[wanted.uuid] = f"field spec.gpus.{index}.uuid: {wanted.uuid} is there twice"
        else:
            found[wanted.uuid] = wanted.policy
    return {uuid: policy for uuid, policy in found.items() if uuid not in wrong}, wrong


def reports_of(status: object) -> tuple[GpuReport, ...]:
    """The reports in a ``status``; entries that no plugin has written are left out."""
    entries = status.get("gpus") if isinstance(status, Mapping) else None
    found = []
    for entry in entries if isinstance(entries, list) else ():
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
            found.append(GpuReport.read(entry))
    return tuple(found)


def mig_policy(value: MigField | None) -> MigPolicy | None:
    """A field ``mig`` of requests and NodePartitions."""
    return None if value is None else MigPolicy(value.lower())
