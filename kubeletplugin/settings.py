"""Settings of the plugin: every flag is an environment variable too (``--node-name`` is ``NODE_NAME``)."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from driver.claim import DRIVER_NAME
from driver.gpuselection import GpuSelection, GpuSelectionError
from driver.migoffer import MigPolicy
from driver.nodepolicy import NodePolicy
from kube import flags
from kube.flags import Flag, Values
from kube.names import SUBDOMAIN_RULE, is_subdomain
from kubeletplugin.policyfile import PolicyFileError, read_policy


@dataclass(frozen=True, slots=True)
class Settings:
    """What one run of the plugin needs to know. Times are in seconds, paths are absolute.

    ``policy`` is what ``config``, ``exclude`` and ``mig`` said at the start.
    ``http_address`` is host and port, ``None`` for no server; an empty host means all addresses. Where
    ``dev_root`` is ``None``, see :meth:`dev_roots`.
    """

    node_name: str
    pod_uid: str
    kubeconfig: Path | None
    kubelet_registry_path: Path
    kubelet_plugins_path: Path
    cdi_root: Path
    driver_root: Path
    host_driver_root: str
    dev_root: Path | None
    host_dev_root: str
    proc_root: Path
    sys_root: Path
    hooks: str
    config: Path | None
    policy: NodePolicy
    http_address: tuple[str, int] | None
    rescan_seconds: float
    cleanup_seconds: float
    claim_grace_seconds: float
    nvml_timeout_seconds: float
    liveness_seconds: float
    delete_slices_on_exit: bool
    log_format: str
    log_level: str

    @property
    def data_path(self) -> Path:
        """Where the store, the locks and the DRA socket lie."""
        return self.kubelet_plugins_path / DRIVER_NAME

    @property
    def pool_name(self) -> str:
        return self.node_name

    def dev_roots(self) -> tuple[Path, str]:
        """The folder that holds ``dev``, as this process and as the host sees it.

        Looked up anew each time where it was not set, since the driver root may be filled after the start.
        """
        if self.dev_root is not None:
            return self.dev_root, self.host_dev_root or str(self.dev_root)
        if (self.driver_root / "dev" / "nvidiactl").exists():
            return self.driver_root, self.host_dev_root or self.host_driver_root
        return Path("/"), self.host_dev_root or "/"


_FLAGS = (
    Flag("node-name", "", "name of this node's Node object, also the pool's name (default: the host name)"),
    Flag("pod-uid", "", "UID of this plugin's pod; makes socket names unique, needed for rolling updates"),
    Flag("kubeconfig", "", "kubeconfig file (default: the pod's service account)"),
    Flag("kubelet-registry-path", "/var/lib/kubelet/plugins_registry", "folder the kubelet finds plugins in"),
    Flag("kubelet-plugins-path", "/var/lib/kubelet/plugins", "folder that holds this plugin's data folder"),
    Flag("cdi-root", "/var/run/cdi", "folder for CDI specs, one that the container runtime reads"),
    Flag("driver-root", "/", "where this process sees the NVIDIA driver's userland"),
    Flag("host-driver-root", "", "the host's path of the driver root (default: the driver root)"),
    Flag(
        "dev-root", "", "folder that holds dev/ (default: the driver root if it has a dev/nvidiactl, else /)"
    ),
    Flag("host-dev-root", "", "the host's path of the dev root (default: the dev root)"),
    Flag("proc-root", "/proc", "the host's /proc"),
    Flag("sys-root", "/sys", "the host's /sys"),
    Flag("hooks", "auto", "CDI hooks: auto, none, or the host's path of nvidia-cdi-hook or nvidia-ctk"),
    Flag("exclude", "", "GPUs to leave alone: UUIDs, PCI addresses, indexes, product name regexes, by comma"),
    Flag(
        "mig",
        "dynamic",
        "dynamic: MIG instances are made for claims, where API server and GPU allow it; static: those that "
        "an administrator made are offered; off: whole GPUs only",
    ),
    Flag(
        "config",
        "",
        "YAML file with a NodePolicy: for single GPUs other values of exclude and mig, and shares and MIG "
        "layouts; read again when it changes",
    ),
    Flag("http-address", ":8080", "where /metrics, /healthz and /readyz are served; none or empty: nowhere"),
    Flag("rescan-seconds", "10", "how often the hardware is read anew"),
    Flag("cleanup-seconds", "600", "how often claims that the kubelet forgot are looked for"),
    Flag(
        "claim-grace-seconds",
        "120",
        "how long a claim must be gone before it is unprepared without the kubelet",
    ),
    Flag("nvml-timeout-seconds", "20", "how long a hardware call may take before its claim gets an error"),
    Flag("liveness-seconds", "120", "how long a hardware call may hang before /healthz fails"),
    Flag("delete-slices-on-exit", "false", "true: remove this node's ResourceSlices at the end"),
    Flag("log-format", "text", "text or json"),
    Flag("log-level", "", "debug, info, warning or error (default: info for the service, else warning)"),
)


def add_arguments(
    parser: argparse.ArgumentParser,
    environment: Mapping[str, str] = os.environ,
    *,
    suppress_defaults: bool = False,
) -> None:
    """Add a flag for each setting; its default comes from the environment.

    With ``suppress_defaults`` a flag that is not given sets nothing: for sub-commands that repeat the flags.
    """
    flags.add_flags(parser, _FLAGS, environment, suppress_defaults=suppress_defaults)


def read(arguments: argparse.Namespace) -> Settings:
    """Turn parsed flags into settings.

    Raises:
        ValueError: names the flag, its value and what is allowed.
    """
    values = flags.values(arguments, _FLAGS)
    driver_root = _path(values, "driver-root")
    return Settings(
        node_name=_node_name(values["node-name"]),
        pod_uid=_pod_uid(values["pod-uid"]),
        kubeconfig=flags.optional_path(values, "kubeconfig"),
        kubelet_registry_path=_path(values, "kubelet-registry-path"),
        kubelet_plugins_path=_path(values, "kubelet-plugins-path"),
        cdi_root=_path(values, "cdi-root"),
        driver_root=driver_root,
        host_driver_root=_host_path(values, "host-driver-root") or str(driver_root),
        dev_root=flags.optional_path(values, "dev-root"),
        host_dev_root=_host_path(values, "host-dev-root"),
        proc_root=_path(values, "proc-root"),
        sys_root=_path(values, "sys-root"),
        hooks=_hooks(values["hooks"]),
        config=flags.optional_path(values, "config"),
        policy=_policy(values),
        http_address=flags.address(values, "http-address"),
        rescan_seconds=flags.seconds(values, "rescan-seconds"),
        cleanup_seconds=flags.seconds(values, "cleanup-seconds"),
        claim_grace_seconds=flags.seconds(values, "claim-grace-seconds"),
        nvml_timeout_seconds=flags.seconds(values, "nvml-timeout-seconds"),
        liveness_seconds=flags.seconds(values, "liveness-seconds"),
        delete_slices_on_exit=flags.one_of(values, "delete-slices-on-exit", ("true", "false")) == "true",
        log_format=flags.one_of(values, "log-format", flags.LOG_FORMATS),
        log_level=flags.one_of(values, "log-level", flags.LOG_LEVELS, or_empty=True),
    )


def _node_name(value: str) -> str:
    name = value or socket.gethostname().lower()
    if is_subdomain(name):
        return name
    if value:
        raise ValueError(f"--node-name: {value!r} cannot be the name of a Node: {SUBDOMAIN_RULE}")
    raise ValueError(
        f"--node-name: the host name {name!r} cannot be the name of a Node: {SUBDOMAIN_RULE}; "
        "set --node-name to the Node's name"
    )


def _pod_uid(value: str) -> str:
    if value and not is_subdomain(value):
        raise ValueError(
            f"--pod-uid: {value!r} cannot be the UID of a pod: {SUBDOMAIN_RULE}; set it to "
            "metadata.uid of the plugin's pod"
        )
    return value


def _path(values: Values, name: str) -> Path:
    if not values[name]:
        raise ValueError(f"--{name}: it is empty; give the path of a folder")
    return Path(values[name]).absolute()


def _host_path(values: Values, name: str) -> str:
    """A path that is looked up by others, so nothing here tells what a relative one would mean."""
    if values[name] and not values[name].startswith("/"):
        raise ValueError(f"--{name}: {values[name]!r} is not an absolute path, one that begins with '/'")
    return values[name]


def _hooks(value: str) -> str:
    if value not in ("auto", "none") and not value.startswith("/"):
        raise ValueError(
            f"--hooks: {value!r} is not one of auto, none, or the absolute path of nvidia-cdi-hook or "
            "nvidia-ctk"
        )
    return value


def _policy(values: Values) -> NodePolicy:
    mig = MigPolicy(flags.one_of(values, "mig", tuple(MigPolicy)))
    defaults = NodePolicy(_excluded(values["exclude"]), mig)
    if not values["config"]:
        return defaults
    try:
        return read_policy(Path(values["config"]).absolute(), defaults)
    except PolicyFileError as error:
        raise ValueError(f"--config: {error}") from None


def _excluded(value: str) -> GpuSelection:
    try:
        return GpuSelection.parse(part.strip() for part in value.split(",") if part.strip())
    except GpuSelectionError as error:
        raise ValueError(f"--exclude: {error}") from None
