"""Time-slicing: how long one process keeps a GPU before it is the next one's turn.

The interval is one for the whole GPU and all who share it; a MIG device has none. Nothing but
``nvidia-smi compute-policy`` sets it or reads it back. The kernel driver keeps it when processes end, and has
forgotten it after a reboot.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from driver.inventory import PciAddress


class Interval(StrEnum):
    """The four lengths that there are, as claims name them. NVIDIA does not publish how long they are."""

    DEFAULT = "Default"
    SHORT = "Short"
    MEDIUM = "Medium"
    LONG = "Long"

    @property
    def number(self) -> int:
        """What ``nvidia-smi compute-policy --set-timeslice`` takes for it: 0 to 3."""
        return list(Interval).index(self)


@dataclass(frozen=True, slots=True)
class NotedInterval:
    """What this driver knows of a GPU's interval because it set it itself.

    ``holds`` is false from before the command until after it, and for ever when the process dies in between:
    then the GPU may have ``interval`` or what it had before. What was noted in an earlier boot is void.
    """

    pci: PciAddress
    gpu_uuid: str
    interval: Interval
    boot_id: str
    holds: bool

    def is_known_to_be(self, interval: Interval, boot_id: str) -> bool:
        """Whether the GPU has this interval for certain, in this boot (an empty id: it cannot be read)."""
        return self.holds and self.interval is interval and self.boot_id == boot_id != ""

    def may_be_of_boot(self, boot_id: str) -> bool:
        return not self.boot_id or not boot_id or self.boot_id == boot_id
