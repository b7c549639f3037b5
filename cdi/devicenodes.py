"""Device nodes of GPUs, of MIG instances and of the driver itself.

Type, major and minor are in the spec whenever they are known, so that the runtime makes the node
by itself: nodes below ``/dev/nvidia-caps`` often do not exist on the host. Numbers come from the node; where
a root holds a plain file in its place (an exported tree), from ``/proc/devices`` and the fixed minors.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from cdi.spec import ContainerEdits, DeviceNode

# Linux Documentation/admin-guide/devices.txt: 195 is NVIDIA's; the others below are given out at load time.
_NVIDIA_MAJOR = 195
_NVIDIA_MAJOR_NAMES = ("nvidia", "nvidia-frontend")
_CAPABILITIES_MAJOR_NAME = "nvidia-caps"
_DEFAULT_MODE = 0o666
_PERMISSIONS = "rw"
_PCI_ADDRESS = re.compile(r"(?:([0-9a-fA-F]+):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")


@dataclass(frozen=True, slots=True)
class _ControlNode:
    name: str
    major_names: tuple[str, ...]
    minor: int


_CONTROL_NODES = (
    _ControlNode("nvidiactl", _NVIDIA_MAJOR_NAMES, 255),
    _ControlNode("nvidia-uvm", ("nvidia-uvm",), 0),
    _ControlNode("nvidia-uvm-tools", ("nvidia-uvm",), 1),
    _ControlNode("nvidia-modeset", _NVIDIA_MAJOR_NAMES, 254),
)


class DeviceNodeError(Exception):
    """A device node that a claim needs is missing or cannot be determined; the message names it."""


def gpu_edits(
    dev_root: Path, host_dev_root: str, minor: int, pci: str, *, proc_root: Path = Path("/proc")
) -> ContainerEdits:
    """Edits for a whole GPU: ``/dev/nvidia<minor>`` and its DRM nodes when there are any.

    ``dev_root`` is the folder that holds ``dev``, as this process sees it; ``host_dev_root`` the same folder
    on the host. ``pci`` is the GPU's address, ``0000:65:00.0`` or with an 8-digit domain. ``proc_root`` is
    the folder that stands for ``/proc``.

    Raises:
        DeviceNodeError: the GPU's node does not exist.
    """
    nodes = [_gpu_node(dev_root, host_dev_root, minor, proc_root)]
    nodes += _drm_nodes(dev_root, host_dev_root, pci)
    return ContainerEdits(device_nodes=tuple(nodes))


def mig_edits(
    dev_root: Path, host_dev_root: str, proc_root: Path, minor: int, gi: int, ci: int
) -> ContainerEdits:
    """Edits for one compute instance: the parent GPU's node and the capability nodes of the two instances.

    ``minor`` is the parent's device minor, ``gi`` and ``ci`` are the ids of the GPU and compute instance.
    Roots as in :func:`gpu_edits`. The capability nodes need not exist.

    Raises:
        DeviceNodeError: the parent's node, an access file below ``driver/nvidia/capabilities``, or the
            ``nvidia-caps`` line of ``devices`` is missing.
    """
    instance = proc_root / "driver/nvidia/capabilities" / f"gpu{minor}" / "mig" / f"gi{gi}"
    parent = _gpu_node(dev_root, host_dev_root, minor, proc_root)
    major = _character_majors(proc_root).get(_CAPABILITIES_MAJOR_NAME)
    if major is None:
        raise DeviceNodeError(
            f"{proc_root / 'devices'} has no line for {_CAPABILITIES_MAJOR_NAME}, which MIG needs: "
            "check that the nvidia kernel module is loaded on the node"
        )
    capabilities = tuple(
        _capability_node(access, host_dev_root, major)
        for access in (instance / "access", instance / f"ci{ci}" / "access")
    )
    return ContainerEdits(device_nodes=(parent, *capabilities))


def control_edits(
    dev_root: Path, host_dev_root: str, proc_root: Path
) -> tuple[ContainerEdits, tuple[str, ...]]:
    """The driver's own nodes that exist (``/dev/nvidiactl``, …), and names of those that do not."""
    nodes: list[DeviceNode] = []
    missing: list[str] = []
    majors = _character_majors(proc_root)
    for control in _CONTROL_NODES:
        major = next((majors[name] for name in control.major_names if name in majors), None)
        if major is None and control.major_names == _NVIDIA_MAJOR_NAMES:
            major = _NVIDIA_MAJOR
        node = _node(dev_root, host_dev_root, f"/dev/{control.name}", major, control.minor)
        if node is None:
            missing.append(f"/dev/{control.name}")
        else:
            nodes.append(node)
    return ContainerEdits(device_nodes=tuple(nodes)), tuple(missing)


def optional_node_edits(dev_root: Path, host_dev_root: str, path: str) -> ContainerEdits:
    """Edits for one node of this container path; empty when it does not exist."""
    node = _node(dev_root, host_dev_root, path, None, None)
    return ContainerEdits(device_nodes=() if node is None else (node,))


def _gpu_node(dev_root: Path, host_dev_root: str, minor: int, proc_root: Path) -> DeviceNode:
    path = f"/dev/nvidia{minor}"
    majors = _character_majors(proc_root)
    major = next((majors[name] for name in _NVIDIA_MAJOR_NAMES if name in majors), _NVIDIA_MAJOR)
    node = _node(dev_root, host_dev_root, path, major, minor)
    if node is None:
        raise DeviceNodeError(
            f"The GPU's device node {_below(dev_root, path)} does not exist: nvidia-modprobe or "
            "nvidia-persistenced makes it when the driver is loaded; check the driver on the node and the "
            "dev root of the plugin"
        )
    return node


def _drm_nodes(dev_root: Path, host_dev_root: str, pci: str) -> list[DeviceNode]:
    match = _PCI_ADDRESS.fullmatch(pci)
    if match is None:
        raise ValueError(f'PCI address "{pci}" must be domain:bus:device.function, as 0000:65:00.0')
    domain, bus, device, function = match.groups()
    address = f"{int(domain or '0', 16):04x}:{bus}:{device}.{function}".lower()
    nodes = []
    for suffix in ("card", "render"):
        try:
            target = (dev_root / f"dev/dri/by-path/pci-{address}-{suffix}").readlink()
        except OSError:
            continue
        node = _node(dev_root, host_dev_root, f"/dev/dri/{target.name}", None, None)
        if node is not None:
            nodes.append(node)
    return nodes


def _node(
    dev_root: Path, host_dev_root: str, path: str, major: int | None, minor: int | None
) -> DeviceNode | None:
    try:
        status = _below(dev_root, path).stat()
    except OSError:
        return None
    mode = _DEFAULT_MODE
    if stat.S_ISCHR(status.st_mode):
        major, minor, mode = os.major(status.st_rdev), os.minor(status.st_rdev), stat.S_IMODE(status.st_mode)
    if major is None or minor is None:
        # Without numbers the runtime looks at the host's node when the container starts.
        major = minor = None
    return DeviceNode(
        path=path,
        host_path=_host_path(host_dev_root, path),
        type="c" if major is not None else "",
        major=major,
        minor=minor,
        file_mode=mode,
        permissions=_PERMISSIONS,
    )


def _capability_node(access: Path, host_dev_root: str, major: int) -> DeviceNode:
    try:
        text = access.read_text(errors="replace")
    except OSError as error:
        raise DeviceNodeError(
            f"The MIG instance's capability file {access} cannot be read ({error.strerror}): "
            "the instance does not exist, or the plugin does not see the host's /proc/driver/nvidia"
        ) from error
    fields = dict(re.findall(r"^(\w+):\s*(\d+)\s*$", text, re.MULTILINE))
    if "DeviceFileMinor" not in fields:
        raise DeviceNodeError(
            f"The MIG instance's capability file {access} has no DeviceFileMinor: {text[:200]!r}"
        )
    minor = int(fields["DeviceFileMinor"])
    path = f"/dev/nvidia-caps/nvidia-cap{minor}"
    return DeviceNode(
        path=path,
        host_path=_host_path(host_dev_root, path),
        type="c",
        major=major,
        minor=minor,
        file_mode=int(fields["DeviceFileMode"]) if "DeviceFileMode" in fields else None,
        permissions=_PERMISSIONS,
    )


def _character_majors(proc_root: Path) -> dict[str, int]:
    try:
        text = (proc_root / "devices").read_text(errors="replace")
    except OSError:
        return {}
    character_part = text.partition("Block devices:")[0]
    return {
        name: int(major) for major, name in re.findall(r"^\s*(\d+)\s+(\S+)\s*$", character_part, re.MULTILINE)
    }


def _below(dev_root: Path, path: str) -> Path:
    return dev_root / path.lstrip("/")


def _host_path(host_dev_root: str, path: str) -> str | None:
    on_host = str(PurePosixPath(host_dev_root) / path.lstrip("/"))
    return None if on_host == path else on_host
