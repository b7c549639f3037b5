"""Partitions, while many pods come at once, or plugin, kubelet or pod end in the middle of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.cluster.api import Object, wait_until
from tests.cluster.cluster import Cluster
from tests.harness.clusternode import ClusterGpuNode, cluster_gpu_node
from tests.harness.partitions import granted, instances, partition_pod
from tests.harness.pods import MIG_CLASS, Pods, attribute, claim, claim_spec, container, exactly, pod

CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"
SLOW_MILLISECONDS = 1500
DEVICES = 8 * 26
"""An H100 offers itself and 25 partitions."""

PODS_ON_EIGHT_GPUS = 56
PODS_SECONDS = 120.0


@pytest.fixture(scope="module")
def running(gpu_cluster: Cluster) -> Iterator[ClusterGpuNode]:
    """Eight H100 and the plugin."""
    with cluster_gpu_node(gpu_cluster) as made:
        made.start_ready(mig="dynamic")
        yield made


@pytest.fixture
def node(running: ClusterGpuNode) -> Iterator[ClusterGpuNode]:
    yield running
    running.gpus.clear_faults()


def on_gpu(node: ClusterGpuNode, name: str, number: int) -> list[Object]:
    """A pod with a small partition of this GPU."""
    address = node.gpus.gpus()[number].pci_bus_id
    place = f'device.attributes["resource.kubernetes.io"].pciBusID == "{address}"'
    return partition_pod(name, "1g.10gb", place)


def slice_uids(node: ClusterGpuNode) -> set[str]:
    return {item["metadata"]["uid"] for item in node.slices()}


def preparing(node: ClusterGpuNode) -> int:
    """How many claims are between their intent and their result."""
    return list(node.claims_in_store().values()).count("preparing")


def test_as_many_pods_as_eight_gpus_hold_run_together(node: ClusterGpuNode, pods: Pods) -> None:
    names = [f"many-{number}" for number in range(PODS_ON_EIGHT_GPUS)]
    pods.create(*(item for name in names for item in partition_pod(name, "1g.10gb")))
    seen = {name: pods.seen(name, timeout=PODS_SECONDS) for name in names}
    assert len(instances(node.gpus)) == PODS_ON_EIGHT_GPUS
    assert len({uuid for each in seen.values() for uuid in each.mig}) == PODS_ON_EIGHT_GPUS
    for name in names[::8]:
        assert seen[name] == granted(node, pods.claim_of(name, "mig"))


def test_a_pod_deleted_while_its_partition_is_made_leaves_nothing(node: ClusterGpuNode, pods: Pods) -> None:
    node.gpus.set_delay(CREATE, SLOW_MILLISECONDS)
    pods.create(*on_gpu(node, "short-lived", 2))
    wait_until(lambda: preparing(node), "the claim to be prepared", 10.0)
    node.api.delete("v1", "Pod", "short-lived", grace_seconds=1)
    node.api.wait_gone("v1", "Pod", "short-lived")
    wait_until(
        lambda: not node.claims_in_store() and not node.cdi_files(), "the claim to be unprepared", 20.0
    )
    assert instances(node.gpus) == set()


def test_the_plugin_is_killed_while_sixteen_partitions_are_made(node: ClusterGpuNode, pods: Pods) -> None:
    node.gpus.set_delay(CREATE, SLOW_MILLISECONDS)
    names = [f"killed-{number}" for number in range(16)]
    pods.create(*(item for number, name in enumerate(names) for item in on_gpu(node, name, number % 8)))
    wait_until(lambda: preparing(node) == 8, "a claim on each GPU to be prepared", 20.0)
    node.kill()
    # What a call of NVML had begun comes to pass after its caller has died, or does not.
    node.gpus.clear_faults()
    node.start_ready(mig="dynamic")
    for name in names:
        assert pods.seen(name, timeout=60.0) == granted(node, pods.claim_of(name, "mig"))
    assert len(instances(node.gpus)) == len(names)
    assert set(node.claims_in_store().values()) == {"prepared"}


def test_pods_keep_their_partitions_while_the_kubelet_restarts(node: ClusterGpuNode, pods: Pods) -> None:
    wanted = exactly("mig", MIG_CLASS, cel=f'{attribute("profile")} == "3g.40gb"')
    pods.create(claim("shared", claim_spec(wanted)))
    pods.create(*pod("runs", {"mig": "shared"}, {"main": container("mig")}))
    pods.create(*on_gpu(node, "beside", 0))
    held, beside = pods.seen("runs"), pods.seen("beside")
    made, slices = instances(node.gpus), slice_uids(node)
    started = node.cluster.node.container_id("default", "runs", "main")

    node.cluster.node.restart_kubelet()

    wait_until(
        lambda: not slice_uids(node) & slices and len(node.published()) == DEVICES,
        "the slices that the kubelet wiped to be there again",
        30.0,
    )
    pods.create(*pod("joins", {"mig": "shared"}, {"main": container("mig")}))
    assert pods.seen("joins") == held == granted(node, pods.claim_of("runs", "mig"))
    assert pods.look("beside") == beside == granted(node, pods.claim_of("beside", "mig"))
    assert node.cluster.node.container_id("default", "runs", "main") == started
    assert instances(node.gpus) == made


def test_b088_a_pod_has_its_partition_again_after_a_reboot(node: ClusterGpuNode, pods: Pods) -> None:
    wanted = exactly("mig", MIG_CLASS, cel=f'{attribute("profile")} == "2g.20gb"')
    main = {"main": container("mig")}
    pods.create(*pod("survives", {"mig": claim_spec(wanted)}, main, restart="Always", grace_seconds=5))
    before = pods.seen("survives")
    places = {(gpu, profile, start) for gpu, _, profile, start in instances(node.gpus)}
    cluster_node = node.cluster.node
    cluster_node.stop_kubelet()
    node.kill()
    cluster_node.kill_containers()
    shutil.rmtree(node.cdi_root)
    node.gpus.reboot()
    assert instances(node.gpus) == set()

    node.start(mig="dynamic")
    cluster_node.start_kubelet()

    wait_until(lambda: instances(node.gpus), "the instance to be made again", 30.0)

    def started_again() -> bool:
        pods.running("survives")
        return pods.seen("survives") != before

    wait_until(started_again, "the pod to run in a new sandbox", 30.0, interval=0.5)
    node.wait_published(DEVICES, 30.0)
    assert pods.seen("survives") == granted(node, pods.claim_of("survives", "mig"))
    assert {(gpu, profile, start) for gpu, _, profile, start in instances(node.gpus)} == places
