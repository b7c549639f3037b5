"""Reports of GPUs: what partition requests want of each, and how far it is. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from driver.claim import ClaimReference
from driver.devices import Device
from driver.inventory import Gpu, Inventory, PciAddress
from driver.miglayout import LayoutError, place
from driver.migoffer import MigPolicy, MigWay, foreign_instances
from driver.nodepartition import GpuReport, GpuState, ProfileReport
from driver.nodepolicy import GpuPolicy, Kept, NodePolicy, RequestedPolicy
from kubeletplugin.nodeview import NodeView
from kubeletplugin.store import ClaimRecord

_MOST_CLAIMS = 64
"""Claims that a report names for one GPU: shares can be many, and the rest follows when these are gone."""


def gpu_reports(
    view: NodeView,
    policy: NodePolicy,
    wrong: Mapping[str, str],
    in_the_way: Mapping[PciAddress, Sequence[ClaimReference]],
    closed: Collection[PciAddress],
) -> tuple[GpuReport, ...]:
    """A report of each GPU that can be read, by PCI address.

    ``wrong`` says by UUID what is wrong with the wish itself, ``in_the_way`` who holds what the GPU's policy
    does not offer any more, ``closed`` of which GPUs nobody new is given a device.
    """
    return tuple(
        _report(gpu, view, policy, wrong.get(gpu.uuid, ""), in_the_way.get(gpu.pci, ()), gpu.pci in closed)
        for gpu in view.inventory.gpus
    )


def _report(
    gpu: Gpu,
    view: NodeView,
    policy: NodePolicy,
    wrong: str,
    claims: Sequence[ClaimReference],
    is_closed: bool,
) -> GpuReport:
    report = GpuReport(gpu.uuid, str(gpu.pci), gpu.index, gpu.product_name, _profiles(gpu))
    if wrong:
        return replace(report, state=GpuState.FAILED, message=wrong)
    wanted = policy.requested.get(gpu.uuid)
    if wanted is None:
        return report
    holds = policy.of(gpu)
    offered = [device for device in view.offered if device.gpu.pci == gpu.pci]
    placed = tuple(_kept(device) for device in offered if device.partition is not None)
    is_laid_out = bool(holds.layout) and not _layout_problem(gpu, holds) and bool(placed)
    report = replace(
        report,
        source=wanted.source,
        layout=_counted(placed) if is_laid_out else (),
        placed=placed if is_laid_out else (),
    )
    why_not = _why_not(gpu, view, wanted, holds, offered)
    if why_not:
        return replace(report, state=GpuState.FAILED, message=why_not)
    if claims:
        names = ", ".join(f"{claim.namespace}/{claim.name}" for claim in claims[:_MOST_CLAIMS])
        return replace(
            report,
            state=GpuState.WAITING,
            claims=tuple(claims[:_MOST_CLAIMS]),
            closed=is_closed,
            message=f"claims hold devices that are not wanted: {names}",
        )
    return replace(report, state=GpuState.APPLIED)


def _why_not(
    gpu: Gpu, view: NodeView, wanted: RequestedPolicy, holds: GpuPolicy, offered: Sequence[Device]
) -> str:
    """Why the GPU is not as wanted for another reason than its claims; empty if there is none."""
    if holds.exclude:
        return "the node's policy excludes the GPU"
    if problem := _layout_problem(gpu, holds):
        return problem
    offer = view.offers[gpu.pci]
    if offer.way is MigWay.NOTHING:
        return f"nothing of the GPU can be offered: {offer.reason}"
    if wanted.layout:
        if not offer.way.offers_partitions:
            return f"no partition is made on the GPU: {offer.reason}"
        if covered := _covered(gpu, view, holds):
            return covered
    if wanted.mig is MigPolicy.DYNAMIC and not offer.way.offers_partitions:
        return f"no partition is made on the GPU: {offer.reason}"
    if wanted.shares is not None and any(
        holds.shares_of(device.profile) is not None and device.shares is None for device in offered
    ):
        return (
            f"shares {wanted.shares.places or wanted.shares.mode} cannot be offered: the API server does not "
            "store them, the scheduler does not count them right, or the device has too little memory; an "
            "event on the Node says which"
        )
    return ""


def _layout_problem(gpu: Gpu, holds: GpuPolicy) -> str:
    if not holds.layout:
        return ""
    try:
        place(gpu, holds.layout, holds.kept)
    except LayoutError as error:
        return str(error)
    return ""


def _covered(gpu: Gpu, view: NodeView, holds: GpuPolicy) -> str:
    own = view.own_instances.get(gpu.pci, frozenset())
    for _, placement in place(gpu, holds.layout, holds.kept):
        for instance in foreign_instances(gpu, own):
            if instance.placement.overlaps(placement):
                return (
                    f"GPU instance {instance.id} at {instance.placement.start} lies in the place of a wanted "
                    "partition and was not made by this driver; destroy it with nvidia-smi mig -dci and -dgi"
                )
    return ""


def _profiles(gpu: Gpu) -> tuple[ProfileReport, ...]:
    return tuple(
        ProfileReport(
            profile.profile,
            profile.slices,
            profile.placements[0].size,
            profile.instance_count,
            tuple(placement.start for placement in profile.placements),
        )
        for profile in gpu.profiles
        if profile.placements
    )


def _kept(device: Device) -> tuple[str, int]:
    assert device.partition is not None
    return device.partition.profile.profile, device.partition.placement.start


def _counted(placed: Kept) -> tuple[tuple[str, int], ...]:
    counts: dict[str, int] = {}
    for profile, _ in placed:
        counts[profile] = counts.get(profile, 0) + 1
    return tuple(sorted(counts.items()))


def with_kept(
    requested: Mapping[str, RequestedPolicy],
    known: Mapping[str, RequestedPolicy],
    reports: Iterable[GpuReport],
    held: Mapping[str, Kept],
) -> dict[str, RequestedPolicy]:
    """Each wish with the places that its layout is to keep, by the GPU's UUID.

    Those that it had while the same layout was wanted: as ``known`` to this process, or as an earlier one
    reported. A new layout keeps what claims have: ``held``, by the GPU's UUID.
    """
    reported = {report.uuid: report for report in reports}
    found = {}
    for uuid, wanted in requested.items():
        before, report = known.get(uuid), reported.get(uuid)
        if before is not None and before.layout == wanted.layout:
            kept = before.kept
        elif before is None and report is not None and report.layout == wanted.layout:
            kept = report.placed
        else:
            kept = held.get(uuid, ())
        found[uuid] = replace(wanted, kept=kept if wanted.layout else ())
    return found


def held_partitions(records: Iterable[ClaimRecord], inventory: Inventory) -> dict[str, Kept]:
    """The partitions that claims hold, by the UUID of their GPU."""
    profiles = {(gpu.uuid, profile.id): profile.profile for gpu in inventory.gpus for profile in gpu.profiles}
    found: dict[str, dict[tuple[str, int], None]] = {}
    for record in records:
        for one in record.devices:
            profile = profiles.get((one.gpu_uuid, one.profile_id if one.profile_id is not None else -1))
            if profile is not None and one.footprint.placement is not None and not one.admin_access:
                found.setdefault(one.gpu_uuid, {})[profile, one.footprint.placement.start] = None
    return {uuid: tuple(partitions) for uuid, partitions in found.items()}
