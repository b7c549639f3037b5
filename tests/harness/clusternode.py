"""The real plugin process on the node of a real cluster, with simulated GPUs that its containers see."""

from __future__ import annotations

import itertools
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from nvmlsim.gpus import SimulatedGpu
from nvmlsim.node import SimulatedNode
from tests.cluster.api import Api, documents, wait_until
from tests.cluster.cluster import Cluster
from tests.cluster.components import REPOSITORY
from tests.cluster.workspace import Process
from tests.harness.plugin import PluginNode, free_address, get

EXAMPLES = REPOSITORY / "examples"
NAMESPACE, SERVICE_ACCOUNT = "gpu-dra-driver", "gpu-kubelet-plugin"

_CONTROL_NODES = ("nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools", "nvidiactl")
_numbers = itertools.count()


@dataclass
class ClusterGpuNode(PluginNode):
    """The cluster's node; its folders are those of the kubelet and of containerd."""

    cluster: Cluster = field(kw_only=True)

    @property
    def cdi_root(self) -> Path:
        return self.cluster.node.cdi_dir

    @property
    def plugins(self) -> Path:
        return self.cluster.node.plugins_dir

    @property
    def registry(self) -> Path:
        return self.cluster.node.plugins_registry

    def start_ready(self, timeout: float = 20.0, **flags: str) -> Process:
        """Start a plugin; returns when the kubelet has registered it and its slices are in the API server."""
        address = free_address()
        process = self.start(wait=False, environment=None, http_address=address, **flags)
        answer = ["no answer yet"]

        def ready() -> bool:
            process.check_running()
            try:
                status, answer[0] = get(f"http://{address}/readyz")
            except (urllib.error.URLError, ConnectionError):
                return False
            return status == 200

        try:
            wait_until(ready, "the plugin to be ready", timeout)
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {answer[0]}\n{self.log()[-3000:]}") from None
        return process

    def container_nodes(self, *gpus: SimulatedGpu, mig_uuids: tuple[str, ...] = ()) -> list[str]:
        """What a container with exactly these devices has of the driver in ``/dev``, sorted.

        With ``mig_uuids`` the nodes of those MIG devices of ``gpus``, else whole GPUs.
        """
        minors = self.gpus.root / "proc/driver/nvidia-caps/mig-minors"
        capabilities = dict(line.rsplit(" ", 1) for line in minors.read_text().splitlines())
        names = {*_CONTROL_NODES, *(f"nvidia{gpu.minor}" for gpu in gpus)}
        for gpu in gpus:
            for gi in gpu.gpu_instances:
                for ci in gi.compute_instances:
                    if ci.uuid in mig_uuids:
                        base = f"gpu{gpu.minor}/gi{gi.id}"
                        names |= {
                            f"nvidia-caps/nvidia-cap{capabilities[path]}"
                            for path in (f"{base}/access", f"{base}/ci{ci.id}/access")
                        }
        return sorted(f"/dev/{name}" for name in names)

    def gpu(self, uuid: str) -> SimulatedGpu:
        """The GPU with this UUID, or with a MIG device of this UUID."""
        return next(gpu for gpu in self.gpus.gpus() if uuid in (gpu.uuid, *gpu.mig_uuids))


def deploy(api: Api) -> None:
    """Apply the example deployment and classes, but for the DaemonSet, in place of which a process runs."""
    classes = ("deviceclasses.yaml", "deviceclass-extended-resource.yaml", "deviceclass-shared.yaml")
    for name in ("deploy/node-plugin.yaml", *classes):
        kept = [item for item in documents((EXAMPLES / name).read_text()) if item["kind"] != "DaemonSet"]
        api.apply(yaml.safe_dump_all(kept))


def make_cluster_gpu_node(
    cluster: Cluster, machine: str | Path = "hgx-h100", **overrides: object
) -> ClusterGpuNode:
    """Simulated GPUs on the cluster's node; the plugin is not started yet. :func:`deploy` must have run."""
    folder = cluster.workspace.folder(f"gpus-{next(_numbers)}")
    name = cluster.node.name
    return ClusterGpuNode(
        control_plane=cluster.control_plane,
        folder=folder,
        gpus=SimulatedNode.create(folder / "driver", machine, **overrides),
        name=name,
        kubeconfig=cluster.control_plane.kubeconfig_for_service_account(NAMESPACE, SERVICE_ACCOUNT, name),
        cluster=cluster,
    )


@contextmanager
def cluster_gpu_node(
    cluster: Cluster, machine: str | Path = "hgx-h100", **overrides: object
) -> Iterator[ClusterGpuNode]:
    """The same for a while; a cluster has at most one such node at a time.

    At the end the plugin stops and its slices go.
    """
    node = make_cluster_gpu_node(cluster, machine, **overrides)
    try:
        yield node
    finally:
        node.close_kubelet()
        if node.process is not None and node.process.returncode is None:
            node.process.stop()
        for item in node.slices():
            cluster.api.delete("resource.k8s.io/v1", "ResourceSlice", item["metadata"]["name"])
