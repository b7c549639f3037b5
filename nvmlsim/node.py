"""A simulated node as an object: make it, look at it, and change it while other programs run on it."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nvmlsim import description
from nvmlsim.build import build
from nvmlsim.elf import without_symbols
from nvmlsim.gpus import GpuInstance, SimulatedGpu, simulated_gpu
from nvmlsim.gpusettings import checked
from nvmlsim.library import StateError, StateLibrary, line
from nvmlsim.machine import MAX_GPUS, Gpu, Machine, filled, load
from nvmlsim.models import model_lines
from nvmlsim.roottree import LIBRARY_FOLDER, STATE_NAME, RootTree

ALL_SYMBOLS = "*"


class SimulatedNode:
    """A driver root with its state.

    `gpu` in every method is the number of a GPU in `gpus()`: it stays when indexes and minors move. Changes
    are seen by all processes at once. Raises StateError when the node refuses a change.
    """

    def __init__(self, root: Path) -> None:
        """Opens the node that lies below `root`."""
        self.root = root.absolute()
        self._tree = RootTree(self.root)
        self._build = build()
        self._library = StateLibrary(self.root, self._build)
        if not self._states():
            raise StateError(f"{root}: no simulated node here; make one: nvmlsim init {root} --machine NAME")

    @classmethod
    def create(cls, root: Path, machine: str | Path, **overrides: object) -> "SimulatedNode":
        """Makes a node below `root`, which must hold none yet.

        `machine` is a built-in name or a YAML file; overrides replace its top-level fields, as in
        `mig={0: ["1g.10gb"]}`. Raises MachineError, BuildError or StateError.
        """
        described = load(machine, **overrides)
        root = root.absolute()
        tree = RootTree(root)
        if list(tree.libraries.glob(f"{STATE_NAME}*")):
            raise StateError(f"{root}: a simulated node is here already; choose another folder or remove it")
        built = build()
        is_new = not root.exists()
        tree.driver_files(built, described.driver_version)
        tree.control_devices()
        tree.capability_tables()
        tree.kernel_module(described.driver_version)
        tree.boot()
        tree.gpu_devices(gpu.minor for gpu in described.gpus if gpu.minor is not None)
        state = tree.libraries / f"{STATE_NAME}{described.driver_version}"
        try:
            StateLibrary(root, built).create(state, description.machine_lines(described))
        except StateError:
            if is_new:
                shutil.rmtree(root)
            raise
        node = cls(root)
        tree.gpu_kernel_files(node._present())
        return node

    def _states(self) -> list[Path]:
        return list(self._tree.libraries.glob(f"{STATE_NAME}*"))

    @property
    def state_path(self) -> Path:
        """The state file; its name carries the driver version, as the libraries beside it do."""
        return self._states()[0]

    @property
    def library_path(self) -> Path:
        """`libnvidia-ml.so.1`, to be loaded by this path."""
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
        """The GPUs that are plugged in, lost ones too, in the order of their numbers."""
        return [simulated_gpu(shown) for shown in self._present()]

    def gpu(self, gpu: int) -> SimulatedGpu:
        found = [one for one in self.gpus() if one.gpu == gpu]
        if not found:
            raise StateError(f"{self.root}: there is no GPU {gpu}")
        return found[0]

    def calls(self) -> dict[str, int]:
        """How often each NVML symbol was called by any process (and `nvidia-smi` run); 0 is left out."""
        return dict(self.show()["calls"])

    def reset_calls(self) -> None:
        self._apply("reset_calls")

    def _apply(self, verb: str, **words: object) -> None:
        self._library.apply(self.state_path, [line(verb, words)])

    def set_return(self, symbol: str, code: int, times: int | None = None, gpu: int | None = None) -> None:
        """Answers calls of a symbol with an NVML return code: always or `times`, on every GPU or one."""
        self._apply("fault", symbol=symbol, code=code, times=times, gpu=gpu)

    def set_delay(
        self, symbol: str, milliseconds: int, times: int | None = None, gpu: int | None = None
    ) -> None:
        """Makes calls of a symbol (or ALL_SYMBOLS) slow; a delay adds to others and to a return code."""
        self._apply("fault", symbol=symbol, delay_ms=milliseconds, times=times, gpu=gpu)

    def clear_faults(self, symbol: str = ALL_SYMBOLS) -> None:
        """Takes back return codes and delays of a symbol; of ALL_SYMBOLS: every one."""
        self._apply("clear_faults", symbol=symbol)

    def set_missing_symbols(self, symbols: Sequence[str]) -> None:
        """The library lacks exactly these symbols for programs that load it from now on."""
        try:
            changed = without_symbols(self._build.library.read_bytes(), symbols)
        except KeyError as error:
            raise StateError(f"the library has no symbol {error.args[0]}") from error
        file = self.library_path.resolve()
        temporary = file.with_name(f".{file.name}.new")
        temporary.write_bytes(changed)
        temporary.chmod(0o755)
        temporary.rename(file)

    def set_nvidia_smi(self, exit_code: int = 0, delay_ms: int = 0) -> None:
        """Makes nvidia-smi wait, and end with an error before it does anything."""
        self._apply("node", smi_exit_code=exit_code, smi_delay_ms=delay_ms)

    def lose(self, gpu: int) -> None:
        """The GPU answers every call with GPU_IS_LOST; `reset` or `restore` brings it back."""
        self._apply("lose", gpu=gpu)

    def restore(self, gpu: int) -> None:
        self._apply("lose", gpu=gpu, lost=0)

    def unplug(self, gpu: int) -> None:
        """The GPU is gone: from NVML, /dev, /proc and /sys."""
        self._apply("unplug", gpu=gpu)
        self._show_devices()

    def plug(self, model: str, **fields: object) -> SimulatedGpu:
        """Adds a GPU; `fields` are those of an entry of a machine file.

        Without `pci` it gets a free address, without `minor` the lowest free one. At the address of an
        unplugged GPU of the same model it has that one's NVLinks, and its UUID too unless another is given.
        """
        shown = self.show()
        present = [gpu for gpu in shown["gpus"] if gpu["present"]]
        entry = Gpu.model_validate({"model": model, **_free_place(present), **fields})
        gpu = filled(entry, shown["machine"], len(present), max(len(present), 1))
        machine = Machine(name=shown["machine"], gpus=(gpu,))
        lines = [*model_lines(model), description.gpu_line(machine, gpu, False)]
        number = next((g["gpu"] for g in shown["gpus"] if not g["present"]), len(shown["gpus"]))
        lines += description.repeated_links(shown["gpus"], number, gpu)
        self._tree.gpu_devices([*(int(g["minor"]) for g in present), gpu.minor or 0])
        self._library.apply(self.state_path, lines)
        self._show_devices()
        return self.gpu(number)

    def _show_devices(self) -> None:
        present = self._present()
        self._tree.gpu_devices(gpu["minor"] for gpu in present)
        self._tree.gpu_kernel_files(present)

    def set_gpu(self, gpu: int, **settings: object) -> None:
        """Changes what one GPU is or tells; `nvmlsim.gpusettings` has the names. Raises SettingError."""
        settings = checked(settings)
        self._apply("gpu_set", gpu=gpu, **settings)
        self._tree.gpu_kernel_files(self._present())

    def set_link(self, gpu: int, link: int, active: bool) -> None:
        """Takes one end of an NVLink down or up."""
        self._apply("link", gpu=gpu, link=link, active=active)

    def permute_minors(self, minors: Sequence[int]) -> None:
        """Gives the GPUs, in the order of `gpus()`, these device minors, as a new boot might."""
        self._set_each("minor", minors)

    def permute_indexes(self, indexes: Sequence[int]) -> None:
        """Gives the GPUs, in the order of `gpus()`, these NVML indexes, whatever their PCI addresses."""
        self._set_each("rank", indexes)

    def _set_each(self, key: str, values: Sequence[int]) -> None:
        present = self._present()
        if len(set(values)) != len(present) or not all(0 <= value < MAX_GPUS for value in values):
            raise StateError(f"{self.root}: give {len(present)} different numbers below {MAX_GPUS}")
        lines = [
            line("gpu_set", {"gpu": gpu["gpu"], key: value})
            for gpu, value in zip(present, values, strict=True)
        ]
        if key == "minor":
            self._tree.gpu_devices({*values, *(int(gpu["minor"]) for gpu in present)})
        self._library.apply(self.state_path, lines)
        self._show_devices()

    def xid(self, gpu: int, xid: int, gi: int | None = None, ci: int | None = None) -> None:
        """An XID event, of a MIG instance when gi and ci are given; XID 79 also loses the GPU."""
        self._apply("event", gpu=gpu, data=xid, gi=gi, ci=ci)

    def ecc_error(self, gpu: int, double_bit: bool) -> None:
        """An ECC event; it is counted as a corrected or an uncorrected error."""
        self._apply("event", gpu=gpu, type="double_bit_ecc" if double_bit else "single_bit_ecc")

    def add_process(
        self, gpu: int, pid: int, gi: int | None = None, ci: int | None = None, memory_mib: int = 0
    ) -> None:
        """A program computes on the GPU, or in one of its MIG devices, until `remove_process`."""
        self._apply("process_add", gpu=gpu, pid=pid, gi=gi, ci=ci, memory_mib=memory_mib)

    def remove_process(self, pid: int) -> None:
        self._apply("process_remove", pid=pid)

    def set_mig_mode(self, gpu: int, enabled: bool = True, pending_only: bool = False) -> None:
        """Sets MIG mode at once, whatever the GPU is doing; or only what the next reset makes of it."""
        self._apply("mig_mode", gpu=gpu, mode=enabled, pending_only=pending_only)

    def create_mig(self, gpu: int, profile: str, start: int | None = None) -> GpuInstance:
        """A GPU instance with its compute instance, as an administrator makes it.

        `1c.3g.40gb` fills it with compute instances of that size. MIG mode must be on.
        """
        before = {instance.id for instance in self.gpu(gpu).gpu_instances}
        self._library.apply(self.state_path, [description.mig_line(gpu, profile, start)])
        return next(instance for instance in self.gpu(gpu).gpu_instances if instance.id not in before)

    def destroy_mig(self, gpu: int, gi: int, ci: int | None = None) -> None:
        """Destroys a GPU instance with its compute instances, or only one of these."""
        self._apply("mig_destroy", gpu=gpu, gi=gi, ci=ci)

    def reset(self, gpu: int) -> None:
        """Resets one GPU: instances and processes go, pending modes become current, a lost GPU is back."""
        self._apply("reset", gpu=gpu)

    def reboot(self) -> None:
        """Everything volatile is gone and the boot id is new; MIG mode survives on Ampere only."""
        version = self.show()["driver_version"]
        lines = [line("reset", {}), line("node", {"kernel_version": version, "driver_loaded": 1})]
        self._library.apply(self.state_path, lines)
        self._tree.kernel_module(version)
        self._tree.boot()

    def load_driver(self, loaded: bool = True) -> None:
        """Loads or unloads the kernel module; without it every NVML call answers DRIVER_NOT_LOADED.

        Unloading takes what is volatile with it, as a reboot does: instances, MIG mode on Hopper and later.
        """
        shown = self.show()
        if not loaded:
            self._library.apply(self.state_path, [line("reset", {})])
        self._apply("node", driver_loaded=loaded)
        self._tree.kernel_module(shown["kernel_version"] if loaded else None)

    def set_driver_version(self, version: str, reload: bool = True) -> None:
        """Replaces the driver's files; without `reload` the old kernel module stays, and NVML fails."""
        shown = self.show()
        old = shown["driver_version"]
        if version == old:
            return
        self._tree.driver_files(self._build, version)
        major = shown["cuda_version"] // 1000
        self.state_path.rename(self._tree.libraries / f"{STATE_NAME}{version}")
        kernel = version if reload else shown["kernel_version"]
        words = {"driver_version": version, "nvml_version": f"{major}.{version}", "kernel_version": kernel}
        self._apply("node", **words)
        self._tree.remove_driver_files(old)
        self._tree.kernel_module(kernel)


def _free_place(present: Sequence[dict[str, Any]]) -> dict[str, object]:
    taken = {gpu["pci_bus_id"] for gpu in present}
    minors = {gpu["minor"] for gpu in present}
    addresses = (f"0000:{bus:02x}:00.0" for bus in range(0x11, 0xFF))
    return {
        "pci": next(address for address in addresses if address not in taken),
        "minor": next(minor for minor in range(MAX_GPUS + 1) if minor not in minors),
    }
