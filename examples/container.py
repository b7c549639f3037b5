"""A stand-in for a container: a folder with what a CDI spec gives to one, entered by ``chroot``.

``python -m examples.container FOLDER PROGRAM ARGUMENT…`` runs a program in such a folder, if need be in a
user namespace. Status 125 means that the machine allows neither.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

CANNOT_ENTER = 125
"""Exit status when this user may not enter a folder here."""

_CLONE_NEWUSER = 0x10000000


def edits_for(spec: Mapping[str, Any], names: Sequence[str]) -> list[dict[str, Any]]:
    """The ``containerEdits`` of a CDI spec that apply to a container with the devices ``names``, in order."""
    devices = [device["containerEdits"] for device in spec["devices"] if device["name"] in names]
    return [spec.get("containerEdits", {}), *devices]


def entries(edits: Sequence[Mapping[str, Any]], field: str) -> list[Any]:
    """All entries of one field (``env``, ``deviceNodes``, ``mounts``) of several edits."""
    return [entry for edit in edits for entry in edit.get(field, [])]


def assemble(folder: Path, edits: Sequence[Mapping[str, Any]]) -> None:
    """Make ``folder`` hold the mounts and device nodes of ``edits``.

    A mounted file becomes a hard link, so ``folder`` must be on the file system of the mounts' sources. A
    device node becomes an empty file: the simulated driver only looks whether it is there.
    """
    for mount in entries(edits, "mounts"):
        for source, target in _files(Path(mount["hostPath"]), _inside(folder, mount["containerPath"])):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.hardlink_to(source)
    for node in entries(edits, "deviceNodes"):
        path = _inside(folder, node["path"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def _files(source: Path, target: Path) -> Iterator[tuple[Path, Path]]:
    if not source.is_dir():
        yield source.resolve(), target
        return
    for path in source.rglob("*"):
        if path.is_file():
            yield path, target / path.relative_to(source)


def _inside(folder: Path, path: str) -> Path:
    return folder / path.lstrip("/")


def _enter(folder: str) -> None:
    """Make ``folder`` the root of this process. Raises OSError when that is not allowed."""
    if os.geteuid() != 0:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_CLONE_NEWUSER) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    os.chroot(folder)
    os.chdir("/")


def main() -> NoReturn:
    """Become the program of the command line, in the folder."""
    _, folder, *command = sys.argv
    try:
        _enter(folder)
    except OSError as error:
        print(f"cannot enter {folder}: {error}", file=sys.stderr)
        sys.exit(CANNOT_ENTER)
    os.execve(command[0], command, {"PATH": "/usr/bin:/bin"})


if __name__ == "__main__":
    main()
