"""Partition requests on a real cluster: running pods are left alone, or evicted when that is wanted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.api import wait_until
from tests.cluster.cluster import Cluster
from tests.harness.clusternode import ClusterGpuNode, cluster_gpu_node
from tests.harness.controller import running_controller
from tests.harness.partitionrequests import REQUEST, ask, defined, wait_story
from tests.harness.partitions import gpu_pod, granted, partition_pod
from tests.harness.pods import Pods

HALVES = {"3g.40gb": 2}


@pytest.fixture
def node(gpu_cluster: Cluster, tmp_path: Path) -> Iterator[ClusterGpuNode]:
    """Two H100 that can be partitioned, and the controller; classes are those of the cluster."""
    machine, classes = tmp_path / "gpus.yaml", tmp_path / "classes.yaml"
    machine.write_text("gpus: [{model: h100-sxm5-80gb, count: 2}]\n")
    classes.write_text("create: false\n")
    with (
        defined(gpu_cluster.api),
        cluster_gpu_node(gpu_cluster, machine) as made,
        running_controller(gpu_cluster.control_plane) as controller,
    ):
        made.start_ready(mig="dynamic")
        controller.start(classes=str(classes))
        yield made
        for item in made.api.list(*REQUEST):
            made.api.delete(*REQUEST, item["metadata"]["name"])


def test_b158_with_wait_a_running_pod_is_not_disturbed_and_the_gpu_changes_after_it(
    node: ClusterGpuNode, pods: Pods
) -> None:
    pods.create(*gpu_pod("whole"))
    before = pods.seen("whole")
    ask(node.api, "halves", {"layout": HALVES})
    status = wait_story(node.api, "halves", "1 of 2 GPUs on 1 nodes are as wanted; 1 wait")
    assert "default/whole" in str(status["nodes"])
    pods.create(*partition_pod("half-0", "3g.40gb"), *partition_pod("half-1", "3g.40gb"))
    for name in ("half-0", "half-1"):
        assert pods.seen(name) == granted(node, pods.claim_of(name, "mig"))
    pods.create(*partition_pod("half-2", "3g.40gb"))
    pods.pending("half-2", "cannot allocate all claims")
    pods.create(*partition_pod("small", "1g.10gb"))
    pods.pending("small", "cannot allocate all claims")
    assert pods.seen("whole") == before

    pods.delete("whole")
    assert pods.seen("half-2") == granted(node, pods.claim_of("half-2", "mig"))
    wait_story(node.api, "halves", "2 of 2 GPUs on 1 nodes are as wanted")
    pods.delete("half-0", "half-1", "half-2")
    node.api.delete(*REQUEST, "halves")
    assert pods.seen("small") == granted(node, pods.claim_of("small", "mig"))


def test_b158_with_evict_the_pod_goes_and_its_gpu_is_given_out_as_wanted(
    node: ClusterGpuNode, pods: Pods
) -> None:
    pods.create(*gpu_pod("whole-0"), *gpu_pod("whole-1"))
    for name in ("whole-0", "whole-1"):
        pods.seen(name)
    pods.create(*partition_pod("half", "3g.40gb"))
    pods.pending("half", "cannot allocate all claims")
    ask(node.api, "halves", {"gpus": {"indexes": [0]}, "layout": HALVES, "whenBusy": "Evict"})
    assert pods.seen("half") == granted(node, pods.claim_of("half", "mig"))
    wait_story(node.api, "halves", "1 of 1 GPUs on 1 nodes are as wanted")
    wait_until(
        lambda: sum(node.api.find("v1", "Pod", name) is not None for name in ("whole-0", "whole-1")) == 1,
        "one pod to be left",
        20,
    )
    assert not any("taints" in device for device in node.published().values())
