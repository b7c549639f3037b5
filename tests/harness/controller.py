"""The real controller process, as a replica of its Deployment would be."""

from __future__ import annotations

import itertools
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.api import wait_until
from tests.cluster.controlplane import ControlPlane
from tests.cluster.workspace import Process
from tests.harness.plugin import free_address
from tests.harness.probes import Probes

CLASS = ("resource.k8s.io/v1", "DeviceClass")
OWN_CLASSES = "app.kubernetes.io/managed-by=gpu-dra-controller"
START_SECONDS = 30.0

_numbers = itertools.count()


@dataclass
class Replica:
    """One process of the controller."""

    process: Process
    probes: Probes

    @property
    def leads(self) -> bool:
        """Whether it says that it leads; not while it does not answer."""
        try:
            return self.probes.metric("gpudra_controller_leading") == 1
        except OSError:
            return False

    def serves(self) -> bool:
        """Whether its probes can be asked."""
        self.process.check_running()
        try:
            self.probes.alive()
        except OSError:
            return False
        return True

    def log(self) -> str:
        return self.process.log.read_text(errors="replace")


@dataclass
class Controller:
    """Replicas that share a Lease of their own."""

    control_plane: ControlPlane
    kubeconfig: Path
    lease_name: str
    replicas: list[Replica] = field(default_factory=list)

    def start(self, **flags: str) -> Replica:
        """Start one more replica, until it serves its probes; flags with ``_`` for ``-``."""
        number = next(_numbers)
        address = free_address()
        settings = {
            "kubeconfig": str(self.kubeconfig),
            "namespace": "default",
            "identity": f"replica-{number}",
            "lease-name": self.lease_name,
            "http-address": address,
            **{name.replace("_", "-"): value for name, value in flags.items()},
        }
        words = [word for name, value in settings.items() for word in (f"--{name}", value)]
        process = self.control_plane.workspace.start(
            f"controller-{number}", [sys.executable, "-m", "controller.cli", *words]
        )
        replica = Replica(process, Probes(address))
        self.replicas.append(replica)
        wait_until(replica.serves, f"the probes of {process.name}", START_SECONDS)
        return replica

    def stop(self) -> None:
        for replica in self.replicas:
            if replica.process.returncode is None:
                replica.process.stop()


@contextmanager
def running_controller(control_plane: ControlPlane, kubeconfig: Path | None = None) -> Iterator[Controller]:
    """A controller without replicas yet; those that are started, and their classes, end with it."""
    lease = f"controller-{uuid.uuid4().hex[:8]}"
    controller = Controller(control_plane, kubeconfig or control_plane.kubeconfig, lease)
    try:
        yield controller
    finally:
        controller.stop()
        control_plane.api.delete("coordination.k8s.io/v1", "Lease", lease)
        for item in control_plane.api.list(*CLASS, label_selector=OWN_CLASSES):
            control_plane.api.delete(*CLASS, item["metadata"]["name"])
