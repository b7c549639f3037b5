"""A claim with a time-slice interval that many pods use: it is set with the first and goes with the last."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.api import wait_until
from tests.cluster.cluster import Cluster
from tests.harness.clusternode import ClusterGpuNode, cluster_gpu_node
from tests.harness.pods import Pods, claim, claim_spec, container, exactly, pod
from tests.harness.timeslices import intervals, time_slicing

PODS = 6


@pytest.fixture(scope="module")
def node(gpu_cluster: Cluster) -> Iterator[ClusterGpuNode]:
    with cluster_gpu_node(gpu_cluster, "t4x4") as made:
        made.start_ready()
        made.wait_published(4)
        yield made


def test_the_interval_of_a_shared_claim_stays_until_its_last_pod_has_gone(
    node: ClusterGpuNode, pods: Pods
) -> None:
    pods.create(claim("shared", claim_spec(exactly("gpu"), parameters=time_slicing("Short"))))
    names = [f"sharing-{number}" for number in range(PODS)]
    for name in names:
        pods.create(*pod(name, {"gpu": "shared"}, {"main": container("gpu")}, grace_seconds=1))
    seen = {pods.seen(name).gpus for name in names}
    ((uuid,),) = seen
    held = {node.gpu(uuid).gpu: "Short"}
    assert intervals(node.gpus) == held
    assert len(node.claims_in_store()) == 1

    for name in names[:-1]:
        pods.delete(name)
        assert intervals(node.gpus) == held, name
    pods.delete(names[-1])
    wait_until(lambda: not node.claims_in_store(), "the claim to be unprepared", 30.0)
    assert intervals(node.gpus) == {}


def test_a_pod_whose_gpu_has_no_intervals_waits_and_says_why(node: ClusterGpuNode, pods: Pods) -> None:
    for gpu in node.gpus.gpus():
        node.gpus.set_gpu(gpu.gpu, timeslice_code=3)
    spec = claim_spec(exactly("gpu"), parameters=time_slicing("Long"))
    pods.create(*pod("waiting", {"gpu": spec}, {"main": container("gpu")}, grace_seconds=1))
    assert "Not Supported" in pods.event("waiting", "time-slice interval Long cannot be set")
    for gpu in node.gpus.gpus():
        node.gpus.set_gpu(gpu.gpu, timeslice_code=0)
    pods.running("waiting", timeout=60)
    assert list(intervals(node.gpus).values()) == ["Long"]
