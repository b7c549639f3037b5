"""MIG profiles: what their text says, and what a GPU's largest profile tells about the whole GPU."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from driver.inventory import Engines
from driver.nvml import GpuInstanceProfile


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
