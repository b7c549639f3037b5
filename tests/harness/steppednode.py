"""A node whose plugin is killed at a chosen step of its work."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc

from tests.harness.plugin import PluginNode

MOST_STEPS = 40


class Stepped:
    """A node whose plugin dies at a chosen step of the next call.

    Only steps that have one of ``words`` are counted, if there are any.
    """

    def __init__(self, node: PluginNode, *words: str) -> None:
        self.node = node
        self._words = words
        self._arm = node.folder / "arm"
        node.program = (sys.executable, "-m", "tests.harness.steppedplugin", str(self._arm))
        node.flags.update({"cleanup-seconds": "0.2", "claim-grace-seconds": "0.2"})

    def dies_in(self, step: int, call: Callable[[], object]) -> str:
        """Make ``call``; the process dies at ``step``. Returns the step's name, empty if there is none."""
        at = Path(f"{self._arm}.at")
        at.unlink(missing_ok=True)
        self._arm.write_text(" ".join([str(step), *self._words]))
        try:
            call()
        except grpc.RpcError:
            assert self.node.process is not None
            assert self.node.process.wait(10) == -9
            self.node.close_kubelet()
            return at.read_text()
        self._arm.unlink()
        return ""

    def crashes(self, call: Callable[[], object]) -> Iterator[str]:
        """Kill the running plugin once at each step of ``call``, and start it anew each time."""
        for step in range(1, MOST_STEPS):
            name = self.dies_in(step, call)
            if not name:
                return
            self.node.start()
            age_temporary_files(self.node)
            yield name
        raise AssertionError(f"there are more than {MOST_STEPS} steps")


def age_temporary_files(node: PluginNode) -> None:
    """Let a minute and a half pass for the files of a killed writer: younger ones may have a writer."""
    for path in node.cdi_root.glob("*.tmp"):
        os.utime(path, times=(time.time() - 90, time.time() - 90))
