"""Devices: what of an inventory is offered, under which name, and which hardware each name stands for."""

from __future__ import annotations

from dataclasses import dataclass

from driver.exclusion import Exclusion
from driver.inventory import Gpu, Inventory, MigDevice, PciAddress, Placement
from driver.names import gpu_name, mig_name, sort_key


@dataclass(frozen=True, slots=True)
class Footprint:
    """The hardware that a device occupies: a GPU, a span of its memory slices, and one of its compute slices.

    ``None`` for a span means all of it.
    """

    gpu: PciAddress
    placement: Placement | None = None
    compute_placement: Placement | None = None

    def overlaps(self, other: Footprint) -> bool:
        """Whether both cannot be given out at the same time. Symmetric."""
        if self.gpu != other.gpu:
            return False
        if self.placement is None or other.placement is None:
            return True
        if not self.placement.overlaps(other.placement):
            return False
        if self.placement != other.placement:
            return True
        if self.compute_placement is None or other.compute_placement is None:
            return True
        return self.compute_placement.overlaps(other.compute_placement)


@dataclass(frozen=True, slots=True)
class Device:
    """One published device: its name, and the GPU or MIG device that it stands for."""

    name: str
    gpu: Gpu
    mig: MigDevice | None = None

    @property
    def uuid(self) -> str:
        return self.gpu.uuid if self.mig is None else self.mig.uuid

    @property
    def footprint(self) -> Footprint:
        if self.mig is None:
            return Footprint(self.gpu.pci)
        return Footprint(self.gpu.pci, self.mig.placement, self.mig.compute_placement)


def known_devices(inventory: Inventory) -> dict[str, Device]:
    """Every device that a claim may name, by name: those on offer, and those that are not any more.

    The latter are excluded GPUs, and whole GPUs in MIG mode.
    """
    devices = [Device(gpu_name(gpu.pci), gpu) for gpu in inventory.gpus]
    devices += [Device(mig_name(gpu.pci, mig), gpu, mig) for gpu in inventory.gpus for mig in gpu.mig_devices]
    return {device.name: device for device in devices}


def offered_devices(inventory: Inventory, exclusion: Exclusion) -> tuple[Device, ...]:
    """The devices that this node offers, by PCI address and then placement.

    A GPU in MIG mode is offered only as its MIG devices, also when there is none yet: it cannot run CUDA as a
    whole. Excluded GPUs are not offered in any form.
    """
    devices: list[Device] = []
    for gpu in inventory.gpus:
        if exclusion.excludes(gpu):
            continue
        if not gpu.mig_enabled:
            devices.append(Device(gpu_name(gpu.pci), gpu))
        devices += [Device(mig_name(gpu.pci, mig), gpu, mig) for mig in gpu.mig_devices]
    return tuple(sorted(devices, key=lambda device: sort_key(device.name)))
