"""What the kernel tells about GPUs in ``/proc`` and ``/sys``, below roots that can be set."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from driver.inventory import PciAddress

_NVIDIA_VENDOR = 0x10DE
_DISPLAY_CLASSES = (0x0300, 0x0302)
_POD = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")
_PCIE_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class HostRoots:
    """Where the host's ``/proc`` and ``/sys`` are mounted."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")

    def numa_node(self, pci: PciAddress) -> int | None:
        """The NUMA node next to a PCI function, or ``None`` when the kernel knows none (-1).

        Raises:
            OSError: the function is not in sysfs or has no ``numa_node``.
            ValueError: the file holds no number.
        """
        node = int((self._function(pci) / "numa_node").read_text())
        return node if node >= 0 else None

    def pcie_root(self, pci: PciAddress) -> str:
        """The root complex of a PCI function, such as ``pci0000:00``.

        It is the first part of that form in the target of ``/sys/bus/pci/devices/<address>``
        (KEP-4381, standard attribute ``resource.kubernetes.io/pcieRoot``).

        Raises:
            OSError: the function is not in sysfs.
            ValueError: the link names no root complex.
        """
        target = self._function(pci).readlink()
        for part in target.parts:
            if _PCIE_ROOT.fullmatch(part):
                return part
        raise ValueError(f"the sysfs link of {pci} leads to {target}, which names no root complex")

    def nvidia_display_functions(self) -> tuple[PciAddress, ...]:
        """NVIDIA's PCI display functions (class 0300 and 0302) that a driver could serve, by address.

        Virtual functions are left out: their physical function stands for them. So are functions that are
        bound to vfio-pci, which NVML will never show.
        """
        found = []
        for function in self._functions():
            try:
                vendor = int((function / "vendor").read_text(), 16)
                display_class = int((function / "class").read_text(), 16) >> 8
                pci = PciAddress.parse(function.name)
            except (OSError, ValueError):
                continue
            if vendor != _NVIDIA_VENDOR or display_class not in _DISPLAY_CLASSES:
                continue
            if (function / "physfn").is_symlink() or _bound_driver(function) == "vfio-pci":
                continue
            found.append(pci)
        return tuple(sorted(found))

    def process(self, pid: int) -> str:
        """A process as a person knows it: its pid, its name, and the UID of the pod whose cgroup it is in."""
        folder = self.proc / str(pid)
        known = []
        try:
            known.append((folder / "comm").read_text(errors="replace").strip())
            pod = _POD.search((folder / "cgroup").read_text(errors="replace"))
            if pod is not None:
                known.append(f"pod {pod[1].replace('_', '-')}")
        except OSError:
            known = known or ["ended or of another host"]
        return f"{pid} ({', '.join(known)})"

    def boot_id(self) -> str:
        """The identity of this boot, a UUID that the kernel draws at each start.

        Raises:
            OSError: the file cannot be read.
        """
        return (self.proc / "sys/kernel/random/boot_id").read_text().strip()

    def _function(self, pci: PciAddress) -> Path:
        return self.sys / "bus/pci/devices" / str(pci)

    def _functions(self) -> list[Path]:
        try:
            return list((self.sys / "bus/pci/devices").iterdir())
        except OSError:
            return []


def _bound_driver(function: Path) -> str:
    try:
        return (function / "driver").readlink().name
    except OSError:
        return ""
