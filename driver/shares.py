"""Shares: how many claims may have one device at the same time, and what each of them takes of it.

The request policies are those of Kubernetes' consumable capacity (KEP 5075): what a claim takes of a capacity
that it does not ask for is the policy's default. The names and meanings of the three modes are those of the
existing NVIDIA driver, whose claims must work unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from driver.quantity import parse_quantity

MOST_PLACES = 256
MEMORY = "memory"
SHARES = "shares"
"""The capacity that counts places."""

_MIB = 1024 * 1024
_DEFAULT_MEMORY_MIB = 1024


class ShareMode(StrEnum):
    """What a claim for a shareable device takes.

    ``PLACES``: one or more of a fixed number of equal places. ``MEMORY``: an amount of memory. ``UNLIMITED``:
    nothing.
    """

    PLACES = "places"
    MEMORY = "memory"
    UNLIMITED = "unlimited"


Release = tuple[int, int, int]
"""A release of Kubernetes: ``(1, 36, 3)``."""

EVERY_MODE = frozenset(ShareMode)

_COUNTED_SINCE: Mapping[ShareMode, Release] = {
    # Before 1.36.2 the scheduler forgets the counters of shared devices in use (kubernetes#139034); 1.36.2
    # does not take back all that it counted for what it only tried (kubernetes#140436).
    ShareMode.PLACES: (1, 36, 3),
    ShareMode.MEMORY: (1, 36, 3),
    # A device whose shares take nothing is counted twice after one of them has ended (kubernetes#140433).
    ShareMode.UNLIMITED: (1, 37, 0),
}


def counted_since(mode: ShareMode) -> Release:
    """The first release whose scheduler counts right for devices with counters that are shared so."""
    return _COUNTED_SINCE[mode]


def counted_modes(release: Release | None) -> frozenset[ShareMode]:
    """How a device that takes from shared counters may be shared: as this release's scheduler counts right.

    In no way where the release is not known.
    """
    return frozenset(mode for mode in ShareMode if release is not None and release >= counted_since(mode))


@dataclass(frozen=True, slots=True)
class Shares:
    """How a device is shared; ``places`` is their number, and 0 in the other modes."""

    mode: ShareMode
    places: int = 0

    def needs_more_than(self, memory_bytes: int) -> bool:
        """Whether a device has too little memory to be shared so; 0 where NVML does not tell how much."""
        return self.mode is ShareMode.MEMORY and memory_bytes < 2 * _MIB


def request_policies(shares: Shares, quantities: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """``requestPolicy`` of each capacity of a shareable device, by the capacity's name.

    A claim takes by default a place, a gibibyte where memory is handed out, and else nothing: never the
    whole device. A claim that asks for memory gets it accounted in every mode, in steps of one MiB.
    ``quantities`` are the device's capacities; it has enough memory, see :meth:`Shares.needs_more_than`.
    """
    policies: dict[str, dict[str, Any]] = {name: {"default": "0"} for name in quantities}
    memory = int(parse_quantity(quantities[MEMORY])) // _MIB
    if shares.mode is ShareMode.MEMORY:
        policies[MEMORY] = _range(f"{min(_DEFAULT_MEMORY_MIB, memory)}Mi", "1Mi", f"{memory}Mi", "1Mi")
    elif memory > 0:
        policies[MEMORY] = _range("0", "0", f"{memory}Mi", "1Mi")
    if shares.mode is ShareMode.PLACES:
        policies[SHARES] = _range("1", "1", str(shares.places), "1")
    return policies


def _range(default: str, least: str, most: str, step: str) -> dict[str, Any]:
    return {"default": default, "validRange": {"min": least, "max": most, "step": step}}
