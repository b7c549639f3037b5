"""The files of a driver root: libraries, programs, firmware, and its /dev, /proc and /sys.

Capability files of MIG instances are not here: the C library keeps them, since any process may change those.
"""

import os
import shutil
import stat
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from nvmlsim.build import Build, stub_library

LIBRARY_FOLDER = Path("usr/lib/x86_64-linux-gnu")
STATE_NAME = "libnvidia-nvmlsim.so."
NVIDIA_MAJOR, UVM_MAJOR, CAPS_MAJOR = 195, 236, 237
_MIG_CONFIG, _MIG_MONITOR = 1, 2
_MAX_GPUS, _MAX_GI, _MAX_CI = 32, 15, 8

# Library → its soname; VERSION stands for the driver version.
_STUBS = {
    "libcuda": "libcuda.so.1",
    "libnvidia-ptxjitcompiler": "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-opencl": "libnvidia-opencl.so.1",
    "libnvidia-nvvm": "libnvidia-nvvm.so.4",
    "libnvidia-cfg": "libnvidia-cfg.so.1",
    "libnvidia-encode": "libnvidia-encode.so.1",
    "libnvcuvid": "libnvcuvid.so.1",
    "libnvidia-eglcore": "libnvidia-eglcore.so.VERSION",
    "libnvidia-glcore": "libnvidia-glcore.so.VERSION",
    "libnvidia-glsi": "libnvidia-glsi.so.VERSION",
    "libnvidia-tls": "libnvidia-tls.so.VERSION",
    "libGLX_nvidia": "libGLX_nvidia.so.0",
}
_STUB_PROGRAMS = (
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
)
_FIRMWARE = ("gsp_ga10x.bin", "gsp_tu10x.bin")

Gpu = Mapping[str, object]


class RootTree:
    """Writes below one root; every method may be repeated."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def libraries(self) -> Path:
        return self.root / LIBRARY_FOLDER

    def _write(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.new")
        temporary.write_text(text)
        temporary.rename(target)

    def _link(self, path: Path, target: str) -> None:
        temporary = path.with_name(f".{path.name}.new")
        with suppress(FileNotFoundError):
            temporary.unlink()
        temporary.symlink_to(target)
        temporary.rename(path)

    def put_library(self, name: str, soname: str, version: str, source: Path) -> None:
        """`name.so.<version>` and its links; a copy, as a shared inode would be one library to the loader."""
        self.libraries.mkdir(parents=True, exist_ok=True)
        file = self.libraries / f"{name}.so.{version}"
        temporary = file.with_name(f".{file.name}.new")
        shutil.copyfile(source, temporary)
        temporary.chmod(0o755)
        temporary.rename(file)
        if soname != file.name:
            self._link(self.libraries / soname, file.name)
            self._link(self.libraries / f"{name}.so", soname)

    def driver_files(self, built: Build, version: str) -> None:
        """Libraries, programs and firmware of one driver version."""
        self.put_library("libnvidia-ml", "libnvidia-ml.so.1", version, built.library)
        for name, pattern in _STUBS.items():
            soname = pattern.replace("VERSION", version)
            self.put_library(name, soname, version, stub_library(built.folder, soname))
        programs = self.root / "usr/bin"
        programs.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(built.nvidia_smi, programs / "nvidia-smi")
        for name in _STUB_PROGRAMS:
            (programs / name).write_text("#!/bin/sh\nexit 0\n")
        for name in ("nvidia-smi", *_STUB_PROGRAMS):
            (programs / name).chmod(0o755)
        for name in _FIRMWARE:
            self._write(f"lib/firmware/nvidia/{version}/{name}", f"simulated {name} {version}\n")

    def remove_driver_files(self, version: str) -> None:
        """What carries the version in its name; links to it are for the next version to replace."""
        for file in self.libraries.glob(f"*.so.{version}"):
            if not file.name.startswith(STATE_NAME):
                file.unlink()
        shutil.rmtree(self.root / "lib/firmware/nvidia" / version, ignore_errors=True)

    def _device(self, name: str, major: int, minor: int, mode: int = 0o666) -> None:
        path = self.root / "dev" / name
        if path.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.mknod(path, stat.S_IFCHR | mode, os.makedev(major, minor))
        except PermissionError:
            path.touch()
        path.chmod(mode)

    def control_devices(self) -> None:
        self._device("nvidiactl", NVIDIA_MAJOR, 255)
        self._device("nvidia-modeset", NVIDIA_MAJOR, 254)
        self._device("nvidia-uvm", UVM_MAJOR, 0)
        self._device("nvidia-uvm-tools", UVM_MAJOR, 1)
        self._device(f"nvidia-caps/nvidia-cap{_MIG_CONFIG}", CAPS_MAJOR, _MIG_CONFIG, 0o400)
        self._device(f"nvidia-caps/nvidia-cap{_MIG_MONITOR}", CAPS_MAJOR, _MIG_MONITOR, 0o444)

    def gpu_devices(self, minors: Iterable[int]) -> None:
        """`/dev/nvidia<minor>` and the capability folders, for exactly these minors."""
        wanted = set(minors)
        for minor in range(_MAX_GPUS):
            capabilities = self.root / f"proc/driver/nvidia/capabilities/gpu{minor}"
            if minor in wanted:
                self._device(f"nvidia{minor}", NVIDIA_MAJOR, minor)
                (capabilities / "mig").mkdir(parents=True, exist_ok=True)
            else:
                (self.root / f"dev/nvidia{minor}").unlink(missing_ok=True)
                shutil.rmtree(capabilities, ignore_errors=True)

    def capability_tables(self) -> None:
        """mig-minors lists every instance that 32 GPUs could have (open kernel driver, nv-caps.c)."""
        lines = [f"config {_MIG_CONFIG}", f"monitor {_MIG_MONITOR}"]
        for gpu in range(_MAX_GPUS):
            for gi in range(_MAX_GI):
                access = 3 + 135 * gpu + 9 * gi
                lines.append(f"gpu{gpu}/gi{gi}/access {access}")
                lines.extend(f"gpu{gpu}/gi{gi}/ci{ci}/access {access + 1 + ci}" for ci in range(_MAX_CI))
        self._write("proc/driver/nvidia-caps/mig-minors", "\n".join(lines) + "\n")
        self._write("proc/driver/nvidia-caps/nvlink-minors", "fabric-mgmt 0\n")
        self._write("proc/driver/nvidia-caps/sys-minors", "fabric-imex-mgmt 4323\n")
        for name, minor, mode in (("config", _MIG_CONFIG, 256), ("monitor", _MIG_MONITOR, 292)):
            text = f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n"
            self._write(f"proc/driver/nvidia/capabilities/mig/{name}", text)

    def kernel_module(self, version: str | None) -> None:
        """What /proc tells of the loaded kernel module; None: there is none."""
        majors = [(1, "mem"), (5, "/dev/tty"), (10, "misc")]
        if version is None:
            (self.root / "proc/driver/nvidia/version").unlink(missing_ok=True)
        else:
            majors += [(NVIDIA_MAJOR, "nvidia"), (UVM_MAJOR, "nvidia-uvm"), (CAPS_MAJOR, "nvidia-caps")]
            text = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build\n"
            self._write("proc/driver/nvidia/version", text + "GCC version:  gcc\n")
            parameters = "ModifyDeviceFiles: 1\nDeviceFileMode: 438\nDeviceFileUID: 0\nDeviceFileGID: 0\n"
            self._write("proc/driver/nvidia/params", parameters)
        devices = "Character devices:\n" + "".join(f"{major:3d} {name}\n" for major, name in majors)
        self._write("proc/devices", devices + "\nBlock devices:\n  8 sd\n")

    def boot(self) -> str:
        """A new boot id, which it returns."""
        boot_id = str(uuid.uuid4())
        self._write("proc/sys/kernel/random/boot_id", boot_id + "\n")
        return boot_id

    def gpu_kernel_files(self, gpus: Iterable[Gpu]) -> None:
        """/proc/driver/nvidia/gpus and /sys/bus/pci/devices, for exactly these GPUs of SimulatedNode.show."""
        by_address = {str(gpu["pci_bus_id"]): gpu for gpu in gpus}
        links = self.root / "sys/bus/pci/devices"
        information = self.root / "proc/driver/nvidia/gpus"
        for folder in (links, information):
            folder.mkdir(parents=True, exist_ok=True)
            for entry in folder.iterdir():
                if entry.name not in by_address:
                    entry.unlink() if entry.is_symlink() else shutil.rmtree(entry)
        for address, gpu in by_address.items():
            self._gpu_information(address, gpu)
            self._pci_device(address, gpu)

    def _gpu_information(self, address: str, gpu: Gpu) -> None:
        name = str(gpu["name"])
        text = (
            f"Model: \t\t {name}\nIRQ:   \t\t 16\nGPU UUID: \t {gpu['uuid']}\nVideo BIOS: \t ??.??.??.??.??\n"
            f"Bus Type: \t PCIe\nDMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\n"
            f"Bus Location: \t {address}\n"
            f"Device Minor: \t {gpu['minor']}\nGPU Excluded:\t No\n"
        )
        self._write(f"proc/driver/nvidia/gpus/{address}/information", text)

    def _pci_device(self, address: str, gpu: Gpu) -> None:
        root_bus = str(gpu["pcie_root"]).removeprefix("pci")
        device_id = int(str(gpu["pci_device_id"])) >> 16
        folder = f"devices/{gpu['pcie_root']}/{root_bus}:01.0/{address}"
        files = {"vendor": "0x10de", "device": f"0x{device_id:04x}", "class": "0x030200"}
        for name, text in {**files, "numa_node": gpu["numa_node"]}.items():
            self._write(f"sys/{folder}/{name}", f"{text}\n")
        self._link(self.root / "sys/bus/pci/devices" / address, f"../../../{folder}")
