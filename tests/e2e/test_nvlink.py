"""Claims for several GPUs that must reach each other over NVLink."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.harness.clusternode import ClusterGpuNode, cluster_gpu_node
from tests.harness.pods import Pods, claim_spec, container, devices_of, exactly, pod

DOMAIN = "gpu.nvidia.com/nvlinkDomain"


@pytest.fixture
def node(gpu_cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[ClusterGpuNode]:
    machine, overrides = request.param
    with cluster_gpu_node(gpu_cluster, machine, **overrides) as made:
        made.start_ready()
        yield made


def joined(name: str, count: int) -> list[dict[str, Any]]:
    """A pod with so many GPUs of one NVLink domain."""
    spec = claim_spec(exactly("gpus", count=count), match=DOMAIN)
    return pod(name, {"gpus": spec}, {"main": container("gpus")})


@pytest.mark.parametrize("node", [("two-islands", {})], indirect=True)
def test_b023_four_gpus_come_from_one_island_and_five_do_not_fit(node: ClusterGpuNode, pods: Pods) -> None:
    pods.create(*joined("five", 5))
    pods.pending("five", "cannot allocate all claims")
    islands = set()
    for name in ("four", "other-four"):
        pods.create(*joined(name, 4))
        seen = pods.seen(name)
        devices = devices_of(pods.claim_of(name, "gpus"))
        gpus = [node.published()[device]["attributes"] for device in devices]
        assert seen.gpus == {gpu["uuid"]["string"] for gpu in gpus}
        assert list(seen.nodes) == node.container_nodes(*(node.gpu(uuid) for uuid in seen.gpus))
        (domain,) = {gpu["nvlinkDomain"]["string"] for gpu in gpus}
        islands.add((domain, len(seen.gpus)))
    assert len(islands) == 2
    assert {count for _, count in islands} == {4}


@pytest.mark.parametrize("node", [("a100-pcie-pair", {})], indirect=True)
def test_b024_two_bridged_cards_come_together(node: ClusterGpuNode, pods: Pods) -> None:
    pods.create(*joined("pair", 2))
    assert pods.seen("pair").gpus == {gpu.uuid for gpu in node.gpus.gpus()}


@pytest.mark.parametrize("node", [("a100-pcie-pair", {"nvlink_islands": [[0], [1]]})], indirect=True)
def test_b024_two_cards_without_a_bridge_are_not_paired(node: ClusterGpuNode, pods: Pods) -> None:
    for device in node.published().values():
        attributes = device["attributes"]
        assert attributes["nvlinkLinks"] == {"int": 0}
        assert attributes["nvlinkDomain"] == attributes["uuid"]
    pods.create(*joined("pair", 2))
    pods.pending("pair", "cannot allocate all claims")
    pods.create(*joined("single", 1))
    assert len(pods.seen("single").gpus) == 1
