"""The inventory: what discovery found on this node, as plain values.

Everything but a GPU's UUID and PCI address may be missing (``None``, ``0`` or ``""``): one unreadable
field never hides a device.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self


@dataclass(frozen=True, slots=True, order=True)
class PciAddress:
    """A PCI function. Text form is sysfs': four hex digits of domain (more if needed), lower case."""

    domain: int
    bus: int
    device: int
    function: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``00000000:65:00.0`` (NVML) or ``0000:65:00.0`` (sysfs), either case.

        Raises:
            ValueError: the text is no PCI address.
        """
        try:
            domain, bus, rest = text.strip().split(":")
            device, function = rest.split(".")
            return cls(int(domain, 16), int(bus, 16), int(device, 16), int(function, 16))
        except ValueError:
            raise ValueError(f"{text!r} is no PCI address such as 0000:65:00.0") from None

    def __str__(self) -> str:
        return f"{self.domain:04x}:{self.bus:02x}:{self.device:02x}.{self.function:x}"


@dataclass(frozen=True, slots=True, order=True)
class Placement:
    """A span ``[start, start + size)``, in the units of its grid (NVML: nvmlGpuInstancePlacement_t)."""

    start: int
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size

    def overlaps(self, other: Placement) -> bool:
        return self.start < other.end and other.start < self.end


@dataclass(frozen=True, slots=True)
class Engines:
    """How many of each kind of engine a device has; 0 where NVML does not tell."""

    multiprocessors: int = 0
    copy_engines: int = 0
    decoders: int = 0
    encoders: int = 0
    jpeg_engines: int = 0
    ofa_engines: int = 0


@dataclass(frozen=True, slots=True)
class NvLink:
    """A GPU's NVLink state.

    ``domain`` is one string for all GPUs that reach each other, else the GPU's UUID; ``peers`` counts the
    GPUs that are reached directly.
    """

    domain: str
    links: int = 0
    version: str = "0.0.0"
    peers: int = 0


@dataclass(frozen=True, slots=True)
class MigDevice:
    """One compute instance, which is what NVIDIA calls a MIG device.

    ``placement`` is the GPU instance's span in the GPU's memory slices; ``compute_placement`` the
    compute instance's span inside the GPU instance, or ``None`` when it fills the GPU instance.
    """

    uuid: str
    profile: str
    gpu_instance_id: int
    compute_instance_id: int
    placement: Placement
    compute_placement: Placement | None = None
    memory_mib: int = 0
    engines: Engines = Engines()
    media_extensions: bool = False
    all_media_extensions: bool = False
    graphics: bool = False


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A kind of GPU instance that a GPU can hold, and where.

    ``id`` is what NVML creates it by; ``profile`` is NVML's text without the leading ``MIG``. ``engines`` and
    ``memory_mib`` are those of one instance. ``instance_count`` is how many NVML says fit on an empty GPU; it
    is known to be wrong on some boards. ``placements`` are by start.
    """

    id: int
    profile: str
    slices: int
    memory_mib: int
    instance_count: int
    engines: Engines
    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class GpuInstance:
    """A GPU instance that exists, whether or not it has a compute instance."""

    id: int
    profile_id: int
    placement: Placement


@dataclass(frozen=True, slots=True)
class Gpu:
    """One physical (or virtual) GPU.

    ``memory_bytes`` is NVML's total, 0 if NVML does not tell. ``mig_enabled`` is the current MIG mode,
    ``mig_pending`` the one after the next reset; with ``resetless_mig`` the mode changes without one.
    ``mig_capable`` is false for a vGPU and for what answers NOT_SUPPORTED. ``minor`` is the N of
    ``/dev/nvidiaN``, never a name. ``profiles`` are known with MIG mode off too, by NVML's order of them;
    ``gpu_instances`` are by placement, ``None`` when they could not be listed and nobody knows what is free.
    """

    uuid: str
    pci: PciAddress
    index: int
    minor: int | None = None
    product_name: str = ""
    brand: str = ""
    architecture: str = ""
    compute_capability: str = "0.0.0"
    memory_bytes: int = 0
    engines: Engines = Engines()
    addressing_mode: str = ""
    pcie_root: str | None = None
    numa_node: int | None = None
    nvlink: NvLink | None = None
    fabric_clique: str | None = None
    mig_capable: bool = False
    mig_enabled: bool = False
    mig_pending: bool = False
    is_vgpu: bool = False
    mig_devices: tuple[MigDevice, ...] = ()
    profiles: tuple[MigProfile, ...] = ()
    gpu_instances: tuple[GpuInstance, ...] | None = ()
    resetless_mig: bool = False


@dataclass(frozen=True, slots=True)
class UnreadableField:
    """A query that failed: of which GPU (its UUID, or ``node``), which field, and what was answered."""

    gpu: str
    field: str
    reason: str


@dataclass(frozen=True, slots=True)
class UnreadableGpu:
    """A GPU that cannot be offered at all: how it is known (``index 2``, or its UUID) and why."""

    gpu: str
    reason: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """All GPUs of a node, by PCI address, and what could not be read."""

    driver_version: str = ""
    cuda_driver_version: str = "0.0.0"
    gpus: tuple[Gpu, ...] = ()
    unreadable_gpus: tuple[UnreadableGpu, ...] = ()
    unreadable_fields: tuple[UnreadableField, ...] = field(default=())
    waiting_for_driver: int = 0
    """NVIDIA PCI display functions that sysfs shows and NVML does not."""

    @property
    def is_incomplete(self) -> bool:
        """Whether there are GPUs that could not be read, or that NVML does not list yet."""
        return bool(self.unreadable_gpus or self.waiting_for_driver)
