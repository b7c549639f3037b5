"""The status of a PartitionRequest: what is wanted, what is, and why not yet. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controller.partitions.resolution import Share
from driver.nodepartition import GpuReport, GpuState, WantedGpu
from kube.resources import Object

MOST_NODES = 50
"""Nodes that a status tells of, those first that are not as wanted; NodePartitions tell of all."""
_MOST_NAMES = 5

Pods = Mapping[str, Sequence[str]]
"""The pods that hold a claim, as ``namespace/name`` or what keeps them, by the claim's UID."""


@dataclass(frozen=True, slots=True)
class NodeProgress:
    """One node for one request: its share, what its NodePartition wants, and what the plugin reported.

    ``is_current`` is false while the plugin has not seen what is wanted.
    """

    name: str
    share: Share
    wanted: tuple[WantedGpu, ...] = ()
    reports: tuple[GpuReport, ...] = ()
    is_current: bool = False
    pods: Pods = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Gpu:
    node: str
    document: Object
    state: str
    detail: str = ""


def status(
    source: str, generation: int, nodes: Sequence[NodeProgress], before: Object | None, now: str
) -> Object:
    """The status of a request that could be read, by what became of it on its ``nodes``.

    ``before`` is the status that there is, whose conditions keep their times where they did not change.
    """
    told = [(node, _gpus(source, node)) for node in sorted(nodes, key=lambda one: one.name)]
    every = [gpu for _, gpus in told for gpu in gpus]
    counts = {
        "nodes": len(nodes),
        "selected": len(every),
        **{
            field_name: sum(gpu.state == state for gpu in every)
            for field_name, state in (("applied", "Applied"), ("waiting", "Waiting"), ("failed", "Failed"))
        },
    }
    remarks = [f"node {node.name}: {text}" for node, _ in told for text in _remarks(node)]
    has_all = bool(every) and counts["applied"] == len(every) and not remarks
    summary = _summary(counts, every, remarks)
    accepted, reason = _accepted(nodes, every)
    waits = any(gpu.state in ("Waiting", "Pending") for gpu in every) or any(
        not node.share.is_reported for node in nodes
    )
    conditions = [
        _condition("Accepted", accepted, reason, summary),
        _condition("Progressing", waits, "Working" if waits else "Nothing", summary),
        _condition("Applied", has_all, "AsWanted" if has_all else _why_not(counts, waits), summary),
    ]
    shown = sorted(told, key=lambda item: (_is_done(item[1]), item[0].name))[:MOST_NODES]
    return {
        "observedGeneration": generation,
        "summary": summary,
        "gpus": counts,
        "nodes": [
            {
                "name": node.name,
                "gpus": [gpu.document for gpu in gpus],
                **({"message": "; ".join(_remarks(node))} if _remarks(node) else {}),
            }
            for node, gpus in shown
        ],
        "nodesLeftOut": len(told) - len(shown),
        "conditions": _with_times(conditions, generation, before, now),
    }


def refused(generation: int, message: str, before: Object | None, now: str) -> Object:
    """The status of a request that cannot be used."""
    conditions = [
        _condition("Accepted", False, "Invalid", message),
        _condition("Progressing", False, "Nothing", message),
        _condition("Applied", False, "Invalid", message),
    ]
    return {
        "observedGeneration": generation,
        "summary": message,
        "gpus": {"nodes": 0, "selected": 0, "applied": 0, "waiting": 0, "failed": 0},
        "nodes": [],
        "nodesLeftOut": 0,
        "conditions": _with_times(conditions, generation, before, now),
    }


def _gpus(source: str, node: NodeProgress) -> list[_Gpu]:
    wanted = {one.uuid: one for one in node.wanted}
    reports = {report.uuid: report for report in node.reports}
    found = [_gpu(node, wanted[uuid], reports.get(uuid)) for uuid in node.share.gpus if uuid in wanted]
    for refusal in node.share.refusals:
        document = {"uuid": refusal.gpu.uuid, "pciBusID": refusal.gpu.pci_bus_id, "state": "Failed"}
        state = "Outranked" if refusal.won else "Failed"
        document |= {"state": state, "message": refusal.reason}
        found.append(_Gpu(node.name, document, state, refusal.reason))
    return found


def _gpu(node: NodeProgress, wanted: WantedGpu, report: GpuReport | None) -> _Gpu:
    document = wanted.document()
    del document["source"], document["whenBusy"]
    document = {"uuid": document.pop("uuid"), "wanted": document}
    if report is None:
        return _Gpu(node.name, document | {"state": "Failed", "message": "the GPU is gone"}, "Failed")
    document |= {"pciBusID": report.pci_bus_id}
    if not node.is_current or report.source != wanted.policy.source:
        message = "the node's plugin has not answered yet"
        return _Gpu(node.name, document | {"state": "Pending", "message": message}, "Pending", message)
    document |= {"state": str(report.state)}
    if report.layout:
        document |= {"layout": dict(report.layout)}
    message = report.message
    if report.state is GpuState.WAITING:
        holders = [
            {
                "claim": f"{claim.namespace}/{claim.name}",
                **({"pods": list(node.pods[claim.uid])} if node.pods.get(claim.uid) else {}),
            }
            for claim in report.claims
        ]
        document |= {"inTheWay": holders}
        names = _names(f"{claim.namespace}/{claim.name}" for claim in report.claims)
        message = f"claims are in the way: {names}"
    if message:
        document |= {"message": message}
    return _Gpu(node.name, document, str(report.state), message)


def _remarks(node: NodeProgress) -> list[str]:
    found = list(node.share.missing)
    if not node.share.is_reported:
        found.append("its plugin has not reported its GPUs yet")
    return found


def _is_done(gpus: Sequence[_Gpu]) -> bool:
    return all(gpu.state == "Applied" for gpu in gpus)


def _accepted(nodes: Sequence[NodeProgress], gpus: Sequence[_Gpu]) -> tuple[bool, str]:
    if not nodes:
        return False, "NoNode"
    if any(gpu.state not in ("Outranked", "Failed") for gpu in gpus):
        return True, "Resolved"
    if any(not node.share.is_reported for node in nodes):
        return True, "NotReported"
    if not gpus:
        return False, "NoGpu"
    return False, "Outranked" if any(gpu.state == "Outranked" for gpu in gpus) else "Impossible"


def _why_not(counts: Mapping[str, int], waits: bool) -> str:
    if counts["waiting"]:
        return "Busy"
    if waits:
        return "Pending"
    return "Incomplete" if counts["applied"] else "Failed"


def _summary(counts: Mapping[str, int], gpus: Sequence[_Gpu], remarks: Sequence[str]) -> str:
    """One line that tells the story."""
    if not counts["nodes"]:
        return "no node with GPUs of this driver matches spec.nodeSelector"
    parts = [f"{counts['applied']} of {counts['selected']} GPUs on {counts['nodes']} nodes are as wanted"]
    for state, text in (
        ("Waiting", "wait"),
        ("Pending", "are asked for"),
        ("Outranked", "are held by others"),
        ("Failed", "cannot be so"),
    ):
        those = [gpu for gpu in gpus if gpu.state == state]
        if those:
            details = _names(dict.fromkeys(gpu.detail for gpu in those if gpu.detail))
            parts.append(f"{len(those)} {text}" + (f" ({details})" if details else ""))
    if not gpus and not remarks:
        parts = [f"no GPU of {counts['nodes']} nodes matches spec.gpus"]
    if remarks:
        parts.append(_names(remarks))
    return "; ".join(parts)


def _names(texts: Iterable[str]) -> str:
    every = list(texts)
    more = len(every) - _MOST_NAMES
    return ", ".join(every[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _condition(kind: str, holds: bool, reason: str, message: str) -> Object:
    return {"type": kind, "status": "True" if holds else "False", "reason": reason, "message": message}


def _with_times(
    conditions: Iterable[Object], generation: int, before: Object | None, now: str
) -> list[dict[str, Any]]:
    known = {one.get("type"): one for one in (before or {}).get("conditions") or ()}
    found = []
    for condition in conditions:
        old = known.get(condition["type"], {})
        since = old.get("lastTransitionTime") if old.get("status") == condition["status"] else None
        found.append({**condition, "observedGeneration": generation, "lastTransitionTime": since or now})
    return found
