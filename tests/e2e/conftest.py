"""The cluster of the end-to-end tests, ready for the driver."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.api import wait_until
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures import cluster
from tests.harness.clusternode import ClusterGpuNode, deploy
from tests.harness.partitions import instances
from tests.harness.pods import Pods

__all__ = ["cluster"]


@pytest.fixture(scope="session")
def gpu_cluster(cluster: Cluster) -> Cluster:
    """The cluster with the driver's DeviceClasses and access rights; no GPUs and no plugin yet."""
    deploy(cluster.api)
    return cluster


@pytest.fixture
def pods(node: ClusterGpuNode) -> Iterator[Pods]:
    """Pods of one test. When they are gone, nothing of them may be left on the node or in the API server."""
    made = Pods(node.api, node.cluster.node)
    foreign = instances(node.gpus)
    yield made
    made.clear()
    wait_until(
        lambda: not node.cdi_files() and not node.claims_in_store(),
        f"nothing to be left: {node.cdi_files()}, {node.claims_in_store()}",
        10.0,
    )
    assert instances(node.gpus) == foreign
