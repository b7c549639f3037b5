"""etcd and the API server, with the scheduler and the controller manager where a test needs them."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import urllib3
import yaml

from tests.cluster.api import Api, ApiError, wait_until
from tests.cluster.certificates import Authority, KeyPair, service_account_keys
from tests.cluster.components import binary
from tests.cluster.workspace import Process, Workspace

ISSUER = "https://kubernetes.default.svc"
START_SECONDS = 60.0
SERVICE_RANGE = "10.0.0.0/24"
SERVER_NAMES = (
    "127.0.0.1",
    "10.0.0.1",
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
)


def free_ports(count: int) -> list[int]:
    """TCP ports on the loopback address that nobody listens on now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class ControlPlane:
    """A context manager: a running control plane below `workspace`, ready when entered, in about 3 seconds.

    `api_server_arguments` are added to the API server's command line (feature gates, `--runtime-config`).
    `api` talks to it as an administrator, and so does the kubeconfig `kubeconfig`.
    Raises ComponentError when a binary can't be built, WorkspaceError when a component ends too early.
    """

    def __init__(
        self,
        *,
        workspace: Workspace | None = None,
        scheduler: bool = False,
        controller_manager: bool = False,
        api_server_arguments: Sequence[str] = (),
    ) -> None:
        self._stack = ExitStack()
        self.workspace = workspace or self._stack.enter_context(Workspace())
        self._scheduler = scheduler
        self._controller_manager = controller_manager
        self._api_server_arguments = tuple(api_server_arguments)
        self._authority = Authority("gpu-dra-driver-tests")
        self._certificates = self.workspace.folder("pki")
        self._etcd_port, self._etcd_peer_port, self._port = free_ports(3)
        self.url = f"https://127.0.0.1:{self._port}"
        self.authority = self.workspace.write("pki/ca.crt", self._authority.certificate)
        self.kubeconfig = self.client_kubeconfig("admin", "admin", ["system:masters"])
        self.api = Api(
            self.url, self.authority, self._certificates / "admin.crt", self._certificates / "admin.key"
        )
        self.etcd: Process | None = None
        self.api_server: Process | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _start(self) -> None:
        self._write_pair("apiserver", self._authority.issue("kube-apiserver", hosts=SERVER_NAMES))
        self._write_pair("service-account", service_account_keys())
        self.start_etcd()
        self.start_api_server()
        if self._scheduler:
            self._start_scheduler()
        if self._controller_manager:
            self._start_controller_manager()

    def _write_pair(self, name: str, pair: KeyPair) -> None:
        self.workspace.write(f"pki/{name}.crt", pair.certificate)
        self.workspace.write(f"pki/{name}.key", pair.key, mode=0o600)

    def client_kubeconfig(self, name: str, common_name: str, organizations: Sequence[str] = ()) -> Path:
        """A kubeconfig for the user `common_name` in the groups `organizations`, by client certificate."""
        self._write_pair(name, self._authority.issue(common_name, organizations))
        user = {
            "client-certificate": str(self._certificates / f"{name}.crt"),
            "client-key": str(self._certificates / f"{name}.key"),
        }
        return self._write_kubeconfig(name, user)

    def _write_kubeconfig(self, name: str, user: dict[str, str], namespace: str = "default") -> Path:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "test",
                    "cluster": {"server": self.url, "certificate-authority": str(self.authority)},
                }
            ],
            "users": [{"name": name, "user": user}],
            "contexts": [
                {"name": "test", "context": {"cluster": "test", "user": name, "namespace": namespace}}
            ],
            "current-context": "test",
        }
        return self.workspace.write(f"kubeconfig/{name}.yaml", yaml.safe_dump(config), mode=0o600)

    def issue_server_certificate(self, name: str, hosts: Sequence[str]) -> tuple[Path, Path]:
        """A certificate that clients of this cluster's authority trust; returns its and the key's path."""
        self._write_pair(name, self._authority.issue(name, hosts=hosts))
        return self._certificates / f"{name}.crt", self._certificates / f"{name}.key"

    def kubeconfig_for_service_account(self, namespace: str, name: str, node: str | None = None) -> Path:
        """A kubeconfig with a token of a service account, which is made (with its namespace) when missing.

        With `node` the token is bound to that Node, as that of a pod running there: the API server then knows
        the node of the caller. Roles are the caller's business.
        """
        if self.api.find("v1", "Namespace", namespace) is None:
            self.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        if self.api.find("v1", "ServiceAccount", name, namespace) is None:
            self.api.create(
                {
                    "apiVersion": "v1",
                    "kind": "ServiceAccount",
                    "metadata": {"name": name, "namespace": namespace},
                }
            )
        spec: dict[str, object] = {"audiences": [ISSUER], "expirationSeconds": 48 * 3600}
        if node is not None:
            uid = self.api.get("v1", "Node", node)["metadata"]["uid"]
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}
        answer = self.api.request(
            "POST",
            f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec},
        )
        user = {"token": answer["status"]["token"]}
        return self._write_kubeconfig("-".join(filter(None, (namespace, name, node))), user, namespace)

    def start_etcd(self) -> None:
        """Start etcd on its data folder; the API server waits for it."""
        client = f"http://127.0.0.1:{self._etcd_port}"
        peer = f"http://127.0.0.1:{self._etcd_peer_port}"
        self.etcd = self.workspace.start(
            "etcd",
            [
                binary("etcd"),
                f"--data-dir={self.workspace.path / 'etcd'}",
                f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}",
                "--unsafe-no-fsync",
                "--log-level=warn",
            ],
        )

    def start_api_server(self) -> None:
        """Start the API server (also again, after `stop_api_server`) and wait until it is ready."""
        server = self.workspace.start(
            "kube-apiserver",
            [
                binary("kube-apiserver"),
                f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
                f"--secure-port={self._port}",
                "--bind-address=127.0.0.1",
                "--advertise-address=127.0.0.1",
                "--endpoint-reconciler-type=none",
                f"--service-cluster-ip-range={SERVICE_RANGE}",
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                "--allow-privileged=true",
                f"--client-ca-file={self.authority}",
                f"--tls-cert-file={self._certificates / 'apiserver.crt'}",
                f"--tls-private-key-file={self._certificates / 'apiserver.key'}",
                f"--kubelet-client-certificate={self._certificates / 'admin.crt'}",
                f"--kubelet-client-key={self._certificates / 'admin.key'}",
                # A test node's name is in no DNS.
                "--kubelet-preferred-address-types=InternalIP",
                f"--service-account-issuer={ISSUER}",
                f"--service-account-key-file={self._certificates / 'service-account.crt'}",
                f"--service-account-signing-key-file={self._certificates / 'service-account.key'}",
                *self._api_server_arguments,
            ],
        )
        self.api_server = server

        def ready() -> bool:
            server.check_running()
            if self.etcd is not None:
                self.etcd.check_running()
            try:
                return bool(self.api.request("GET", "/readyz") == "ok")
            except (ApiError, urllib3.exceptions.HTTPError):
                return False

        wait_until(ready, "the API server to be ready", START_SECONDS)

    def stop_api_server(self) -> None:
        """End the API server; what it stored stays in etcd."""
        if self.api_server is not None:
            self.api_server.stop()

    def _start_scheduler(self) -> None:
        kubeconfig = self.client_kubeconfig("scheduler", "system:kube-scheduler")
        self.workspace.start(
            "kube-scheduler",
            [
                binary("kube-scheduler"),
                f"--kubeconfig={kubeconfig}",
                "--leader-elect=false",
                "--secure-port=0",
            ],
        )

    def _start_controller_manager(self) -> None:
        kubeconfig = self.client_kubeconfig("controller-manager", "system:kube-controller-manager")
        self.workspace.start(
            "kube-controller-manager",
            [
                binary("kube-controller-manager"),
                f"--kubeconfig={kubeconfig}",
                "--use-service-account-credentials=true",
                "--leader-elect=false",
                "--secure-port=0",
                f"--root-ca-file={self.authority}",
                f"--service-account-private-key-file={self._certificates / 'service-account.key'}",
            ],
        )
