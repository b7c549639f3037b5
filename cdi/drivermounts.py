"""What every GPU container needs, whichever GPU it gets: libraries, programs, firmware, control nodes.

A library is mounted at the path it has below the driver root: ``/run/nvidia/driver/usr/lib64/libcuda.so.1``
is ``/usr/lib64/libcuda.so.1`` in the container. Two things are then left to do: further names of a library
(``libcuda.so.1``, ``libcuda.so``), and a loader that looks into that folder. There are two ways:

* With NVIDIA's hook program on the host: links by its ``create-symlinks`` hook, the loader's cache by its
  ``update-ldcache`` hook, and in addition ``enable-cuda-compat`` and ``disable-device-node-modification``.
* Without it (``hooks=None``): mounts only. Each further name is one more mount of the same file. And since
  the image's loader knows nothing of the host's folders, each library is also mounted, by the names a loader
  asks for, in the folders that glibc searches after its cache: ``/usr/lib/<triplet>`` (Debian, Ubuntu and
  their kin) and ``/usr/lib64`` (Red Hat, SUSE, Amazon). This was chosen over ``LD_LIBRARY_PATH``, because a
  CDI entry replaces the image's own value, on which many CUDA images depend. It needs no writable root file
  system in the container, as mounts are made before the runtime makes it read-only. An image with musl
  instead of glibc cannot load the driver's libraries in either way.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from cdi.devicenodes import control_edits
from cdi.driverfiles import (
    file_mount,
    firmware_mounts,
    graphics_mounts,
    program_mounts,
    socket_folders,
    socket_mounts,
)
from cdi.driverroot import DriverRoot
from cdi.hooks import HOOK_FOLDERS, HookTool
from cdi.libraries import Libraries, find_libraries, loader_folders
from cdi.spec import ContainerEdits, Hook, Mount
from cdi.wsl import is_wsl, wsl_edits

logger = logging.getLogger(__name__)

# Keeps NVIDIA's own runtime hook, where it is the default runtime, from adding GPUs of its choice.
_ENVIRONMENT = ("NVIDIA_VISIBLE_DEVICES=void",)


@dataclass(frozen=True, slots=True)
class CommonEdits:
    """The edits, and sentences for the log and an event about what a user may miss.

    They stay true for the same driver version as long as no folder of :func:`folders_read` changes.
    """

    edits: ContainerEdits
    warnings: tuple[str, ...]


def common_edits(
    root: DriverRoot,
    driver_version: str,
    *,
    dev_root: Path,
    host_dev_root: str = "/",
    proc_root: Path = Path("/proc"),
    hooks: HookTool | None,
) -> CommonEdits:
    """What each container with a GPU of this driver version needs.

    ``dev_root`` is the folder that holds ``dev`` as this process sees it, ``host_dev_root`` the same folder
    on the host, ``proc_root`` the folder that stands for ``/proc``.

    Raises:
        DriverRootError: libcuda of this version is absent; names every path tried.
    """
    base = ContainerEdits(env=_ENVIRONMENT)
    if is_wsl(root):
        return CommonEdits(base + wsl_edits(root, dev_root, host_dev_root, hooks), ())
    libraries = find_libraries(root, driver_version)
    nodes, missing_nodes = control_edits(dev_root, host_dev_root, proc_root)
    mounts = [
        *library_mounts(root, libraries),
        *firmware_mounts(root, driver_version),
        *program_mounts(root),
        *socket_mounts(root),
        *graphics_mounts(root),
    ]
    if hooks is None:
        mounts += link_mounts(root, libraries)
        edits = ContainerEdits(mounts=distinct_targets(mounts))
    else:
        edits = ContainerEdits(
            mounts=distinct_targets(mounts), hooks=_library_hooks(root, libraries, driver_version, hooks)
        )
    return CommonEdits(base + nodes + edits, _warnings(missing_nodes))


def folders_read(root: DriverRoot, dev_root: Path) -> tuple[Path, ...]:
    """The folders whose entries decide about :func:`common_edits`, those that do not exist too.

    A daemon's socket that has gone, or a library that an installer replaces, would keep containers from
    starting for as long as a mount of it is asked for.
    """
    folders = (
        *socket_folders(),
        *root.library_folders(),
        *(PurePosixPath(folder) for folder in HOOK_FOLDERS),
    )
    below_root = (root.path / (root.resolve(folder) or folder) for folder in folders)
    return tuple(dict.fromkeys((dev_root / "dev", *below_root)))


def library_mounts(root: DriverRoot, libraries: Libraries) -> list[Mount]:
    """Each library once, at the path it has below the root."""
    return [
        file_mount(root, library.source, root.in_container(library.folder / library.name))
        for library in libraries.files
    ]


def link_mounts(root: DriverRoot, libraries: Libraries) -> list[Mount]:
    """Each further name of each library, beside it and in the folders a loader searches by default."""
    mounts = [
        file_mount(root, library.source, root.in_container(library.folder / name))
        for library in libraries.files
        for name in library.links
    ]
    mounts += [file_mount(root, link.source, root.in_container(link.path)) for link in libraries.links]
    for folder in loader_folders(libraries.machine):
        for library in libraries.files:
            if library.loader_name is None or root.in_container(library.folder) == folder:
                continue
            names = dict.fromkeys((library.loader_name, *library.links))
            mounts += [file_mount(root, library.source, f"{folder}/{name}") for name in names]
    return mounts


def distinct_targets(mounts: Iterable[Mount]) -> tuple[Mount, ...]:
    """The mounts without a later one of a path that is taken already."""
    by_path: dict[str, Mount] = {}
    for mount in mounts:
        by_path.setdefault(mount.container_path, mount)
    return tuple(by_path.values())


def _library_hooks(
    root: DriverRoot, libraries: Libraries, driver_version: str, tool: HookTool
) -> tuple[Hook, ...]:
    links = [
        (_link_target(library.name, library.loader_name, name), root.in_container(library.folder / name))
        for library in libraries.files
        for name in library.links
    ]
    links += [(link.target, root.in_container(link.path)) for link in libraries.links]
    folders = dict.fromkeys(
        root.in_container(library.folder) for library in libraries.files if library.loader_name is not None
    )
    return (
        tool.create_symlinks(links),
        tool.enable_cuda_compat(driver_version),
        tool.update_ldcache(folders),
        tool.disable_device_node_modification(),
    )


def _link_target(file_name: str, loader_name: str | None, name: str) -> str:
    # libX.so leads to libX.so.1 and that to the file, as ldconfig and the driver's installer make them.
    if loader_name is not None and name not in (loader_name, file_name) and name.endswith(".so"):
        return loader_name
    return file_name


def _warnings(missing_nodes: tuple[str, ...]) -> tuple[str, ...]:
    for path in missing_nodes:
        logger.debug("%s does not exist; containers do not get it", path)
    if "/dev/nvidia-uvm" not in missing_nodes:
        return ()
    return (
        "/dev/nvidia-uvm does not exist, so CUDA cannot start in containers: load the nvidia-uvm kernel "
        "module on the node and make its device node (`nvidia-modprobe -u -c=0`)",
    )
