"""Versions: what NVML tells, made the strict semantic versions that the API accepts.

A ``version`` attribute must be ``N.N.N`` without leading zeros (Kubernetes API, DeviceAttribute), and there
is no empty version: ``0.0.0`` stands for "not known".
"""

from __future__ import annotations

import re

UNKNOWN = "0.0.0"

_NUMBERS = re.compile(r"\s*v?(\d{1,18})(?:\.(\d{1,18}))?(?:\.(\d{1,18}))?(?!\d)")


def semantic_version(text: str) -> str:
    """The first three numbers of a dotted version: ``580.105.08`` → ``580.105.8``, ``550.54`` → ``550.54.0``.

    Text that does not begin with a number, such as ``N/A`` or nothing, becomes ``0.0.0``.
    """
    match = _NUMBERS.match(text)
    if match is None:
        return UNKNOWN
    return ".".join(str(int(number or "0")) for number in match.groups())


def cuda_version(encoded: int) -> str:
    """The version in NVML's ``1000 * major + 10 * minor``: 13000 → ``13.0.0``, 12080 → ``12.8.0``."""
    if encoded <= 0:
        return UNKNOWN
    return f"{encoded // 1000}.{encoded % 1000 // 10}.0"
