"""A whole Kubernetes cluster of one node on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from tests.cluster.api import Api
from tests.cluster.controlplane import ControlPlane
from tests.cluster.node import Node
from tests.cluster.workspace import Workspace


class Cluster:
    """A context manager: control plane, scheduler, controller manager and one node; up in about 10 seconds.

    When entered the Node is ready and pods can be made in namespace `default`. Tests go on through `api`,
    `node` and `control_plane`; processes started with `workspace.start` end with the cluster.
    """

    def __init__(
        self,
        *,
        node_name: str = "gpu-node",
        api_server_arguments: Sequence[str] = (),
        kubelet_configuration: Mapping[str, Any] | None = None,
    ) -> None:
        self._stack = ExitStack()
        self.workspace = self._stack.enter_context(Workspace())
        self.control_plane = ControlPlane(
            workspace=self.workspace,
            scheduler=True,
            controller_manager=True,
            api_server_arguments=api_server_arguments,
        )
        self.node = Node(self.control_plane, node_name, kubelet_configuration)

    @property
    def api(self) -> Api:
        return self.control_plane.api

    def __enter__(self) -> Self:
        try:
            self._stack.enter_context(self.control_plane)
            self.node.start()
            self.api.wait_for("v1", "ServiceAccount", "default", bool, "made by the controller manager")
            self.api.wait_for("v1", "ConfigMap", "kube-root-ca.crt", bool, "made by the controller manager")
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
