"""The driver root: the folder below which the NVIDIA driver's userland (libraries, programs) lies.

It is ``/`` for a driver installed on the host, ``/run/nvidia/driver`` with the GPU operator's driver
container, ``/home/kubernetes/bin/nvidia`` on GKE, ``/`` or ``/usr/local`` on Talos, and ``/`` on WSL 2. The
plugin may see it under another path, as a mount in its own container.
"""

from __future__ import annotations

import errno
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from cdi.ldcache import library_paths

_TRIPLETS = ("x86_64-linux-gnu", "aarch64-linux-gnu")

LIBRARY_FOLDERS: tuple[str, ...] = (
    "usr/lib64",
    *(f"usr/lib/{triplet}" for triplet in _TRIPLETS),
    # Debian keeps the driver's files apart and lets its alternatives system link to them.
    *(f"usr/lib/{triplet}/nvidia/current" for triplet in _TRIPLETS),
    "lib64",
    *(f"lib/{triplet}" for triplet in _TRIPLETS),
    *(f"lib/{triplet}/nvidia/current" for triplet in _TRIPLETS),
    "usr/lib",
    "lib",
    "usr/local/lib64",
    "usr/local/lib",
    "usr/local/nvidia/lib64",
    # Talos, with the driver root / or /usr/local.
    "usr/local/glibc/usr/lib",
    "usr/local/glibc/lib",
    "usr/lib/glibc/lib64",
    "glibc/usr/lib",
    "glibc/lib",
    "usr/lib/wsl/lib",
)
"""Where libraries are searched below the driver root, in this order; then the folders of ``ld.so.cache``."""

PROGRAM_FOLDERS: tuple[str, ...] = (
    "usr/bin",
    "usr/sbin",
    "bin",
    "sbin",
    "usr/local/bin",
    "usr/local/sbin",
    "usr/local/nvidia/bin",
    "opt/bin",
    "usr/lib/wsl/lib",
)
"""Where programs are searched below the driver root, in this order."""

_LOADER_CACHE = "etc/ld.so.cache"
_MAXIMUM_LINKS = 40


class DriverRootError(Exception):
    """Something the driver must bring is not below the driver root; the message names every path tried."""


@dataclass(frozen=True, slots=True)
class DriverRoot:
    """``path`` is the driver root as this process sees it, ``host_path`` the same folder on the host.

    Nothing is remembered: the root may be mounted or filled at any time. Positions below the root are
    ``PurePosixPath`` without a leading slash. A symbolic link below the root means what it means to a process
    whose ``/`` is the root, so an absolute target starts at the root again.
    """

    path: Path
    host_path: str

    def find_library(self, name: str) -> Path:
        """The file that a loader below the root would take for this name (``libnvidia-ml.so.1``).

        Raises:
            DriverRootError: no such file; names every path tried.
        """
        return self.path / self._find(name, self.library_folders(), "The NVIDIA driver's library")

    def find_program(self, name: str) -> Path:
        """The file of a program of the driver (``nvidia-smi``).

        Raises:
            DriverRootError: no such file; names every path tried.
        """
        return self.path / self._find(name, self.program_folders(), "The NVIDIA driver's program")

    def library_folders(self) -> tuple[PurePosixPath, ...]:
        """Folders to search for libraries, those that do not exist too, each real folder once."""
        cached = library_paths(self._read(_LOADER_CACHE), prefixes=("libcuda.so", "libnvidia-ml.so"))
        return self._distinct(
            [
                *(PurePosixPath(folder) for folder in LIBRARY_FOLDERS),
                *(PurePosixPath(path.lstrip("/")).parent for path in cached),
            ]
        )

    def program_folders(self) -> tuple[PurePosixPath, ...]:
        """Folders to search for programs, those that do not exist too, each real folder once."""
        return self._distinct([PurePosixPath(folder) for folder in PROGRAM_FOLDERS])

    def resolve(self, position: PurePosixPath) -> PurePosixPath | None:
        """The position with all links followed below the root; None when it leads to nothing that exists."""
        pending = list(reversed(position.parts))
        resolved = PurePosixPath()
        links = 0
        while pending:
            part = pending.pop()
            if part in ("/", "."):
                continue
            if part == "..":
                resolved = resolved.parent
                continue
            candidate = resolved / part
            try:
                target = str((self.path / candidate).readlink())
            except OSError as error:
                if error.errno != errno.EINVAL:
                    return None
                resolved = candidate
                continue
            links += 1
            if links > _MAXIMUM_LINKS:
                return None
            if target.startswith("/"):
                target = self._without_host_path(target)
                resolved = PurePosixPath()
            pending.extend(reversed(PurePosixPath(target).parts))
        return resolved

    def resolve_file(self, position: PurePosixPath) -> PurePosixPath | None:
        """As :meth:`resolve`, None also when it is no regular file."""
        resolved = self.resolve(position)
        if resolved is None:
            return None
        try:
            mode = (self.path / resolved).stat(follow_symlinks=False).st_mode
        except OSError:
            return None
        return resolved if stat.S_ISREG(mode) else None

    def names(self, folder: PurePosixPath) -> list[str]:
        """Sorted names in one folder, empty when it does not exist."""
        resolved = self.resolve(folder)
        if resolved is None:
            return []
        try:
            return sorted(entry.name for entry in (self.path / resolved).iterdir())
        except OSError:
            return []

    def on_host(self, position: PurePosixPath) -> str:
        """The position as a path of the host."""
        return str(PurePosixPath(self.host_path) / position)

    def in_container(self, position: PurePosixPath) -> str:
        """The position as a path of a container, where the driver's files lie as if the root were ``/``."""
        return str(PurePosixPath("/") / position)

    def tried(self, name: str, folders: tuple[PurePosixPath, ...]) -> str:
        """The part of an error message that tells where was searched and what to do."""
        paths = ", ".join(str(self.path / folder / name) for folder in folders)
        seen_as = "" if str(self.path) == self.host_path else f" (on the host: {self.host_path})"
        return (
            f"Tried below the driver root {self.path}{seen_as}: {paths}. "
            "Install the NVIDIA driver on the node, or set the driver root to where it is installed."
        )

    def _find(self, name: str, folders: tuple[PurePosixPath, ...], what: str) -> PurePosixPath:
        for folder in folders:
            found = self.resolve_file(folder / name)
            if found is not None:
                return found
        raise DriverRootError(f"{what} {name} was not found. {self.tried(name, folders)}")

    def _without_host_path(self, target: str) -> str:
        # An installer in another container may have linked to the host's path of its own folder.
        prefix = self.host_path.rstrip("/") + "/"
        return "/" + target.removeprefix(prefix) if prefix != "/" else target

    def _distinct(self, folders: list[PurePosixPath]) -> tuple[PurePosixPath, ...]:
        by_real_folder: dict[PurePosixPath, PurePosixPath] = {}
        for folder in folders:
            by_real_folder.setdefault(self.resolve(folder) or folder, folder)
        return tuple(by_real_folder.values())

    def _read(self, position: str) -> bytes:
        resolved = self.resolve_file(PurePosixPath(position))
        if resolved is None:
            return b""
        try:
            return (self.path / resolved).read_bytes()
        except OSError:
            return b""
