"""One short folder for everything that a test cluster makes, and the processes that belong to it.

Every process started here carries the folder's path in its environment, so that whatever happened before,
`clear` finds what is left of a run (processes, containers in cgroups of ours, mounts, network links) and ends
it by process id. A watchdog process does the same when the owner dies without closing (kill -9, a crash).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

MARK = "GPU_DRA_TEST_WORKSPACE"
CGROUPS = Path("/sys/fs/cgroup")
KILL_SECONDS = 10.0


class WorkspaceError(Exception):
    """A process of the test cluster did not start or ended too early."""


class Process:
    """A running component; its output is in `log`."""

    def __init__(self, name: str, popen: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.log = log
        self.stopped = False
        self._popen = popen

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """The exit status, or None while it runs."""
        return self._popen.poll()

    def check_running(self) -> None:
        """Raises WorkspaceError, with the end of its log, when the process has ended."""
        if self.returncode is not None:
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
            raise WorkspaceError(f"{self.name} ended with status {self.returncode}; its last lines:\n{tail}")

    def signal(self, number: int) -> None:
        """Send a signal to the process alone."""
        self._popen.send_signal(number)

    def stop(self, timeout: float = KILL_SECONDS) -> int:
        """SIGTERM, then SIGKILL after `timeout` seconds; returns the exit status."""
        self.stopped = True
        if self.returncode is None:
            self._popen.terminate()
        try:
            return self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            return self._popen.wait(timeout)

    def kill(self) -> int:
        """SIGKILL; returns the exit status (-9)."""
        self.stopped = True
        self._popen.kill()
        return self._popen.wait(KILL_SECONDS)

    def wait(self, timeout: float) -> int:
        """Wait until it ends by itself; raises subprocess.TimeoutExpired."""
        return self._popen.wait(timeout)


class Workspace:
    """A context manager that owns the folder `path` and all that runs in it."""

    def __init__(self) -> None:
        # Unix socket paths hold 107 bytes, and the kubelet's are the deepest: no long TMPDIR here.
        self.path = Path(tempfile.mkdtemp(prefix="gd-", dir="/tmp"))
        self.logs = self.path / "logs"
        self.logs.mkdir()
        self._processes: list[Process] = []
        self._watchdog: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        # Not marked as one of ours, or `clear` would end it; its standard input closes when we die.
        self._watchdog = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.workspace", str(self.path)],
            stdin=subprocess.PIPE,
            cwd=Path(__file__).resolve().parents[2],
            start_new_session=True,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Nothing of it is needed any more, so no component gets the seconds of an orderly end.
        clear(self.path)
        for process in self._processes:
            process.wait(KILL_SECONDS)
        if self._watchdog is not None and self._watchdog.stdin is not None:
            self._watchdog.stdin.close()
            self._watchdog.wait(KILL_SECONDS)

    def folder(self, name: str) -> Path:
        """A folder below the workspace, made when missing."""
        path = self.path / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def write(self, name: str, content: str | bytes, mode: int = 0o644) -> Path:
        """Write a file below the workspace and return its path."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        path.chmod(mode)
        return path

    def start(
        self,
        name: str,
        command: Sequence[str | Path],
        environment: Mapping[str, str] | None = None,
        log: str | None = None,
    ) -> Process:
        """Start a process of this workspace; its output is added to `logs/<log or name>.log`.

        `environment` is added to our own. The process has a session of its own: Ctrl-C in a terminal
        reaches us alone, and we end it in order.
        """
        path = self.logs / f"{log or name}.log"
        with path.open("ab") as output:
            popen = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {}), MARK: str(self.path)},
                start_new_session=True,
            )
        process = Process(name, popen, path)
        self._processes = [known for known in self._processes if known.returncode is None]
        self._processes.append(process)
        return process

    def check_running(self) -> None:
        """Raises WorkspaceError when a process has ended that nobody stopped."""
        for process in self._processes:
            if not process.stopped:
                process.check_running()

    def keep_logs(self, destination: Path) -> None:
        """Copy the logs so far to a folder outside, replacing what was there."""
        shutil.rmtree(destination, ignore_errors=True)
        shutil.copytree(self.logs, destination)


def record(workspace: Path, kind: str, names: Iterable[str]) -> None:
    """Note things outside the folder that `clear` has to remove: kind `cgroups` or `links`.

    Write them down before making them.
    """
    (workspace / f"outside-{kind}.json").write_text(json.dumps(list(names)))


def _recorded(workspace: Path, kind: str) -> list[str]:
    try:
        names = json.loads((workspace / f"outside-{kind}.json").read_text())
    except (OSError, ValueError):
        return []
    return [str(name) for name in names]


def marked_processes(workspace: Path) -> list[int]:
    """Process ids of everything started by or below a workspace, containers excepted."""
    mark = f"{MARK}={workspace}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        # A process may end while we look, or belong to somebody else.
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def _cgroup_folders(names: Iterable[str]) -> list[Path]:
    """The folders of our cgroups, deepest first, in every hierarchy (version 1 has one per controller)."""
    roots = [
        folder
        for name in names
        for folder in (CGROUPS / name, *(hierarchy / name for hierarchy in CGROUPS.glob("*/")))
        if folder.is_dir()
    ]
    return [
        Path(path)
        for root in roots
        for path, _, _ in os.walk(root, topdown=False, onerror=lambda error: None)
    ]


def _cgroup_processes(folders: Iterable[Path]) -> list[int]:
    found: set[int] = set()
    for folder in folders:
        with contextlib.suppress(OSError):
            found.update(int(line) for line in (folder / "cgroup.procs").read_text().split())
    return sorted(found)


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def mounts_below(folder: Path, mountinfo: str) -> list[str]:
    """Mount points below a folder, deepest and latest first, out of the text of `/proc/self/mountinfo`."""
    points = [line.split()[4].replace("\\040", " ") for line in mountinfo.splitlines()]
    return [point for point in reversed(points) if Path(point).is_relative_to(folder)]


def clear(workspace: Path) -> None:
    """End and remove everything that belongs to a workspace, and then its folder. Safe to repeat."""
    cgroups = _recorded(workspace, "cgroups")
    deadline = time.monotonic() + KILL_SECONDS
    while time.monotonic() < deadline:
        left = [*marked_processes(workspace), *_cgroup_processes(_cgroup_folders(cgroups))]
        left = [pid for pid in left if not _is_zombie(pid)]
        if not left:
            break
        _kill(left)
        time.sleep(0.05)
    for point in mounts_below(workspace, Path("/proc/self/mountinfo").read_text()):
        subprocess.run(["umount", "--lazy", point], check=False, timeout=30, capture_output=True)
    for link in _recorded(workspace, "links"):
        if Path("/sys/class/net", link).exists():
            subprocess.run(["ip", "link", "delete", link], check=False, timeout=30, capture_output=True)
    while (folders := _cgroup_folders(cgroups)) and time.monotonic() < deadline:
        for folder in folders:
            with contextlib.suppress(OSError):
                folder.rmdir()
        time.sleep(0.02)
    _remove_log_links(workspace)
    for result in Path("/var/lib/cni/results").glob(f"{workspace.name}-*"):
        result.unlink(missing_ok=True)
    shutil.rmtree(workspace, ignore_errors=True)


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def _remove_log_links(workspace: Path) -> None:
    """The kubelet keeps a link to each container's log in a folder that can't be moved."""
    for link in Path("/var/log/containers").glob("*.log"):
        with contextlib.suppress(OSError):
            if link.readlink().is_relative_to(workspace):
                link.unlink()


def _watch(workspace: Path) -> None:
    """Wait until the owner closes our standard input or dies, then clear up what it left."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.stdin.buffer.read()
    if workspace.exists():
        clear(workspace)


if __name__ == "__main__":
    _watch(Path(sys.argv[1]))
