"""The measurements of the controller: a cluster of many nodes, each with the slices of a real one."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.bench.figures import Distribution, Figure, Target, Value
from tests.bench.measures import MACHINE, Plan
from tests.bench.partitions import DEVICES
from tests.bench.processes import cpu_seconds, memory
from tests.cluster.api import wait_until
from tests.cluster.controlplane import ControlPlane
from tests.harness.controller import CLASS, running_controller
from tests.harness.plugin import plugin_node

SLICE = ("resource.k8s.io/v1", "ResourceSlice")
GPU = "gpu.nvidia.com"
_WRITERS = 8


def measure_controller(control_plane: ControlPlane, plan: Plan) -> Iterator[Figure]:
    """All figures of the controller; each node has eight H100s and all their placements."""
    slices = slices_of_a_node(control_plane)
    nodes = [f"made-up-{number}" for number in range(plan.nodes)]
    with ThreadPoolExecutor(_WRITERS) as pool:
        list(pool.map(lambda node: create_all(control_plane, cloned(slices, node)), nodes))
        yield Value("controller: nodes", "1", len(nodes))
        yield Value("controller: slices", "1", len(nodes) * len(slices))
        yield from running(control_plane, plan, slices)
        list(pool.map(lambda node: delete_all(control_plane, cloned(slices, node)), nodes))


def running(control_plane: ControlPlane, plan: Plan, slices: Sequence[dict[str, Any]]) -> Iterator[Figure]:
    """From the start of a replica to changes that it follows."""
    api = control_plane.api
    with running_controller(control_plane) as controller:
        started = time.monotonic()
        replica = controller.start(class_grace_period="0.1")
        wait_until(lambda: api.find(*CLASS, GPU), "the classes", 300.0)
        yield Value("controller: start to its classes", "s", time.monotonic() - started)
        restored, followed = [], []
        for number in range(plan.class_changes):
            before = time.monotonic()
            api.delete(*CLASS, GPU)
            api.wait_for(*CLASS, GPU, lambda item: True, "restored")
            restored.append(time.monotonic() - before)
            node = f"new-{number}"
            profile = f"{number + 1}g.1gb"
            wanted = cloned(slices, node, profile)
            before = time.monotonic()
            create_all(control_plane, wanted)
            api.wait_for(*CLASS, f"mig-{profile}.{GPU}", lambda item: True, "made")
            followed.append(time.monotonic() - before)
            delete_all(control_plane, wanted)
        target = Target(bar=2.0)
        yield Distribution("controller: a deleted class is restored", "s", tuple(restored), target, target)
        yield Distribution("controller: a new profile has its class", "s", tuple(followed), target, target)
        before_idle = cpu_seconds(replica.process.pid)
        time.sleep(plan.idle_seconds)
        used = cpu_seconds(replica.process.pid) - before_idle
        yield Value("controller: idle, processor", "%", 100 * used / plan.idle_seconds)
        yield Value(
            "controller: RSS after all that", "MiB", memory(replica.process.pid).resident, Target(bar=300.0)
        )
        yield Value("controller: most RSS", "MiB", memory(replica.process.pid).most, Target(bar=300.0))


def slices_of_a_node(control_plane: ControlPlane) -> list[dict[str, Any]]:
    """The slices that a real plugin publishes of a simulated node."""
    with plugin_node(control_plane, MACHINE) as node:
        node.start(mig="dynamic")
        node.kubelet.register()
        node.wait_published(DEVICES, 60.0)
        return node.slices()


def cloned(slices: Sequence[dict[str, Any]], node: str, profile: str | None = None) -> list[dict[str, Any]]:
    """The same slices for another node; with ``profile`` all its MIG devices have that one."""
    made = []
    for number, item in enumerate(slices):
        spec = copy.deepcopy(item["spec"])
        spec["nodeName"] = spec["pool"]["name"] = node
        for device in (spec.get("devices") or []) if profile is not None else []:
            if device["attributes"]["type"]["string"] == "mig":
                device["attributes"]["profile"] = {"string": profile}
        made.append(
            {
                "apiVersion": SLICE[0],
                "kind": SLICE[1],
                "metadata": {"name": f"{node}-{number}"},
                "spec": spec,
            }
        )
    return made


def create_all(control_plane: ControlPlane, slices: Sequence[dict[str, Any]]) -> None:
    for item in slices:
        control_plane.api.create(item)


def delete_all(control_plane: ControlPlane, slices: Sequence[dict[str, Any]]) -> None:
    for item in slices:
        control_plane.api.delete(*SLICE, item["metadata"]["name"])
