"""The plugin, killed in its work: ``python -m tests.harness.steppedplugin ARM_FILE <its arguments>``.

Every write of a claim's journal and of its CDI spec, every change of MIG, and every run of nvidia-smi has two
steps: before and after it. Steps are counted from when ARM_FILE is written; it holds the number of the one at
which the process gets SIGKILL, and then parts of names, each on a line of its own, of which a step must have
one to be counted, if there are any. Then the file is removed and ``ARM_FILE.at`` tells what the step was. The
product knows nothing of this: SQLite, NVML, nvidia-smi and the file system are watched from outside.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from driver.nvml import Nvml
from kubeletplugin.nvidiasmi import NvidiaSmi

T = TypeVar("T")

_SPEC_FILE_PREFIX = "gpudra.io-claim_"
NVML_CHANGES = (
    "set_mig_mode",
    "create_gpu_instance",
    "create_compute_instance",
    "destroy_compute_instance",
    "destroy_gpu_instance",
)
SMI_CHANGES = ("set_interval",)
_WRITES = ("INSERT", "DELETE", "UPDATE")


class Steps:
    """Counts steps, in whatever thread they happen, and ends the process at the chosen one."""

    def __init__(self, arm: Path) -> None:
        self._arm = arm
        self._lock = threading.Lock()
        self._count = 0
        self._armed_at = 0

    def around(self, what: str, function: Callable[[], T]) -> T:
        self._step(f"before {what}")
        result = function()
        self._step(f"after {what}")
        return result

    def _step(self, what: str) -> None:
        with self._lock:
            try:
                armed_at = self._arm.stat().st_mtime_ns
                number, *parts = self._arm.read_text().splitlines()
            except FileNotFoundError:
                return
            if armed_at != self._armed_at:
                self._armed_at, self._count = armed_at, 0
            if parts and not any(part in what for part in parts):
                return
            self._count += 1
            if self._count == int(number):
                self._arm.with_name(f"{self._arm.name}.at").write_text(what)
                self._arm.unlink()
                os.kill(os.getpid(), signal.SIGKILL)


def watch(steps: Steps) -> None:
    """Put steps around the writes of SQLite and of CDI specs."""

    class Connection(sqlite3.Connection):
        _wrote = False

        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            word = sql.split(None, 1)[0].upper()
            execute = super().execute
            if word in _WRITES:
                self._wrote = True
            elif word != "COMMIT" or not self._wrote:
                return execute(sql, *parameters)
            else:
                self._wrote = False
            return steps.around(" ".join(sql.split()[:4]), lambda: execute(sql, *parameters))

    connect = sqlite3.connect

    def stepped_connect(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        return connect(*args, **kwargs, factory=Connection)

    rename, unlink = Path.rename, Path.unlink

    def stepped_rename(self: Path, target: Any) -> Path:
        if not self.name.startswith(_SPEC_FILE_PREFIX):
            return rename(self, target)
        return steps.around("rename of the CDI spec", lambda: rename(self, target))

    def stepped_unlink(self: Path, missing_ok: bool = False) -> None:
        if not self.name.startswith(_SPEC_FILE_PREFIX):
            return unlink(self, missing_ok)
        return steps.around("removal of the CDI spec", lambda: unlink(self, missing_ok))

    for name in NVML_CHANGES:
        setattr(Nvml, name, _stepped(steps, name, getattr(Nvml, name)))
    for name in SMI_CHANGES:
        setattr(NvidiaSmi, name, _stepped(steps, name, getattr(NvidiaSmi, name)))
    database: Any = sqlite3
    database.connect = stepped_connect
    path: Any = Path
    path.rename, path.unlink = stepped_rename, stepped_unlink


def _stepped(steps: Steps, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: steps.around(name, lambda: method(*arguments))


def main() -> int:
    watch(Steps(Path(sys.argv[1])))
    from kubeletplugin.cli import main as plugin

    return plugin(sys.argv[2:])


if __name__ == "__main__":
    raise SystemExit(main())
