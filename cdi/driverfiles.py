"""What the driver brings besides libraries: programs, firmware, sockets, and files for graphics."""

from __future__ import annotations

import logging
import stat
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from cdi.driverroot import DriverRoot
from cdi.spec import Mount

logger = logging.getLogger(__name__)

FILE_OPTIONS = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_SOCKET_OPTIONS = ("nosuid", "nodev", "rbind", "rprivate", "noexec")

_PROGRAMS = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
)
_FIRMWARE_FOLDERS = ("lib/firmware", "usr/lib/firmware", "firmware")
# A node-wide MPS daemon's pipe folder is not among them: CUDA would use that daemon without being asked to,
# also in a container whose GPU it does not serve.
_SOCKETS = ("run/nvidia-persistenced/socket", "run/nvidia-fabricmanager/socket")
_GRAPHICS = (
    ("etc/vulkan/icd.d", "nvidia_icd*.json"),
    ("etc/vulkan/implicit_layer.d", "nvidia_layers*.json"),
    ("usr/share/vulkan/icd.d", "nvidia_icd*.json"),
    ("usr/share/vulkan/implicit_layer.d", "nvidia_layers*.json"),
    ("usr/share/glvnd/egl_vendor.d", "*nvidia.json"),
    ("usr/share/egl/egl_external_platform.d", "*nvidia*.json"),
    ("usr/share/nvidia", "nvoptix.bin"),
    ("usr/share/X11/xorg.conf.d", "nvidia-drm-outputclass.conf"),
    ("usr/share/X11/xorg.conf.d", "10-nvidia.conf"),
    ("usr/lib/xorg/modules/drivers", "nvidia_drv.so"),
    ("usr/lib/xorg/modules/extensions", "libglxserver_nvidia.so*"),
    ("usr/lib64/xorg/modules/drivers", "nvidia_drv.so"),
    ("usr/lib64/xorg/modules/extensions", "libglxserver_nvidia.so*"),
)


def file_mount(root: DriverRoot, source: PurePosixPath, container_path: str) -> Mount:
    """A read-only mount of a file or folder below the root."""
    return Mount(root.on_host(source), container_path, FILE_OPTIONS)


def program_mounts(root: DriverRoot) -> list[Mount]:
    """The driver's programs, in the container always below ``/usr/bin``."""
    mounts = []
    folders = root.program_folders()
    for name in _PROGRAMS:
        source = next((found for folder in folders if (found := root.resolve_file(folder / name))), None)
        if source is None:
            logger.debug("the driver root %s has no program %s; it is left out", root.path, name)
        else:
            mounts.append(file_mount(root, source, f"/usr/bin/{name}"))
    return mounts


def firmware_mounts(root: DriverRoot, driver_version: str) -> list[Mount]:
    """The GSP firmware of this driver version, in the container always below ``/lib/firmware``."""
    for folder in _FIRMWARE_FOLDERS:
        versioned = PurePosixPath(folder, "nvidia", driver_version)
        mounts = [
            file_mount(root, source, f"/lib/firmware/nvidia/{driver_version}/{name}")
            for name in root.names(versioned)
            if fnmatchcase(name, "gsp*.bin") and (source := root.resolve_file(versioned / name))
        ]
        if mounts:
            return mounts
    logger.debug("the driver root %s has no GSP firmware of version %s", root.path, driver_version)
    return []


def socket_mounts(root: DriverRoot) -> list[Mount]:
    """Sockets of the driver's daemons that are there."""
    mounts = []
    for name in _SOCKETS:
        position = PurePosixPath(name)
        source = root.resolve(position)
        if source is not None and stat.S_ISSOCK((root.path / source).stat().st_mode):
            mounts.append(Mount(root.on_host(source), root.in_container(position), _SOCKET_OPTIONS))
        else:
            logger.debug("the driver root %s has no socket %s", root.path, name)
    return mounts


def socket_folders() -> tuple[PurePosixPath, ...]:
    """Where sockets of the driver's daemons come and go."""
    return tuple(PurePosixPath(name).parent for name in _SOCKETS)


def graphics_mounts(root: DriverRoot) -> list[Mount]:
    """Files by which Vulkan, EGL, OptiX and the X server find the driver's libraries."""
    return [
        file_mount(root, source, root.in_container(PurePosixPath(folder, name)))
        for folder, pattern in _GRAPHICS
        for name in root.names(PurePosixPath(folder))
        if fnmatchcase(name, pattern) and (source := root.resolve_file(PurePosixPath(folder, name)))
    ]
