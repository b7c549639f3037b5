"""The real plugin process on a simulated node, with the folders that a kubelet would give it."""

from __future__ import annotations

import itertools
import json
import sqlite3
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nvmlsim.node import SimulatedNode
from tests.cluster.api import Api, create_node, wait_until
from tests.cluster.controlplane import ControlPlane, free_ports
from tests.cluster.workspace import Process
from tests.harness.claims import DRIVER
from tests.harness.kubelet import Kubelet, wait_for_socket

START_SECONDS = 30.0

_numbers = itertools.count()


@dataclass
class PluginNode:
    """One node: its simulated GPUs, its folders, and at most a few plugin processes.

    ``folder`` is short, as socket paths are. ``flags`` are settings of each start, such as
    ``{"mig": "dynamic"}``: without it, nobody but a test makes MIG instances. ``program`` is what is started
    with them.
    """

    control_plane: ControlPlane
    folder: Path
    gpus: SimulatedNode
    name: str
    kubeconfig: Path
    flags: dict[str, str] = field(default_factory=dict)
    program: tuple[str, ...] = (sys.executable, "-m", "kubeletplugin.cli")
    process: Process | None = None
    _kubelet: Kubelet | None = None

    @property
    def api(self) -> Api:
        return self.control_plane.api

    @property
    def cdi_root(self) -> Path:
        return self.folder / "cdi"

    @property
    def plugins(self) -> Path:
        return self.folder / "plugins"

    @property
    def registry(self) -> Path:
        return self.folder / "reg"

    @property
    def data_path(self) -> Path:
        return self.plugins / DRIVER

    @property
    def store_path(self) -> Path:
        return self.data_path / "state.db"

    def command(self, *command: str, **flags: str) -> list[str]:
        """The command line of ``gpu-kubelet-plugin`` here; flags with ``_`` for ``-``."""
        settings = {
            "node-name": self.name,
            "kubeconfig": str(self.kubeconfig),
            "kubelet-registry-path": str(self.registry),
            "kubelet-plugins-path": str(self.plugins),
            "cdi-root": str(self.cdi_root),
            "http-address": "",
            "rescan-seconds": "0.5",
            "mig": "static",
            **self.flags,
            **{name.replace("_", "-"): value for name, value in flags.items()},
        }
        words = [word for name, value in settings.items() for word in (f"--{name}", value)]
        return [*self.program, *self.gpus.plugin_flags(), *words, *command]

    def start(
        self, *, wait: bool = True, environment: Mapping[str, str] | None = None, **flags: str
    ) -> Process:
        """Start the plugin; with ``wait``, until its registration socket answers. ``flags`` as settings."""
        self.registry.mkdir(parents=True, exist_ok=True)
        self.plugins.mkdir(parents=True, exist_ok=True)
        self.cdi_root.mkdir(parents=True, exist_ok=True)
        name = f"plugin-{self.name}-{next(_numbers)}"
        process = self.control_plane.workspace.start(name, self.command(**flags), environment)
        self.process = process
        if wait:
            path = self.sockets(flags.get("pod_uid", ""))[1]
            wait_for_socket(path, START_SECONDS, process.check_running)
        return process

    def stop(self) -> int:
        """SIGTERM; returns the exit status."""
        self.close_kubelet()
        assert self.process is not None
        return self.process.stop()

    def kill(self) -> None:
        """kill -9, as a crash."""
        self.close_kubelet()
        assert self.process is not None
        self.process.kill()

    def restart(self) -> Process:
        """Stop in order and start again with the same flags."""
        self.stop()
        return self.start()

    def sockets(self, pod_uid: str = "") -> tuple[Path, Path]:
        """The DRA and the registration socket."""
        if pod_uid:
            return self.data_path / f"dra-{pod_uid}.sock", self.registry / f"{DRIVER}-{pod_uid}-reg.sock"
        return self.data_path / "dra.sock", self.registry / f"{DRIVER}-reg.sock"

    def connect(self, pod_uid: str = "") -> Kubelet:
        """A kubelet's connection of its own."""
        return Kubelet(*self.sockets(pod_uid))

    @property
    def kubelet(self) -> Kubelet:
        """A connection to the plugin that was started last, kept until it is stopped."""
        if self._kubelet is None:
            self._kubelet = self.connect()
        return self._kubelet

    def close_kubelet(self) -> None:
        if self._kubelet is not None:
            self._kubelet.close()
            self._kubelet = None

    def log(self) -> str:
        """What the plugin that was started last has written."""
        assert self.process is not None
        return self.process.log.read_text(errors="replace")

    def wait_log(self, text: str, timeout: float = 10.0) -> None:
        try:
            wait_until(lambda: text in self.log(), f"{text!r} in the log", timeout)
        except TimeoutError as error:
            raise TimeoutError(f"{error}:\n{self.log()[-2000:]}") from None

    def slices(self) -> list[dict[str, Any]]:
        """This node's slices in the API server, by name."""
        selector = f"spec.nodeName={self.name},spec.driver={DRIVER}"
        found = self.api.list("resource.k8s.io/v1", "ResourceSlice", field_selector=selector)
        return sorted(found, key=lambda item: str(item["metadata"]["name"]))

    def published(self) -> dict[str, dict[str, Any]]:
        """The devices in complete slices of the newest generation, by name."""
        slices = self.slices()
        if not slices:
            return {}
        newest = max(item["spec"]["pool"]["generation"] for item in slices)
        current = [item["spec"] for item in slices if item["spec"]["pool"]["generation"] == newest]
        if len(current) != current[0]["pool"]["resourceSliceCount"]:
            return {}
        return {device["name"]: device for spec in current for device in spec.get("devices") or []}

    def wait_published(self, count: int, timeout: float = 15.0) -> dict[str, dict[str, Any]]:
        """Wait until exactly ``count`` devices are published; returns them by name."""

        def look() -> bool:
            return bool(self.slices()) and len(self.published()) == count

        wait_until(look, f"{count} devices of {self.name}, there are {sorted(self.published())}", timeout)
        return self.published()

    def claims_in_store(self) -> dict[str, str]:
        """UID → state of each claim in the store."""
        with sqlite3.connect(f"file:{self.store_path}?mode=ro", uri=True) as connection:
            rows = connection.execute("SELECT uid, state FROM claims").fetchall()
        connection.close()
        return dict(rows)

    def cdi_files(self) -> list[str]:
        return sorted(path.name for path in self.cdi_root.iterdir()) if self.cdi_root.exists() else []

    def cdi_spec(self, uid: str) -> dict[str, Any]:
        """The CDI spec of a claim. Raises FileNotFoundError."""
        spec: dict[str, Any] = json.loads((self.cdi_root / f"gpudra.io-claim_{uid}.json").read_text())
        return spec

    def device_nodes(self, uid: str) -> dict[str, list[str]]:
        """For each CDI device of a claim, the paths of its own device nodes."""
        return {
            device["name"].removeprefix(f"{uid}-"): [
                node["path"] for node in device["containerEdits"]["deviceNodes"]
            ]
            for device in self.cdi_spec(uid)["devices"]
        }


def get(url: str) -> tuple[int, str]:
    """An HTTP GET; status and text, also of an error."""
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def free_address() -> str:
    """HOST:PORT on the loopback address for ``--http-address``."""
    return f"127.0.0.1:{free_ports(1)[0]}"


@contextmanager
def plugin_node(
    control_plane: ControlPlane, machine: str | Path = "hgx-h100", **overrides: object
) -> Iterator[PluginNode]:
    """A new node with a Node object, simulated GPUs and folders; its plugins end with it."""
    name = f"node-{uuid.uuid4().hex[:8]}"
    folder = control_plane.workspace.folder(f"n{next(_numbers)}")
    gpus = SimulatedNode.create(folder / "gpu", machine, **overrides)
    create_node(control_plane.api, name)
    node = PluginNode(control_plane, folder, gpus, name, control_plane.kubeconfig)
    try:
        yield node
    finally:
        node.close_kubelet()
        if node.process is not None and node.process.returncode is None:
            node.process.stop()
        control_plane.api.delete("v1", "Node", name)
        for item in node.slices():
            control_plane.api.delete("resource.k8s.io/v1", "ResourceSlice", item["metadata"]["name"])
