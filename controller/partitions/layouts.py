"""Layouts by name: what a name means for the MIG profiles of one GPU. Pure.

Names are those that MIG manager's users know: ``all-1g.10gb``, ``all-balanced``, ``all-disabled``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from driver.inventory import Engines, Gpu, MigProfile, PciAddress, Placement
from driver.miglayout import LayoutError, place
from driver.nodepartition import GpuReport
from driver.nodepolicy import Layout

WHOLE = frozenset({"whole", "all-disabled"})
"""Names for a GPU without partitions."""
ANY = "all-enabled"
"""The name for a GPU of which partitions are made as they are asked for."""
BALANCED = frozenset({"balanced", "all-balanced"})

_ALL = re.compile(r"all-(.+)")
_PLAIN = re.compile(r"\d+g\.\d+gb")
"""A profile without a share of compute slices and without media or graphics extensions."""

Layouts = Mapping[str, Layout]
"""Layouts that an administrator has named."""


def board(gpu: GpuReport) -> Gpu:
    """As much of a GPU as is needed to place partitions on it, from what its plugin reports."""
    return Gpu(
        gpu.uuid,
        PciAddress.parse(gpu.pci_bus_id),
        gpu.index,
        product_name=gpu.product,
        profiles=tuple(
            MigProfile(
                number,
                one.name,
                one.slices,
                0,
                one.count,
                Engines(),
                tuple(Placement(start, one.size) for start in one.placements),
            )
            for number, one in enumerate(gpu.profiles)
        ),
    )


def named(name: str, gpu: Gpu, custom: Layouts) -> Layout:
    """The layout of this name for a GPU; custom names come first.

    Raises:
        LayoutError: nobody knows the name, or the GPU has no profile for it.
    """
    if name in custom:
        return custom[name]
    if name in BALANCED:
        return _balanced(gpu)
    match = _ALL.fullmatch(name)
    if match is None:
        known = ["all-<profile>", "all-<slices>g", "all-enabled", "balanced", "whole", *sorted(custom)]
        raise LayoutError(f"layout {name!r} is not known; allowed: {', '.join(known)}")
    profile = _profile(match[1], gpu)
    return ((profile.profile, _most(gpu, profile)),)


def _profile(name: str, gpu: Gpu) -> MigProfile:
    found = [profile for profile in gpu.profiles if profile.profile == name]
    if not found and re.fullmatch(r"\d+g", name):
        slices = int(name[:-1])
        found = [one for one in _plain(gpu) if one.slices == slices]
    if not found:
        allowed = ", ".join(profile.profile for profile in gpu.profiles) or "none, it cannot be partitioned"
        raise LayoutError(f"GPU {gpu.pci}: it has no MIG profile {name!r}; its profiles are: {allowed}")
    return min(found, key=lambda one: one.placements[0].size)


def _most(gpu: Gpu, profile: MigProfile) -> int:
    """How many of a profile the GPU has room for at once."""
    count = 1
    while _fits(gpu, ((profile.profile, count + 1),)):
        count += 1
    return count


def _balanced(gpu: Gpu) -> Layout:
    """A partition of about half the GPU, one of about half the rest, and so on; the smallest fill it."""
    profiles = sorted(_plain(gpu), key=lambda one: -one.slices)
    if not profiles:
        raise LayoutError(f"GPU {gpu.pci}: it cannot be partitioned, so it has no balanced layout")
    left = max(profile.slices for profile in profiles)
    counts: dict[str, int] = {}
    for profile in profiles:
        if 2 * profile.slices <= left and _fits(gpu, _added(counts, profile.profile)):
            counts[profile.profile] = 1
            left -= profile.slices
    smallest = profiles[-1].profile
    while _fits(gpu, _added(counts, smallest)):
        counts[smallest] = counts.get(smallest, 0) + 1
    return tuple(sorted(counts.items()))


def _added(counts: Mapping[str, int], profile: str) -> Layout:
    return tuple(({**counts, profile: counts.get(profile, 0) + 1}).items())


def _fits(gpu: Gpu, layout: Layout) -> bool:
    try:
        place(gpu, layout)
    except LayoutError:
        return False
    return True


def _plain(gpu: Gpu) -> Sequence[MigProfile]:
    """The profiles without extensions; of those with equal compute the one with the least memory."""
    plain = [profile for profile in gpu.profiles if _PLAIN.fullmatch(profile.profile)]
    least: dict[int, MigProfile] = {}
    for profile in plain:
        other = least.get(profile.slices)
        if other is None or profile.placements[0].size < other.placements[0].size:
            least[profile.slices] = profile
    return list(least.values())
