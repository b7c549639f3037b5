"""The node policy: what an administrator wants of each GPU of a node. Values; the file is read elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from driver.gpuselection import GpuSelection
from driver.inventory import Gpu
from driver.migoffer import MigPolicy
from driver.shares import Shares

Layout = tuple[tuple[str, int], ...]
"""MIG profiles, as NVML names them, and how many partitions of each a GPU has."""

Kept = tuple[tuple[str, int], ...]
"""Partitions by profile and start of their placement, which a layout is to have where it can."""

NODE_POLICY = "the node policy"
"""What a person knows the flags and the file by."""

_NO_GPU = "{!r} selects no GPU that this node has now"


@dataclass(frozen=True, slots=True)
class GpuPolicy:
    """What holds for one GPU.

    ``shares``: how the whole GPU is shared, ``profile_shares``: its MIG devices, by profile; what is not
    named is given to one claim at a time. ``layout`` are the partitions to offer in place of all that there
    can be; without one, all. ``kept`` are the places that they should have. ``source`` is who wants it so,
    for people.
    """

    exclude: bool = False
    mig: MigPolicy = MigPolicy.DYNAMIC
    shares: Shares | None = None
    profile_shares: tuple[tuple[str, Shares], ...] = ()
    layout: Layout = ()
    kept: Kept = ()
    source: str = NODE_POLICY

    def shares_of(self, profile: str | None) -> Shares | None:
        """How a MIG device of a profile is shared, or, without one, the whole GPU."""
        return self.shares if profile is None else dict(self.profile_shares).get(profile)


@dataclass(frozen=True, slots=True)
class RequestedPolicy:
    """What a partition request, known to people as ``source``, wants of one GPU.

    Without ``mig``: as the node's, but partitions of a ``layout`` are made by the driver. ``shares`` are
    those of the layout's partitions, or without one those of the whole GPU. With ``evict`` nobody new is
    given a device of the GPU while claims are in the way, and their pods are evicted.
    """

    source: str
    mig: MigPolicy | None = None
    layout: Layout = ()
    shares: Shares | None = None
    evict: bool = False
    kept: Kept = ()

    def over(self, default: GpuPolicy) -> GpuPolicy:
        """What holds for a GPU for which otherwise the default would."""
        return GpuPolicy(
            default.exclude,
            self.mig or (MigPolicy.DYNAMIC if self.layout else default.mig),
            None if self.layout else self.shares,
            tuple((profile, self.shares) for profile, _ in self.layout) if self.shares is not None else (),
            self.layout,
            self.kept,
            self.source,
        )


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """What is to hold for the GPUs that are selected, ``None`` for all. Without ``mig``: as the node's."""

    gpus: GpuSelection | None = None
    exclude: bool = False
    mig: MigPolicy | None = None
    shares: Shares | None = None
    profile_shares: tuple[tuple[str, Shares], ...] = ()
    layout: Layout = ()

    def selects(self, gpu: Gpu) -> bool:
        return self.gpus is None or self.gpus.selects(gpu)


@dataclass(frozen=True, slots=True)
class NodePolicy:
    """The node's defaults, which are flags, and its file's entries: the first that selects a GPU holds.

    ``requested`` is what partition requests want, by the GPU's UUID: it holds in place of the entry, but what
    the node excludes stays excluded.
    """

    excluded: GpuSelection = field(default_factory=GpuSelection)
    mig: MigPolicy = MigPolicy.DYNAMIC
    entries: tuple[PolicyEntry, ...] = ()
    requested: Mapping[str, RequestedPolicy] = field(default_factory=dict)

    def of(self, gpu: Gpu) -> GpuPolicy:
        """What holds for this GPU. One that the node's flags exclude is excluded whatever the file says."""
        by_default = self.by_default(gpu)
        requested = self.requested.get(gpu.uuid)
        return by_default if requested is None or by_default.exclude else requested.over(by_default)

    def by_default(self, gpu: Gpu) -> GpuPolicy:
        """What holds for this GPU where no partition request wants anything of it."""
        excluded = self.excluded.selects(gpu)
        for entry in self.entries:
            if entry.selects(gpu):
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

    def without_effect(self, gpus: Collection[Gpu]) -> tuple[str, ...]:
        """What in it holds for none of the node's GPUs: sentences that name the flag or the field."""
        found = [f"--exclude: {_NO_GPU.format(name)}" for name in self.excluded.without_gpu(gpus)]
        held: dict[int, list[Gpu]] = {}
        for gpu in gpus:
            held.setdefault(self._entry_of(gpu), []).append(gpu)
        for number, entry in enumerate(self.entries):
            field_name = f"node policy, field spec.entries.{number}"
            missing = entry.gpus.without_gpu(gpus) if entry.gpus is not None else ()
            found += [f"{field_name}.gpus: {_NO_GPU.format(name)}" for name in missing]
            holds_for = held.get(number, [])
            # One for all others is of use also where there are no others.
            is_for_others = entry.gpus is None and all(one.gpus for one in self.entries[:number])
            if not holds_for and not is_for_others and any(entry.selects(gpu) for gpu in gpus):
                found.append(f"{field_name}: for each GPU that it selects, an earlier entry holds")
            if holds_for:
                known = {profile for gpu in holds_for for profile in _profiles(gpu)}
                found += [
                    f"{field_name}.profiles.{name}: no GPU that the entry holds for has this MIG profile"
                    for name, _ in entry.profile_shares
                    if name not in known
                ]
        return tuple(found)

    def _entry_of(self, gpu: Gpu) -> int:
        """The number of the entry that holds for a GPU; that behind the last one where none does."""
        numbers = (number for number, entry in enumerate(self.entries) if entry.selects(gpu))
        return next(numbers, len(self.entries))

    @property
    def evicts_any(self) -> bool:
        """Whether a partition request wants pods evicted that are in its way."""
        return any(requested.evict for requested in self.requested.values())

    @property
    def shares_any(self) -> bool:
        """Whether any device could be shared."""
        return any(entry.shares or entry.profile_shares for entry in self.entries) or any(
            requested.shares for requested in self.requested.values()
        )


def _profiles(gpu: Gpu) -> set[str]:
    return {one.profile for one in gpu.profiles} | {one.profile for one in gpu.mig_devices}
