"""Device names: DNS labels that say where a device is, so that they outlive reboots and renumbering.

A GPU is ``gpu-`` and its PCI address (``gpu-0000-65-00-0``). A MIG device adds its profile and the start of
its placement (``gpu-0000-65-00-0-mig-1g10gb-0``), and the start of the compute instance when that does not
fill its GPU instance (``gpu-0000-65-00-0-mig-1c3g20gb-4-2``).
"""

from __future__ import annotations

import hashlib
import re

from driver.inventory import PciAddress, Placement

_SHARE = "-share-"

MAX_LENGTH = 63
"""Bytes in a device name (DNS-1123 label)."""

_PLAIN_PROFILE = re.compile(r"(?:\d+c\.)?\d+g\.\d+gb(?:\+(?!no\.)[a-z]+(?:\.[a-z]+)?|-[a-z]+)?")
_NAME = re.compile(r"gpu-([0-9a-f]{4,8})-([0-9a-f]{2})-([0-9a-f]{2})-([0-9a-f])(?:$|-mig-)")


def gpu_name(pci: PciAddress) -> str:
    """The name of the whole GPU at this address."""
    return "gpu-" + re.sub(r"[:.]", "-", str(pci))


def mig_name(
    pci: PciAddress, profile: str, placement: Placement, compute_placement: Placement | None = None
) -> str:
    """The name of a MIG device, or a partition, of the GPU at this address.

    Two of one GPU that can be told apart by profile text and placement never share a name.
    """
    prefix = gpu_name(pci) + "-mig-"
    suffix = f"-{placement.start}"
    if compute_placement is not None:
        suffix += f"-{compute_placement.start}"
    return prefix + _profile_label(profile, MAX_LENGTH - len(prefix) - len(suffix)) + suffix


def gpu_of(name: str) -> PciAddress | None:
    """Where the GPU of the device with this name is; ``None`` if the name is not of this form."""
    match = _NAME.match(name)
    return None if match is None else PciAddress(*(int(number, 16) for number in match.groups()))


def share_name(device: str, share_id: str | None) -> str:
    """What one claim calls a device, or its share of one: two shares of a device have different names."""
    return device if share_id is None else f"{device}{_SHARE}{share_id}"


def device_and_share(name: str) -> tuple[str, str | None]:
    """The device and the share id that :func:`share_name` made a name of."""
    device, _, share_id = name.partition(_SHARE)
    return device, share_id or None


def _profile_label(profile: str, room: int) -> str:
    """The profile as part of a DNS label, another one for each profile text.

    ``1g.24gb+me.all`` → ``1g24gb-me-all``, ``1g.24gb-me`` → ``1g24gb-no-me``. A text of another form, or
    one that is too long, keeps what fits and gets a hash. The hash begins with ``0x``, which no plain label
    holds.
    """
    if _PLAIN_PROFILE.fullmatch(profile):
        size, sign, suffix = re.fullmatch(r"([^+-]*)([+-]?)(.*)", profile).groups()  # type: ignore[union-attr]
        joint = {"": "", "+": "-", "-": "-no-"}[sign]
        label = f"{size.replace('.', '')}{joint}{suffix.replace('.', '-')}"
        if len(label) <= room:
            return label
    digest = hashlib.sha256(profile.encode()).hexdigest()[:8]
    readable = re.sub(r"[^a-z0-9]+", "-", profile.lower()).strip("-")
    return f"{readable[: room - 11].rstrip('-') or 'profile'}-0x{digest}"
