"""The label ``nvidia.com/mig.config`` of a node: a wish for all its GPUs, by MIG manager's users. Pure.

Facts: label names and states are those of NVIDIA's MIG manager (``k8s-mig-manager``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from controller.partitions.request import LOWEST_PRIORITY, PartitionRequest
from controller.partitions.resolution import Share
from driver.nodepartition import GpuReport, GpuState

LABEL = "nvidia.com/mig.config"
STATE_LABEL = "nvidia.com/mig.config.state"
SOURCE = f"node label {LABEL}"


def request_of(labels: Mapping[str, str]) -> PartitionRequest | None:
    """What the label wants: a request that every other one goes before; ``None`` without the label."""
    layout = labels.get(LABEL)
    if not layout:
        return None
    return replace(PartitionRequest(SOURCE), layout=layout, priority=LOWEST_PRIORITY - 1)


def state(share: Share | None, reports: Iterable[GpuReport], *, is_current: bool) -> str | None:
    """The value of the state label: ``success``, ``pending`` or ``failed``; ``None`` where nothing is wanted.

    A GPU that another request has is not asked for. One that cannot do MIG at all does not count against the
    others.
    """
    if share is None:
        return None
    if not share.is_reported or not is_current:
        return "pending"
    by_uuid = {report.uuid: report for report in reports}
    mine = [by_uuid[uuid] for uuid in share.gpus if uuid in by_uuid]
    if any(one.state is GpuState.FAILED for one in mine) or any(
        refusal.gpu.profiles and not refusal.won for refusal in share.refusals
    ):
        return "failed"
    if not mine and not any(refusal.won for refusal in share.refusals):
        return "failed"
    return "success" if all(one.state is GpuState.APPLIED for one in mine) else "pending"
