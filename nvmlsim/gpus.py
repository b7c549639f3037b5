"""What `SimulatedNode.gpus` tells of GPUs and their MIG instances."""

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class ComputeInstance:
    """A MIG device: `profile` as `1g.10gb` or `1c.3g.40gb`; `start` in compute slices of the GPU instance."""

    id: int
    profile: str
    start: int
    slices: int
    mig_index: int
    uuid: str


@dataclass(frozen=True)
class GpuInstance:
    """A GPU instance; `start` and `size` are its placement."""

    id: int
    profile: str
    profile_id: int
    start: int
    size: int
    compute_instances: tuple[ComputeInstance, ...]


@dataclass(frozen=True)
class SimulatedGpu:
    """One GPU that is plugged in: `gpu` names it to SimulatedNode, `pci_bus_id` as `0000:1b:00.0`."""

    gpu: int
    uuid: str
    name: str
    model: str
    pci_bus_id: str
    pcie_root: str
    minor: int
    numa_node: int
    lost: bool
    mig_mode: bool
    mig_pending: bool
    compute_mode: int
    timeslice: int
    gpu_instances: tuple[GpuInstance, ...]

    @property
    def mig_uuids(self) -> list[str]:
        return [ci.uuid for gi in self.gpu_instances for ci in gi.compute_instances]


def gpu_instance(shown: dict[str, Any]) -> GpuInstance:
    compute = tuple(ComputeInstance(**ci) for ci in shown["compute_instances"])
    return GpuInstance(**{**shown, "compute_instances": compute})


def simulated_gpu(shown: dict[str, Any]) -> SimulatedGpu:
    """Reads one entry of `gpus` in the library's JSON."""
    values = {field.name: shown[field.name] for field in fields(SimulatedGpu)}
    flags = {key: bool(values[key]) for key in ("lost", "mig_mode", "mig_pending")}
    instances = tuple(gpu_instance(gi) for gi in shown["gpu_instances"])
    return SimulatedGpu(**{**values, **flags, "gpu_instances": instances})
