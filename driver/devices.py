"""Devices: what of an inventory is offered, under which name, and which hardware each name stands for."""

from __future__ import annotations

from dataclasses import dataclass

from driver.inventory import Gpu, MigDevice, PciAddress, Placement


@dataclass(frozen=True, slots=True)
class Footprint:
    """The hardware that a device occupies: a GPU, a span of its memory slices, a span of compute slices in it.

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
