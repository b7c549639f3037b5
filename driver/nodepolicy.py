"""The node policy: what an administrator wants of each GPU of a node. Values; the file is read elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field

from driver.gpuselection import GpuSelection
from driver.inventory import Gpu
from driver.migoffer import MigPolicy
from driver.shares import Shares

Layout = tuple[tuple[str, int], ...]
"""MIG profiles, as NVML names them, and how many partitions of each a GPU has."""


@dataclass(frozen=True, slots=True)
class GpuPolicy:
    """What holds for one GPU.

    ``shares``: how the whole GPU is shared, ``profile_shares``: its MIG devices, by profile; what is not
    named is given to one claim at a time. ``layout`` are the partitions to offer in place of all that there
    can be; without one, all.
    """

    exclude: bool = False
    mig: MigPolicy = MigPolicy.DYNAMIC
    shares: Shares | None = None
    profile_shares: tuple[tuple[str, Shares], ...] = ()
    layout: Layout = ()

    def shares_of(self, profile: str | None) -> Shares | None:
        """How a MIG device of a profile is shared, or, without one, the whole GPU."""
        return self.shares if profile is None else dict(self.profile_shares).get(profile)


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """What is to hold for the GPUs that are selected, ``None`` for all. Without ``mig``: as the node's."""

    gpus: GpuSelection | None = None
    exclude: bool = False
    mig: MigPolicy | None = None
    shares: Shares | None = None
    profile_shares: tuple[tuple[str, Shares], ...] = ()
    layout: Layout = ()


@dataclass(frozen=True, slots=True)
class NodePolicy:
    """The node's defaults, which are flags, and its file's entries: the first that selects a GPU holds."""

    excluded: GpuSelection = field(default_factory=GpuSelection)
    mig: MigPolicy = MigPolicy.DYNAMIC
    entries: tuple[PolicyEntry, ...] = ()

    def of(self, gpu: Gpu) -> GpuPolicy:
        """What holds for this GPU. One that the node's flags exclude is excluded whatever the file says."""
        excluded = self.excluded.selects(gpu)
        for entry in self.entries:
            if entry.gpus is None or entry.gpus.selects(gpu):
                return GpuPolicy(
                    excluded or entry.exclude,
                    entry.mig or self.mig,
                    entry.shares,
                    entry.profile_shares,
                    entry.layout,
                )
        return GpuPolicy(excluded, self.mig)

    def excludes(self, gpu: Gpu) -> bool:
        return self.of(gpu).exclude

    @property
    def shares_any(self) -> bool:
        """Whether any device could be shared."""
        return any(entry.shares or entry.profile_shares for entry in self.entries)
