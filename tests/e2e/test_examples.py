"""Every manifest of ``examples/`` with pods works as it is, all of them side by side."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.api import wait_until
from tests.cluster.cluster import Cluster
from tests.harness.clusternode import ClusterGpuNode, cluster_gpu_node
from tests.harness.examples import SHARING_EXAMPLES, examples, load_stand_ins
from tests.harness.pods import Pods, devices_of
from tests.harness.timeslices import intervals

MACHINE = """
gpus: [{model: h100-sxm5-80gb, count: 16}]
mig: {15: [3g.40gb, 1g.10gb, 1g.10gb]}
"""


@pytest.fixture(scope="module")
def node(gpu_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterGpuNode]:
    """Enough for all examples at once."""
    machine: Path = tmp_path_factory.mktemp("machine") / "large.yaml"
    machine.write_text(MACHINE)
    with cluster_gpu_node(gpu_cluster, machine) as made:
        made.start_ready()
        yield made


def test_every_example_runs_and_its_containers_see_gpus(node: ClusterGpuNode, pods: Pods) -> None:
    shown = examples()
    load_stand_ins(node.cluster.node, shown)
    for example in shown:
        pods.create(*example.items)
    for pod in [pod for example in shown for pod in example.pods]:
        name, namespace = pod["metadata"]["name"], pod["metadata"].get("namespace", "default")
        pods.running(name, namespace)
        for container in pod["spec"]["containers"]:
            listed = node.cluster.node.ctr_exec(namespace, name, container["name"], "nvidia-smi", "-L")
            assert listed.stdout.startswith("GPU 0: NVIDIA H100"), (name, listed)
        assert not [said for said in node.api.events(name, namespace) if "DynamicResources" in said]


def test_the_time_slicing_example_has_its_interval_as_long_as_its_pod(
    node: ClusterGpuNode, pods: Pods
) -> None:
    shown = [example for example in examples(SHARING_EXAMPLES) if example.path.stem == "time-slicing"]
    load_stand_ins(node.cluster.node, shown)
    (example,) = shown
    pods.create(*example.items)
    pods.running("time-slicing")
    (device,) = devices_of(pods.claim_of("time-slicing", "gpu"))
    uuid = node.published()[device]["attributes"]["uuid"]["string"]
    for container in ("training", "evaluation"):
        listed = node.cluster.node.ctr_exec(
            "default", "time-slicing", container, "nvidia-smi", "compute-policy", "--list"
        )
        assert re.search(r"Timeslice +Long ", listed.stdout), listed
    assert intervals(node.gpus) == {node.gpu(uuid).gpu: "Long"}
    pods.delete("time-slicing", grace_seconds=1)
    wait_until(lambda: not node.claims_in_store(), "the claim to be unprepared", 30.0)
    assert intervals(node.gpus) == {}
