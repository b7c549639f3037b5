"""A node that runs real pods: containerd and a kubelet, with all their folders in the workspace."""

from __future__ import annotations

import ipaddress
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import urllib3
import yaml

from tests.cluster.api import Object, wait_until
from tests.cluster.components import ComponentError, binary
from tests.cluster.controlplane import ControlPlane, free_ports
from tests.cluster.images import BUSYBOX, busybox_layer, find_busybox, image_archive
from tests.cluster.requirements import network_plugins
from tests.cluster.workspace import CGROUPS, Process, WorkspaceError, record

START_SECONDS = 60.0
POD_NETWORKS = ipaddress.ip_network("10.128.0.0/9")


def pod_network(process_id: int, used: Sequence[str]) -> ipaddress.IPv4Network:
    """A /24 for pods, by process id so that two runs at a time get two; it holds no address of `used`."""
    addresses = [ipaddress.ip_address(address) for address in used]
    for index in itertools.count(process_id):
        first = int(POD_NETWORKS.network_address) + (index % 2**15) * 256
        network = ipaddress.IPv4Network((first, 24))
        if not any(address in network for address in addresses):
            return network
    raise AssertionError("itertools.count ended")


def _addresses_in_use() -> list[str]:
    answer = subprocess.run(
        ["ip", "-json", "-4", "address"], capture_output=True, text=True, timeout=10, check=True
    )
    return [entry["local"] for link in json.loads(answer.stdout) for entry in link["addr_info"]]


def parse_container_log(text: str) -> str:
    """What a container wrote, out of the kubelet's log format: `time stream F text`, P for part of a line."""
    written = []
    for line in text.splitlines():
        _, _, kind, content = [*line.split(" ", 3), "", "", ""][:4]
        written.append(content + ("\n" if kind == "F" else ""))
    return "".join(written)


class Node:
    """containerd and a kubelet that registers as `name`, from `start` until the workspace closes.

    `cdi_dir` is where containerd looks for CDI specs; `plugins_dir` and `plugins_registry` are where a DRA
    plugin puts its sockets. Images: `images.BUSYBOX` is there; `load_image` adds others. The Node's address
    is that of a bridge of our own, so `kubectl logs` and `exec` work. What this needs of the machine is named
    by `requirements.cluster_missing`.
    """

    def __init__(
        self,
        control_plane: ControlPlane,
        name: str = "gpu-node",
        kubelet_configuration: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.api = control_plane.api
        self.workspace = control_plane.workspace
        self.cdi_dir = self.workspace.folder("cdi")
        self.kubelet_root = self.workspace.folder("kubelet")
        self.plugins_dir = self.kubelet_root / "plugins"
        self.plugins_registry = self.kubelet_root / "plugins_registry"
        self.pod_logs = self.workspace.path / "pods"
        self.containerd_socket = self.workspace.path / "containerd.sock"
        self.containerd: Process | None = None
        self.kubelet: Process | None = None
        # One name for the link, the cgroup and the CNI network: whoever finds one knows the folder.
        self._label = self.workspace.path.name
        self._authority = control_plane.authority
        self._kubelet_configuration = dict(kubelet_configuration or {})
        self._kubeconfig = control_plane.client_kubeconfig(
            f"kubelet-{name}", f"system:node:{name}", ["system:nodes"]
        )
        self._kubelet_port, self._health_port = free_ports(2)
        self._exec_ids = itertools.count(1)

    def start(self) -> None:
        """Start both and wait until the Node is ready: about 6 seconds."""
        self._make_network()
        self._make_cgroup()
        self.start_containerd()
        busybox = find_busybox()
        if busybox is None:
            raise ComponentError("no static busybox here; install the package busybox-static")
        command = ["/bin/sleep", "infinity"]
        self.load_image(image_archive(BUSYBOX, busybox_layer(busybox), command))
        self.start_kubelet()

    def _make_network(self) -> None:
        network = pod_network(os.getpid(), _addresses_in_use())
        self.address = str(network.network_address + 1)
        record(self.workspace.path, "links", [self._label])
        for arguments in (
            ["link", "add", "name", self._label, "type", "bridge"],
            ["address", "add", f"{self.address}/{network.prefixlen}", "dev", self._label],
            ["link", "set", self._label, "up"],
        ):
            subprocess.run(["ip", *arguments], check=True, timeout=10, capture_output=True)
        configuration = {
            "cniVersion": "1.0.0",
            "name": self._label,
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": self._label,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": str(self.workspace.path / "addresses"),
                        "ranges": [[{"subnet": str(network), "gateway": self.address}]],
                    },
                }
            ],
        }
        self.workspace.write("cni/10-bridge.conflist", json.dumps(configuration))

    def _make_cgroup(self) -> None:
        record(self.workspace.path, "cgroups", [self._label])
        if (CGROUPS / "cgroup.controllers").exists():
            controllers = (CGROUPS / "cgroup.controllers").read_text().split()
            wanted = "".join(f"+{controller} " for controller in controllers)
            (CGROUPS / "cgroup.subtree_control").write_text(wanted)
            (CGROUPS / self._label).mkdir()
            (CGROUPS / self._label / "cgroup.subtree_control").write_text(wanted)
            return
        for hierarchy in CGROUPS.iterdir():
            if hierarchy.is_dir() and not hierarchy.is_symlink():
                (hierarchy / self._label).mkdir()

    def start_containerd(self) -> None:
        """Start containerd (also again, after it was stopped) and wait until it answers."""
        programs = binary("containerd").parent
        plugins = network_plugins()
        runc = shutil.which("runc")
        if plugins is None or runc is None:
            raise ComponentError("no runc or no CNI plugins here; see requirements.cluster_missing()")
        path = self.workspace.path
        configuration = f"""\
version = 4
root = '{path}/containerd'
state = '{path}/run'
temp = '{path}/containerd-tmp'
# These reach for folders and sockets that all containerds of a machine share, or for devices that tests lack.
disabled_plugins = [
  'io.containerd.nri.v1.nri',
  'io.containerd.internal.v1.opt',
  'io.containerd.snapshotter.v1.blockfile',
  'io.containerd.snapshotter.v1.devmapper',
  'io.containerd.snapshotter.v1.erofs',
  'io.containerd.snapshotter.v1.zfs',
]

[plugins.'io.containerd.server.v1.grpc']
address = '{self.containerd_socket}'
[plugins.'io.containerd.server.v1.ttrpc']
address = '{self.containerd_socket}.ttrpc'
[plugins.'io.containerd.shim.v1.manager']
socket_dir = '{path}/s'
[plugins.'io.containerd.metadata.v1.bolt']
no_sync = true

[plugins.'io.containerd.cri.v1.images']
snapshotter = '{_snapshotter(path)}'
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = '{BUSYBOX}'

[plugins.'io.containerd.cri.v1.runtime']
enable_cdi = true
cdi_spec_dirs = ['{self.cdi_dir}']
netns_mounts_under_state_dir = true
# Without CAP_SYS_RESOURCE no container may have a lower score than ours.
restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ['{plugins}']
conf_dir = '{path}/cni'
use_internal_loopback = true
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = '{runc}'
Root = '{path}/runc'
SystemdCgroup = false
"""
        containerd = self.workspace.start(
            "containerd",
            [
                programs / "containerd",
                "--config",
                self.workspace.write("containerd.toml", configuration),
            ],
            {"PATH": f"{programs}:{os.environ['PATH']}"},
        )
        self.containerd = containerd

        def answers() -> bool:
            containerd.check_running()
            return self._ctr("version").returncode == 0

        wait_until(answers, "containerd to answer", START_SECONDS)

    def _ctr(self, *arguments: str | Path, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                str(binary("ctr")),
                "--address",
                str(self.containerd_socket),
                "--namespace",
                "k8s.io",
                *(str(argument) for argument in arguments),
            ],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )

    def load_image(self, archive: bytes | Path) -> None:
        """Import an image from the tar of an OCI or Docker archive, under the name it has in there."""
        path = self.workspace.write("image.tar", archive) if isinstance(archive, bytes) else archive
        result = self._ctr("images", "import", "--local", path, timeout=300.0)
        if result.returncode != 0:
            raise WorkspaceError(f"containerd does not take the image {path}: {result.stderr.strip()}")

    def start_kubelet(self) -> None:
        """Start the kubelet (also again, after `stop_kubelet`) and wait until it says the Node is ready."""
        configuration = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.address,
            "port": self._kubelet_port,
            "healthzBindAddress": "127.0.0.1",
            "healthzPort": self._health_port,
            "authentication": {
                "x509": {"clientCAFile": str(self._authority)},
                "anonymous": {"enabled": False},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self._label}",
            "failCgroupV1": False,
            "containerRuntimeEndpoint": f"unix://{self.containerd_socket}",
            "enforceNodeAllocatable": [],
            "evictionHard": {"memory.available": "10Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "failSwapOn": False,
            "imageGCHighThresholdPercent": 100,
            "makeIPTablesUtilChains": False,
            "podLogsDir": str(self.pod_logs),
            # Only then is a failed Prepare tried again; by default after 60 to 90 seconds.
            "syncFrequency": "3s",
            "volumePluginDir": str(self.workspace.path / "volume-plugins"),
            **self._kubelet_configuration,
        }
        kubelet = self.workspace.start(
            "kubelet",
            [
                binary("kubelet"),
                f"--config={self.workspace.write('kubelet.yaml', yaml.safe_dump(configuration))}",
                f"--kubeconfig={self._kubeconfig}",
                f"--root-dir={self.kubelet_root}",
                f"--cert-dir={self.kubelet_root / 'pki'}",
                f"--hostname-override={self.name}",
                f"--node-ip={self.address}",
            ],
        )
        self.kubelet = kubelet

        def ready() -> bool:
            kubelet.check_running()
            # The Node may still say so from a kubelet before this one.
            if not _answers_ok(f"http://127.0.0.1:{self._health_port}/healthz"):
                return False
            node = self.api.find("v1", "Node", self.name)
            return node is not None and _ready_condition(node).get("status") == "True"

        wait_until(ready, f"the Node {self.name} to be ready", START_SECONDS)

    def stop_kubelet(self) -> None:
        """End the kubelet; containers go on running."""
        if self.kubelet is not None:
            self.kubelet.stop()

    def restart_kubelet(self) -> None:
        """End the kubelet and start it again on the same folders; returns when the Node is ready."""
        self.stop_kubelet()
        self.start_kubelet()

    def kill_containers(self) -> None:
        """End every container and pod sandbox at once, as a power cut does; the kubelet should be stopped."""
        for container in self._ctr("tasks", "list", "--quiet").stdout.split():
            self._ctr("tasks", "kill", "--signal", "SIGKILL", "--all", container)

    def container_logs(self, namespace: str, pod: str, container: str, uid: str = "*") -> str:
        """What the latest run of a container has written so far; empty when it never ran.

        ``uid`` is the pod's: the logs of one that is gone stay for a while, and the next may have its name.
        """
        files = self.pod_logs.glob(f"{namespace}_{pod}_{uid}/{container}/*.log")
        latest = max(files, key=lambda path: int(path.stem), default=None)
        return parse_container_log(latest.read_text(errors="replace")) if latest else ""

    def ctr_exec(
        self, namespace: str, pod: str, container: str, *command: str, timeout: float = 30.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a running container, with its environment; returns status, output and errors.

        Raises WorkspaceError when the container does not run.
        """
        container_id = self.container_id(namespace, pod, container)
        return self._ctr(
            "tasks",
            "exec",
            "--exec-id",
            f"test-{next(self._exec_ids)}",
            "--fifo-dir",
            self.workspace.folder("fifo"),
            container_id,
            *command,
            timeout=timeout,
        )

    def container_id(self, namespace: str, pod: str, container: str) -> str:
        """containerd's id of a running container. Raises WorkspaceError when it does not run."""
        status = self.api.get("v1", "Pod", pod, namespace).get("status", {})
        every = [*status.get("containerStatuses", []), *status.get("initContainerStatuses", [])]
        for each in every:
            if each["name"] == container and "running" in each.get("state", {}):
                return str(each["containerID"]).removeprefix("containerd://")
        raise WorkspaceError(f"no running container {container} in pod {namespace}/{pod}: {every}")


def _ready_condition(node: Object) -> Object:
    for condition in node.get("status", {}).get("conditions", []):
        if condition["type"] == "Ready":
            return dict(condition)
    return {}


def _answers_ok(url: str) -> bool:
    try:
        return urllib3.request("GET", url, timeout=2.0, retries=False).status == 200
    except urllib3.exceptions.HTTPError:
        return False


def _snapshotter(folder: Path) -> str:
    """overlayfs can't lie on overlayfs, as it would when the tests themselves run in a container."""
    answer = subprocess.run(
        ["stat", "--file-system", "--format=%T", str(folder)],
        capture_output=True,
        text=True,
        timeout=10,
        check=True,
    )
    return "native" if answer.stdout.strip() == "overlayfs" else "overlayfs"
