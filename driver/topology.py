"""NVLink topology: which GPUs of a node reach each other, computed from the state of each GPU's links.

Two GPUs belong together when both see an active link to the other, or when both have an active link into the
same switch fabric. GPUs that are joined by a chain of such pairs form one island.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from driver.inventory import NvLink, PciAddress


class Remote(Enum):
    """What is at the other end of a link."""

    GPU = "gpu"
    SWITCH = "switch"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Link:
    """One active NVLink: what it leads to and at which PCI address that is."""

    remote: Remote
    pci: PciAddress | None


@dataclass(frozen=True, slots=True)
class GpuLinks:
    """The active links of one GPU; ``fabric_clique`` names its clique in a multi-node fabric, if any."""

    uuid: str
    pci: PciAddress
    links: tuple[Link, ...]
    version: str = "0.0.0"
    fabric_clique: str | None = None


def nvlinks(gpus: Sequence[GpuLinks]) -> dict[PciAddress, NvLink]:
    """The NVLink state of each of these GPUs.

    A GPU in MIG mode has no NVLink peer-to-peer and does not belong into ``gpus``.

    The domain of an island is made of the lowest UUID in it, so it survives a reboot and renumbered GPUs, and
    differs from that of any other island. A GPU alone has its own UUID as domain. ``peers`` counts the GPUs
    that one can reach directly, over a link or through the switches: in a chain of three it is 1, 2, 1.
    """
    reachable = _reachable(gpus)
    by_pci = {gpu.pci: gpu for gpu in gpus}
    result = {}
    for island in _islands(reachable):
        lowest = min(by_pci[pci].uuid for pci in island)
        for pci in island:
            gpu = by_pci[pci]
            result[pci] = NvLink(
                domain=f"nvlink-{lowest}" if len(island) > 1 else gpu.uuid,
                links=len(gpu.links),
                version=gpu.version if gpu.links else "0.0.0",
                peers=len(reachable[pci]),
            )
    return result


def _reachable(gpus: Sequence[GpuLinks]) -> dict[PciAddress, set[PciAddress]]:
    seen = {gpu.pci: {link.pci for link in gpu.links if link.remote is Remote.GPU} for gpu in gpus}
    reachable: dict[PciAddress, set[PciAddress]] = {gpu.pci: set() for gpu in gpus}
    for pci, remotes in seen.items():
        reachable[pci] |= {remote for remote in remotes if remote in seen and pci in seen[remote]}
        reachable[pci].discard(pci)
    for fabric in _fabrics(gpus):
        for pci in fabric:
            reachable[pci] |= fabric - {pci}
    return reachable


def _fabrics(gpus: Sequence[GpuLinks]) -> list[set[PciAddress]]:
    """GPUs by switch fabric.

    The fabric's own clique is the better witness where there is one, since a switch outside the node has no
    PCI address here; else GPUs with a switch in common share a fabric.
    """
    hubs: dict[object, set[PciAddress]] = {}
    for gpu in gpus:
        switches = {link.pci for link in gpu.links if link.remote is Remote.SWITCH}
        if not switches:
            continue
        for hub in [gpu.fabric_clique] if gpu.fabric_clique else switches:
            hubs.setdefault(hub, set()).add(gpu.pci)
    neighbours: dict[PciAddress, set[PciAddress]] = {}
    for members in hubs.values():
        for pci in members:
            neighbours.setdefault(pci, set()).update(members)
    return _islands(neighbours)


def _islands(neighbours: Mapping[PciAddress, Iterable[PciAddress]]) -> list[set[PciAddress]]:
    """The connected parts of a graph."""
    islands: list[set[PciAddress]] = []
    placed: set[PciAddress] = set()
    for start in neighbours:
        if start in placed:
            continue
        island = {start}
        border = [start]
        while border:
            for neighbour in neighbours[border.pop()]:
                if neighbour not in island:
                    island.add(neighbour)
                    border.append(neighbour)
        placed |= island
        islands.append(island)
    return islands
