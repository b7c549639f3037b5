"""A simulated node as an object: make it, look at it, and change it while other programs run on it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvmlsim import description
from nvmlsim.build import build
from nvmlsim.library import StateError, StateLibrary, line
from nvmlsim.machine import load
from nvmlsim.roottree import LIBRARY_FOLDER, STATE_NAME, RootTree


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
    """One GPU that is plugged in: `gpu` names it in this module's methods, `pci_bus_id` as `0000:1b:00.0`."""

    gpu: int
    uuid: str
    name: str
    model: str
    pci_bus_id: str
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


def _gpu_instance(shown: dict[str, Any]) -> GpuInstance:
    compute = tuple(ComputeInstance(**ci) for ci in shown["compute_instances"])
    return GpuInstance(**{**shown, "compute_instances": compute})


def _gpu(shown: dict[str, Any]) -> SimulatedGpu:
    fields = {key: shown[key] for key in SimulatedGpu.__dataclass_fields__ if key != "gpu_instances"}
    flags = {key: bool(fields[key]) for key in ("lost", "mig_mode", "mig_pending")}
    instances = tuple(_gpu_instance(gi) for gi in shown["gpu_instances"])
    return SimulatedGpu(**{**fields, **flags}, gpu_instances=instances)


class SimulatedNode:
    """A driver root with its state. Raises StateError when the node refuses a change."""

    def __init__(self, root: Path) -> None:
        """Opens the node that lies below `root`."""
        self.root = root.absolute()
        self._tree = RootTree(self.root)
        self._library = StateLibrary()
        if not self._states():
            raise StateError(f"{root}: no simulated node here; make one: nvmlsim init {root} --machine NAME")

    @classmethod
    def create(cls, root: Path, machine: str | Path, **overrides: object) -> "SimulatedNode":
        """Makes a node below `root`, which must hold none yet; overrides replace fields of the machine file."""
        described = load(machine, **overrides)
        root = root.absolute()
        tree = RootTree(root)
        if list(tree.libraries.glob(f"{STATE_NAME}*")):
            raise StateError(f"{root}: a simulated node is here already; choose another folder or remove it")
        tree.driver_files(build(), described.driver_version)
        tree.control_devices()
        tree.capability_tables()
        tree.kernel_module(described.driver_version)
        tree.boot()
        tree.gpu_devices(gpu.minor for gpu in described.gpus if gpu.minor is not None)
        state = tree.libraries / f"{STATE_NAME}{described.driver_version}"
        StateLibrary().create(state, description.machine_lines(described))
        node = cls(root)
        tree.gpu_kernel_files(node._present())
        return node

    def _states(self) -> list[Path]:
        return list(self._tree.libraries.glob(f"{STATE_NAME}*"))

    @property
    def state_path(self) -> Path:
        return self._states()[0]

    @property
    def library_path(self) -> Path:
        return self.root / LIBRARY_FOLDER / "libnvidia-ml.so.1"

    @property
    def nvidia_smi_path(self) -> Path:
        return self.root / "usr/bin/nvidia-smi"

    def plugin_flags(self) -> list[str]:
        """What to give gpu-kubelet-plugin so that it runs on this node."""
        root = str(self.root)
        roots = ["--driver-root", root, "--dev-root", root]
        return [*roots, "--proc-root", f"{root}/proc", "--sys-root", f"{root}/sys"]

    def show(self) -> dict[str, Any]:
        """The whole state, as `nvmlsim show --json` prints it."""
        return self._library.show(self.state_path)

    def _present(self) -> list[dict[str, Any]]:
        return [gpu for gpu in self.show()["gpus"] if gpu["present"]]

    def gpus(self) -> list[SimulatedGpu]:
        return [_gpu(shown) for shown in self._present()]

    def calls(self) -> dict[str, int]:
        """How often each NVML symbol was called by any process since the node was made; 0 is left out."""
        return dict(self.show()["calls"])

    def _apply(self, verb: str, **words: object) -> None:
        self._library.apply(self.state_path, [line(verb, words)])

    def set_mig_mode(self, gpu: int, enabled: bool = True, pending_only: bool = False) -> None:
        """Sets MIG mode at once, whatever the GPU is doing; or only what a reset would make of it."""
        self._apply("mig_mode", gpu=gpu, mode=enabled, pending_only=pending_only)

    def create_mig(self, gpu: int, profile: str, start: int | None = None) -> GpuInstance:
        """A GPU instance with its compute instance, as an administrator makes it; `1c.3g.40gb`: with three."""
        before = {instance.id for instance in self._gpu(gpu).gpu_instances}
        self._library.apply(self.state_path, [description.mig_line(gpu, profile, start)])
        return next(instance for instance in self._gpu(gpu).gpu_instances if instance.id not in before)

    def destroy_mig(self, gpu: int, gi: int, ci: int | None = None) -> None:
        """Destroys a GPU instance with its compute instances, or only one of these."""
        self._apply("mig_destroy", gpu=gpu, gi=gi, ci=ci)

    def _gpu(self, gpu: int) -> SimulatedGpu:
        return next(one for one in self.gpus() if one.gpu == gpu)
