"""MIG profiles: which a GPU has, what their text says, and what the largest tells about the whole GPU."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from driver.fieldreader import FieldReader
from driver.inventory import Engines, MigProfile, Placement
from driver.nvml import GPU_INSTANCE_PROFILES, Code, DeviceHandle, GpuInstanceProfile, Nvml, NvmlError

_LAST_PROFILE = 63
"""Profiles of a driver that is newer than the binding are looked for up to here."""


@dataclass(frozen=True, slots=True)
class Extensions:
    """The variants of a size: ``+me`` has media engines, ``+me.all`` all of them, ``+gfx`` does graphics."""

    media: bool
    all_media: bool
    graphics: bool


def extensions(profile: str) -> Extensions:
    """What the suffixes of a profile such as ``1g.24gb+me.all`` promise; ``-me`` promises nothing."""
    promised = set(re.split(r"[+,]", profile)[1:])
    return Extensions(
        media=bool(promised & {"me", "me.all"}),
        all_media="me.all" in promised,
        graphics="gfx" in promised,
    )


def profile_text(gpu_instance_profile: str, gpu_instance_slices: int, compute_instance_slices: int) -> str:
    """The profile of a MIG device: ``1g.10gb``, or ``1c.3g.40gb`` for a compute instance that shares its GI.

    ``gpu_instance_profile`` is NVML's name, with or without the leading ``MIG``.
    """
    text = gpu_instance_profile.removeprefix("MIG ").strip()
    if 0 < compute_instance_slices < gpu_instance_slices:
        return f"{compute_instance_slices}c.{text}"
    return text


def profile_in_device_name(device_name: str) -> str:
    """The profile in a MIG device's name: ``NVIDIA A100 MIG 1c.3g.20gb`` → ``1c.3g.20gb``."""
    return device_name.partition(" MIG ")[2].strip()


def whole_gpu_engines(profiles: Sequence[GpuInstanceProfile]) -> Engines:
    """The engines of the profile with most slices; of several such, the most of each kind."""
    most = max((profile.slices for profile in profiles), default=0)
    largest = [profile.engines for profile in profiles if profile.slices == most]
    if not largest:
        return Engines()
    return Engines(
        multiprocessors=max(engines.multiprocessors for engines in largest),
        copy_engines=max(engines.copy_engines for engines in largest),
        decoders=max(engines.decoders for engines in largest),
        encoders=max(engines.encoders for engines in largest),
        jpeg_engines=max(engines.jpeg_engines for engines in largest),
        ofa_engines=max(engines.ofa_engines for engines in largest),
    )


def read_profiles(nvml: Nvml, gpu: DeviceHandle, reader: FieldReader) -> list[GpuInstanceProfile]:
    """All profiles that the GPU has, in NVML's order. With MIG mode off, older drivers tell none.

    Raises:
        NvmlError: GPU_IS_LOST.
    """
    profiles = []
    for number in range(_LAST_PROFILE + 1):
        try:
            profiles.append(nvml.gpu_instance_profile(gpu, number))
        except NvmlError as error:
            if error.code == Code.GPU_IS_LOST:
                raise
            if error.code == Code.INVALID_ARGUMENT and number >= GPU_INSTANCE_PROFILES:
                break
            if error.code not in (Code.NOT_SUPPORTED, Code.INVALID_ARGUMENT):
                reader.note("engines", error)
                break
    return profiles


def with_placements(
    nvml: Nvml, gpu: DeviceHandle, reader: FieldReader, profiles: Sequence[GpuInstanceProfile]
) -> tuple[MigProfile, ...]:
    """The profiles that a partition can be made of: those that have a text of their own and a placement.

    One that cannot be read, or that has no text to tell it by, is left out and noted.

    Raises:
        NvmlError: GPU_IS_LOST.
    """
    found: dict[str, MigProfile] = {}
    for profile in profiles:
        field = f"migProfiles[{profile.id}]"
        text = profile_text(profile.name, profile.slices, profile.slices)
        if not text or text in found:
            reader.note(field, ValueError(f"its name {profile.name!r} does not tell it from the others"))
            continue
        placements: tuple[Placement, ...] = reader.read(
            field,
            lambda profile_id=profile.id: nvml.gpu_instance_placements(gpu, profile_id),  # type: ignore[misc]
            (),
            absent=[Code.NOT_SUPPORTED],
        )
        if placements:
            found[text] = MigProfile(
                id=profile.id,
                profile=text,
                slices=profile.slices,
                memory_mib=profile.memory_mib,
                instance_count=profile.instance_count,
                engines=profile.engines,
                placements=placements,
            )
    return tuple(found.values())
