"""The folder of generated CDI specs, ``/var/run/cdi`` by default: atomic writes and sweeping.

Runtimes watch the folder and read a file the moment it appears, so a file is written under a name that
they ignore and then renamed. There is no ``fsync``: the folder is volatile by convention, and the claim's
durable record is what makes the file again.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import time
from collections.abc import Set
from pathlib import Path

_PREFIX = "gpudra.io-claim_"
_UID = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_CLAIM_UID = re.compile(_UID)
_SPEC_FILE = re.compile(re.escape(_PREFIX) + f"({_UID})" + r"\.json")
_TEMPORARY_FILE = re.compile(re.escape(_PREFIX) + r".*\.[0-9a-f]{16}\.tmp")

TEMPORARY_FILE_AGE_SECONDS = 60.0
"""A temporary file older than this has no writer any more: a write takes milliseconds."""

_ADVICE = {
    errno.EROFS: "mount it read-write into the plugin, or choose another folder with --cdi-root",
    errno.ENOSPC: "free space on its file system",
    errno.EDQUOT: "raise the disk quota of its file system",
    errno.EACCES: "run the plugin as root, or give it write access",
    errno.EPERM: "run the plugin as root, or give it write access",
    errno.ENOTDIR: "choose a folder with --cdi-root",
}


class SpecFolderError(OSError):
    """The CDI folder cannot be used; the message names the folder, the reason and what to do."""

    def __init__(self, folder: Path, action: str, error: OSError) -> None:
        reason = error.strerror or str(error)
        advice = _ADVICE.get(error.errno or 0, "check the folder and its file system")
        super().__init__(error.errno, f"CDI folder {folder}: cannot {action}: {reason}; {advice}")

    def __str__(self) -> str:
        return str(self.strerror)


class SpecFolder:
    """The specs of our claims in one folder; files of other names are never touched.

    Has no state but the path, so any thread and any process may use it at the same time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, claim_uid: str, content: bytes) -> None:
        """Write or replace the claim's file, mode 0644; ``content`` is that of :func:`cdi.spec.to_json`.

        Raises:
            SpecFolderError: the folder cannot be made or written; no partial file is left.
        """
        target = self._file(claim_uid)
        try:
            self._write_and_rename(target, content)
        except OSError as error:
            raise SpecFolderError(self.path, f"write {target.name}", error) from error

    def read(self, claim_uid: str) -> bytes | None:
        """The content of the claim's file, None when there is none.

        Raises:
            SpecFolderError: the file is there but cannot be read.
        """
        target = self._file(claim_uid)
        try:
            return target.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SpecFolderError(self.path, f"read {target.name}", error) from error

    def remove(self, claim_uid: str) -> None:
        """Remove the claim's file; it may be gone already.

        Raises:
            SpecFolderError: the file is there but cannot be removed.
        """
        self._unlink(self._file(claim_uid).name)

    def claim_uids(self) -> set[str]:
        """UIDs of the claims that have a file; empty when the folder does not exist.

        Raises:
            SpecFolderError: the folder cannot be listed.
        """
        return {match[1] for name in self._names() if (match := _SPEC_FILE.fullmatch(name))}

    def sweep(self, keep: Set[str], *, among: Set[str] | None = None) -> list[str]:
        """Remove our files of claims that are not in ``keep``, and abandoned temporary files of ours.

        While claims are being prepared, call :meth:`claim_uids` first, then read the store, and pass the
        former as ``among``: a claim that came between is then in neither and stays.

        Returns:
            Names of the removed files, sorted.

        Raises:
            SpecFolderError: the folder cannot be listed, or a file cannot be removed.
        """
        removed = []
        for name in sorted(self._names()):
            match = _SPEC_FILE.fullmatch(name)
            dead_claim = match and match[1] not in keep and (among is None or match[1] in among)
            if dead_claim or (_TEMPORARY_FILE.fullmatch(name) and self._is_abandoned(name)):
                self._unlink(name)
                removed.append(name)
        return removed

    def check_writable(self) -> None:
        """Write and remove a temporary file, making the folder when it is missing.

        Raises:
            SpecFolderError: a claim's file could not be written now.
        """
        try:
            temporary = self._temporary_file("check", b"{}\n")
            temporary.unlink(missing_ok=True)
        except OSError as error:
            raise SpecFolderError(self.path, "write", error) from error

    def _file(self, claim_uid: str) -> Path:
        if not _CLAIM_UID.fullmatch(claim_uid):
            raise ValueError(
                f'claim UID "{claim_uid}" cannot be part of a file name; allowed: letters, digits, -, _ and .'
            )
        return self.path / f"{_PREFIX}{claim_uid}.json"

    def _write_and_rename(self, target: Path, content: bytes) -> None:
        temporary = self._temporary_file(target.stem.removeprefix(_PREFIX), content)
        try:
            temporary.rename(target)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise

    def _temporary_file(self, label: str, content: bytes) -> Path:
        temporary = self.path / f"{_PREFIX}{label}.{secrets.token_hex(8)}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            descriptor = os.open(temporary, flags, 0o644)
        except FileNotFoundError:
            self._make_folder()
            descriptor = os.open(temporary, flags, 0o644)
        try:
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                os.fchmod(descriptor, 0o644)
                view = memoryview(content)
                while view:
                    view = view[file.write(view) :]
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        return temporary

    def _make_folder(self) -> None:
        try:
            self.path.mkdir(parents=True)
        except FileExistsError:
            return
        # The runtime may run under another user than the plugin, whatever the plugin's umask is.
        self.path.chmod(0o755)

    def _names(self) -> list[str]:
        try:
            with os.scandir(self.path) as entries:
                return [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise SpecFolderError(self.path, "list", error) from error

    def _unlink(self, name: str) -> None:
        path = self.path / name
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            # A read-only file system refuses before it looks whether there is anything to remove.
            if os.path.lexists(path):
                raise SpecFolderError(self.path, f"remove {name}", error) from error

    def _is_abandoned(self, name: str) -> bool:
        try:
            modified = (self.path / name).stat(follow_symlinks=False).st_mtime
        except FileNotFoundError:
            return False
        return time.time() - modified > TEMPORARY_FILE_AGE_SECONDS
