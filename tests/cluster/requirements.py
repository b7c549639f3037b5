"""What this machine lacks for a control plane or for a whole cluster, in words for a person."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.cluster.components import CONTAINERD, ETCD, KUBERNETES, ComponentError, Module, find_go, is_built
from tests.cluster.images import find_busybox

NETWORK_PLUGIN_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
SYSTEM_PACKAGES = Path(__file__).with_name("system-packages.txt")


def network_plugins() -> Path | None:
    """The folder of the CNI plugins `bridge` and `host-local`."""
    for folder in NETWORK_PLUGIN_FOLDERS:
        if all((folder / name).exists() for name in ("bridge", "host-local")):
            return folder
    return None


def _components_missing(*modules: Module) -> list[str]:
    if all(is_built(module) for module in modules):
        return []
    try:
        find_go()
    except ComponentError as error:
        return [str(error)]
    return []


def control_plane_missing() -> list[str]:
    """Why no control plane can start here; empty when it can."""
    return _components_missing(ETCD, KUBERNETES)


def cluster_missing() -> list[str]:
    """Why no whole cluster can start here; empty when it can."""
    missing = _components_missing(ETCD, KUBERNETES, CONTAINERD)
    if os.geteuid() != 0:
        missing.append("root: a kubelet and containerd can't run pods without it")
    packages = []
    if shutil.which("runc") is None:
        packages.append("runc")
    if shutil.which("ip") is None:
        packages.append("iproute2")
    if network_plugins() is None:
        packages.append("containernetworking-plugins")
    if find_busybox() is None:
        packages.append("busybox-static")
    if packages:
        missing.append(
            f"the Debian packages {', '.join(packages)} (apt-get install $(cat {SYSTEM_PACKAGES.name}))"
        )
    return missing
