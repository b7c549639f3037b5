"""The resolution of one node: which request holds for which of its GPUs, and why others do not. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from controller.partitions.layouts import ANY, WHOLE, Layouts, board, named
from controller.partitions.request import PartitionRequest
from driver.miglayout import LayoutError, place
from driver.migoffer import MigPolicy
from driver.nodepartition import GpuReport, GpuState, WantedGpu
from driver.nodepolicy import RequestedPolicy


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """A node, its labels, and what its plugin reports of its GPUs; ``None`` before it did."""

    name: str
    labels: Mapping[str, str]
    gpus: tuple[GpuReport, ...] | None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A GPU for which a request does not hold although it selects it, and why; ``won`` names who holds."""

    gpu: GpuReport
    reason: str
    won: str = ""


@dataclass(frozen=True, slots=True)
class Share:
    """What one request gets of a node: the GPUs for which it holds, and those it does not get.

    ``is_reported`` is false while it is not known which GPUs the node has. ``missing``: the names and the
    number of GPUs that the request asks for and the node does not have, as sentences.
    """

    is_reported: bool = True
    gpus: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Resolution:
    """``wanted`` is what the node's NodePartition is to say, by PCI address; ``shares`` are by source."""

    wanted: tuple[WantedGpu, ...] = ()
    shares: Mapping[str, Share] = field(default_factory=dict)


def ranked(requests: Iterable[PartitionRequest]) -> list[PartitionRequest]:
    """Those first that hold against the others: by priority, then by age."""
    return sorted(requests, key=lambda one: one.rank)


def resolve(node: NodeGpus, requests: Sequence[PartitionRequest], layouts: Layouts) -> Resolution:
    """Resolve one node; ``requests`` are :func:`ranked`, and those that do not select it are passed over.

    A GPU that cannot have what a request wants is left to the next one.
    """
    taken: dict[str, str] = {}
    wanted: dict[str, WantedGpu] = {}
    shares: dict[str, Share] = {}
    for request in requests:
        if not request.selects(node.labels):
            continue
        if node.gpus is None:
            shares[request.source] = Share(is_reported=False)
            continue
        named_gpus = [gpu for gpu in node.gpus if request.gpus.names(gpu)]
        possible: list[tuple[GpuReport, RequestedPolicy]] = []
        refusals: list[Refusal] = []
        for gpu in named_gpus:
            if gpu.uuid in taken:
                winner = taken[gpu.uuid]
                refusals.append(Refusal(gpu, f"{winner} holds for it", winner))
                continue
            try:
                possible.append((gpu, _policy(request, gpu, layouts)))
            except LayoutError as error:
                refusals.append(Refusal(gpu, str(error)))
        chosen, missing = _chosen(request, node.gpus, possible)
        for gpu, policy in chosen:
            taken[gpu.uuid] = request.source
            wanted[gpu.uuid] = WantedGpu(gpu.uuid, policy)
        is_enough = request.gpus.count is not None and not missing
        shares[request.source] = Share(
            True,
            tuple(gpu.uuid for gpu, _ in chosen),
            () if is_enough else tuple(refusals),
            missing,
        )
    order = [gpu.uuid for gpu in node.gpus or () if gpu.uuid in wanted]
    return Resolution(tuple(wanted[uuid] for uuid in order), shares)


def _policy(request: PartitionRequest, gpu: GpuReport, layouts: Layouts) -> RequestedPolicy:
    """What the request wants of this GPU.

    Raises:
        LayoutError: the GPU cannot have the layout.
    """
    layout, mig = request.layout, request.mig
    if isinstance(layout, str):
        if layout in layouts:
            layout = layouts[layout]
        elif layout in WHOLE:
            layout, mig = (), MigPolicy.OFF
        elif layout == ANY:
            layout, mig = (), MigPolicy.DYNAMIC
        else:
            layout = named(layout, board(gpu), layouts)
    if layout:
        place(board(gpu), layout)
    return RequestedPolicy(request.source, mig, layout, request.shares, request.evict)


def _chosen(
    request: PartitionRequest,
    gpus: Sequence[GpuReport],
    possible: Sequence[tuple[GpuReport, RequestedPolicy]],
) -> tuple[Sequence[tuple[GpuReport, RequestedPolicy]], tuple[str, ...]]:
    """The GPUs that the request gets, and what of its wishes the node has not."""
    choice = request.gpus
    missing = [
        *(f"GPU {one} is not there" for one in sorted(choice.uuids - {gpu.uuid.lower() for gpu in gpus})),
        *(f"GPU {one} is not there" for one in sorted(choice.pci_bus_ids - {gpu.pci_bus_id for gpu in gpus})),
        *(f"GPU {one} is not there" for one in sorted(choice.indexes - {gpu.index for gpu in gpus})),
    ]
    if choice.count is None:
        return possible, tuple(missing)
    if len(possible) < choice.count:
        missing.append(f"{choice.count} GPUs are asked for, and {len(possible)} can be had")

    # Those that have it already, then those where nobody is in the way.
    def effort(item: tuple[GpuReport, RequestedPolicy]) -> tuple[bool, bool, str]:
        gpu, _ = item
        return gpu.source != request.source, gpu.state is not GpuState.DEFAULT, gpu.pci_bus_id

    chosen = sorted(possible, key=effort)[: choice.count]
    return chosen, tuple(missing)
