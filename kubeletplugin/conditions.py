"""What of a node's hardware a person should know."""

from __future__ import annotations

from collections.abc import Sequence

from driver.inventory import Gpu, Inventory
from kube.conditions import Condition


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
