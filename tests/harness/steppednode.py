"""A node whose plugin is killed at a chosen step of its work."""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from collections.abc import Callable, Collection, Iterator

import grpc

from tests.cluster.api import wait_until
from tests.harness.claims import Claim
from tests.harness.plugin import START_SECONDS, PluginNode

MOST_STEPS = 40


class Stepped:
    """A node whose plugin dies at a chosen step of the next call, or of its next start.

    Only steps whose names have one of ``parts`` are counted by :meth:`crashes`, if there are any.
    """

    def __init__(self, node: PluginNode, *parts: str) -> None:
        self.node = node
        self._parts = parts
        self._arm = node.folder / "arm"
        self._at = node.folder / "arm.at"
        node.program = (sys.executable, "-m", "tests.harness.steppedplugin", str(self._arm))
        node.flags.update({"cleanup-seconds": "0.2", "claim-grace-seconds": "0.2"})

    def crashes(self, call: Callable[[], object]) -> Iterator[str]:
        """Kill the running plugin once at each step of ``call``, and start it anew each time."""
        for step in range(1, MOST_STEPS):
            name = self._dies_in(call, step, *self._parts)
            if not name:
                return
            self.start()
            yield name
        raise AssertionError(f"there are more than {MOST_STEPS} steps")

    def crashes_at(self, names: Collection[str], call: Callable[[], object]) -> Iterator[str]:
        """The same at the first step of each of these names.

        What the plugin writes by itself meanwhile, at any time, is a step too: then one of the call's has
        another number than in the call before, and :meth:`crashes` passes it over.
        """
        for name in sorted(names):
            self.dies_at(name, call)
            self.start()
            yield name

    def dies_at(self, name: str, call: Callable[[], object]) -> None:
        """Kill the running plugin at the first step of ``call`` that has this name."""
        died_at = self._dies_in(call, 1, name)
        assert died_at == name, f"died at {died_at!r}, not at {name!r}:\n{self.node.log()[-3000:]}"

    def dies_starting(self, name: str) -> None:
        """Start a plugin, and kill it at the first step of this name in what it does by itself."""
        self._set(1, name)
        process = self.node.start(wait=False)
        assert process.wait(START_SECONDS) == -9
        assert self._at.read_text() == name

    def start(self) -> None:
        """Start a plugin that lives, a minute and a half later for the files of a killed writer: younger ones
        may have a writer."""
        for path in self.node.cdi_root.glob("*.tmp"):
            os.utime(path, times=(time.time() - 90, time.time() - 90))
        self.node.start()

    def _dies_in(self, call: Callable[[], object], step: int, *parts: str) -> str:
        """The name of the step at which the process died in ``call``, empty if it did not."""
        self._set(step, *parts)
        try:
            call()
        except grpc.RpcError:
            assert self.node.process is not None
            assert self.node.process.wait(10) == -9
            self.node.close_kubelet()
            return self._at.read_text()
        self._arm.unlink()
        return ""

    def _set(self, step: int, *parts: str) -> None:
        self._at.unlink(missing_ok=True)
        self._arm.write_text("\n".join([str(step), *parts]))


def partitioning(node: PluginNode, *parts: str) -> Stepped:
    """A running plugin that makes partitions, on a node that has published them; ``parts`` as in Stepped."""
    stepped = Stepped(node, *parts)
    node.flags["mig"] = "dynamic"
    node.start()
    wait_until(node.published, "devices", 30)
    return stepped


def wait_holds(node: PluginNode, claims: list[Claim], when: str, instances: int = 0) -> None:
    """Wait until exactly ``claims`` are in the store and have a CDI file, and no other file is there.

    There must be as many GPU instances on the node, each with one compute instance.
    """
    uids = sorted(claim.uid for claim in claims)
    wanted = (uids, uids, [1] * instances)

    def found() -> tuple[list[str], list[str], list[int]]:
        files = [name.removeprefix("gpudra.io-claim_").removesuffix(".json") for name in node.cdi_files()]
        inside = [len(one.compute_instances) for gpu in node.gpus.gpus() for one in gpu.gpu_instances]
        return sorted(node.claims_in_store()), files, inside

    wait_until(lambda: found() == wanted, f"only {wanted} to be left {when}: {found()}", 10)


def modes_noted(node: PluginNode) -> list[int]:
    """The GPUs whose MIG mode is noted as ours."""
    with sqlite3.connect(f"file:{node.store_path}?mode=ro", uri=True) as connection:
        keys = {key for (key,) in connection.execute("SELECT key FROM meta WHERE key LIKE 'mig-on/%'")}
    connection.close()
    return [gpu.gpu for gpu in node.gpus.gpus() if f"mig-on/{gpu.uuid}" in keys]
