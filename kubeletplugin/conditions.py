"""What of a node's hardware a person should know: each thing said when it begins and when it is over."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from driver.inventory import Gpu, Inventory

log = logging.getLogger(__name__)

Announce = Callable[[str, str], None]
"""Told what a person should see on the Node: one CamelCase word, and a sentence."""


def nobody(reason: str, message: str) -> None:
    """Announce to nobody: in standalone mode there is no Node."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One CamelCase word, and a sentence that stays the same while the condition lasts."""

    reason: str
    message: str


class Conditions:
    """The conditions that stand now. A new one is logged and announced, one that is over is logged."""

    def __init__(self, announce: Announce) -> None:
        self._announce = announce
        self._standing: frozenset[Condition] = frozenset()

    def stand(self, conditions: Iterable[Condition]) -> None:
        """Exactly these stand now."""
        now = dict.fromkeys(conditions)
        for condition in now:
            if condition not in self._standing:
                log.warning("%s", condition.message)
                self._announce(condition.reason, condition.message)
        for condition in self._standing.difference(now):
            log.info("over: %s", condition.message)
        self._standing = frozenset(now)


def of_inventory(inventory: Inventory, without_devices: Sequence[Gpu]) -> list[Condition]:
    """What is wrong with GPUs that were found, or were not; in MIG mode and ``without_devices``, or else."""
    found = [
        Condition("GpuUnreadable", f"GPU {lost.gpu} cannot be read and is not offered: {lost.reason}")
        for lost in inventory.unreadable_gpus
    ]
    found += [
        Condition(
            "MigWithoutInstances",
            f"GPU {gpu.pci} ({gpu.uuid}) is in MIG mode and has no instance, so it offers nothing: make "
            "instances with nvidia-smi mig -cgi, or turn MIG mode off with nvidia-smi -mig 0",
        )
        for gpu in without_devices
    ]
    if inventory.waiting_for_driver:
        found.append(
            Condition(
                "WaitingForDriver",
                f"{inventory.waiting_for_driver} NVIDIA PCI functions wait for the driver: NVML does not "
                "list them",
            )
        )
    return found
