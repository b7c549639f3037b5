"""The driver's libraries below a driver root, and the names a loader asks for them by."""

from __future__ import annotations

import logging
import platform
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from cdi.driverroot import DriverRoot, DriverRootError
from cdi.elf import SharedObject, read_shared_object

logger = logging.getLogger(__name__)

# Libraries of the driver package with a version of their own, as NVIDIA's container toolkit lists them.
_OTHER_VERSIONS = (
    "libnvidia-nvvm70.so.*",
    "libnvidia-api.so.*",
    "libnvidia-egl-gbm.so.*",
    "libnvidia-egl-wayland*.so.*",
    "libnvidia-egl-xcb.so.*",
    "libnvidia-egl-xlib.so.*",
)
_PLUGIN_FOLDERS = ("vdpau",)
# Names that programs open although no DT_SONAME says so.
_ALIASES = {
    "libcuda.so": ("libcuda.so",),
    "libnvidia-opticalflow.so": ("libnvidia-opticalflow.so",),
    "libGLX_nvidia.so": ("libGLX_indirect.so.0",),
}
_GBM_BACKEND = PurePosixPath("gbm/nvidia-drm_gbm.so")
_CUDA = "libcuda.so"


@dataclass(frozen=True, slots=True)
class Library:
    """One library file: ``folder`` and ``name`` are where a container gets it, ``source`` where it really is.

    ``links`` are its further names in the same folder. ``loader_name`` is the name by which the loader asks
    for it, None for a plug-in that is opened by path.
    """

    folder: PurePosixPath
    name: str
    source: PurePosixPath
    links: tuple[str, ...]
    loader_name: str | None


@dataclass(frozen=True, slots=True)
class Link:
    """A name in another folder: ``path`` is the link, ``target`` what it says, ``source`` the real file."""

    path: PurePosixPath
    target: str
    source: PurePosixPath


@dataclass(frozen=True, slots=True)
class Libraries:
    """All libraries of one driver version; ``machine`` is that of libcuda, as in ``uname -m``."""

    files: tuple[Library, ...]
    links: tuple[Link, ...]
    machine: str


def find_libraries(root: DriverRoot, driver_version: str) -> Libraries:
    """The libraries of this driver version, sorted by folder and name.

    Raises:
        DriverRootError: libcuda of this version is absent; names every path tried, and other versions found.
    """
    folders = root.library_folders()
    files: list[Library] = []
    known: set[PurePosixPath] = set()
    machine = platform.machine()
    for folder in folders:
        for subfolder in ("", *_PLUGIN_FOLDERS):
            found = _libraries_in(root, folder / subfolder, driver_version, known, is_plugin=bool(subfolder))
            for library, shared_object in found:
                files.append(library)
                if library.name.startswith(_CUDA) and shared_object is not None and shared_object.machine:
                    machine = shared_object.machine
    if not any(library.name.startswith(_CUDA) for library in files):
        raise DriverRootError(_absent_cuda(root, driver_version, folders))
    return Libraries(
        files=tuple(sorted(files, key=lambda library: (library.folder, library.name))),
        links=tuple(_gbm_links(root, files)),
        machine=machine,
    )


def loader_folders(machine: str) -> tuple[str, ...]:
    """Folders that glibc searches after its cache, of both families of distributions."""
    return (f"/usr/lib/{machine}-linux-gnu", "/usr/lib64")


def _libraries_in(
    root: DriverRoot,
    folder: PurePosixPath,
    driver_version: str,
    known: set[PurePosixPath],
    *,
    is_plugin: bool,
) -> list[tuple[Library, SharedObject | None]]:
    names = root.names(folder)
    by_base: dict[str, list[str]] = {}
    for name in names:
        by_base.setdefault(_base(name), []).append(name)
    real_folder = root.resolve(folder)
    found: list[tuple[Library, SharedObject | None]] = []
    for name in names:
        if not _is_driver_library(name, driver_version):
            continue
        source = root.resolve_file(folder / name)
        if source is None or source in known:
            continue
        shared_object = _read(root, source)
        if shared_object is not None and shared_object.bits != 64:
            continue
        known.add(source)
        soname = None if shared_object is None else shared_object.soname
        file_name = source.name if source.parent == real_folder else name
        candidates = by_base[_base(name)]
        links = _links(root, folder, candidates, file_name, source, soname)
        loader_name = None if is_plugin else (soname or file_name)
        found.append((Library(folder, file_name, source, links, loader_name), shared_object))
    return found


def _is_driver_library(name: str, driver_version: str) -> bool:
    if name.startswith("lib") and name.endswith(f".so.{driver_version}"):
        return True
    return name.startswith("libnvidia-") and any(fnmatchcase(name, pattern) for pattern in _OTHER_VERSIONS)


def _read(root: DriverRoot, source: PurePosixPath) -> SharedObject | None:
    try:
        return read_shared_object(root.path / source)
    except OSError as error:
        logger.debug("cannot read the ELF header of %s: %s", root.path / source, error)
        return None


def _links(
    root: DriverRoot,
    folder: PurePosixPath,
    candidates: list[str],
    file_name: str,
    source: PurePosixPath,
    soname: str | None,
) -> tuple[str, ...]:
    links = {name for name in candidates if root.resolve_file(folder / name) == source}
    links.update(_ALIASES.get(_base(file_name), ()))
    if soname is not None:
        links.add(soname)
    return tuple(sorted(links - {file_name}))


def _base(name: str) -> str:
    stem, separator, _ = name.partition(".so")
    return stem + separator


def _gbm_links(root: DriverRoot, files: list[Library]) -> list[Link]:
    links = []
    for library in files:
        path = library.folder / _GBM_BACKEND
        if root.resolve_file(path) == library.source:
            links.append(Link(path, f"../{library.loader_name or library.name}", library.source))
    return links


def _absent_cuda(root: DriverRoot, driver_version: str, folders: tuple[PurePosixPath, ...]) -> str:
    name = f"{_CUDA}.{driver_version}"
    others = sorted(
        str(root.path / folder / other)
        for folder in folders
        for other in root.names(folder)
        if fnmatchcase(other, f"{_CUDA}.*.*") and root.resolve_file(folder / other) is not None
    )
    mismatch = (
        f" Other versions are there: {', '.join(others)}; the loaded kernel module is {driver_version}, so "
        "the node needs a reboot or a matching driver."
        if others
        else ""
    )
    return f"The NVIDIA driver's library {name} was not found.{mismatch} {root.tried(name, folders)}"
