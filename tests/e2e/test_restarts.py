"""Pods, while the kubelet or the plugin ends, is away, comes back, or is replaced."""

from __future__ import annotations

import itertools
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.api import wait_until
from tests.cluster.cluster import Cluster
from tests.harness.clusternode import ClusterGpuNode, cluster_gpu_node
from tests.harness.pods import Pods, claim, claim_spec, container, exactly, pod

WIPED_REPAIR_SECONDS = 30.0
ABSENT_SECONDS = 60.0
KUBELET_WIPE_SECONDS = 45.0


@pytest.fixture
def node(gpu_cluster: Cluster) -> Iterator[ClusterGpuNode]:
    """Eight H100; the plugin is not started yet."""
    with cluster_gpu_node(gpu_cluster) as made:
        yield made


def one_gpu(name: str, cel: str = "", **more: Any) -> list[dict[str, Any]]:
    return pod(name, {"gpu": claim_spec(exactly("gpu", cel=cel))}, {"main": container("gpu")}, **more)


def at(node: ClusterGpuNode, position: int) -> str:
    """The selector of one GPU of the machine."""
    address = node.gpus.gpus()[position].pci_bus_id
    return f'device.attributes["resource.kubernetes.io"].pciBusID == "{address}"'


def slice_uids(node: ClusterGpuNode) -> set[str]:
    return {item["metadata"]["uid"] for item in node.slices()}


def test_b033_slices_come_back_after_a_kubelet_restart_and_pods_go_on(
    node: ClusterGpuNode, pods: Pods
) -> None:
    node.start_ready(log_level="debug")
    before = slice_uids(node)
    pods.create(claim("shared", claim_spec(exactly("gpu"))))
    pods.create(*pod("runs", {"gpu": "shared"}, {"main": container("gpu")}))
    held = pods.seen("runs")
    container_id = node.cluster.node.container_id("default", "runs", "main")

    node.cluster.node.restart_kubelet()

    wait_until(
        lambda: not slice_uids(node) & before and len(node.published()) == 8,
        "the slices that the kubelet wiped to be there again",
        WIPED_REPAIR_SECONDS,
    )
    pods.create(*pod("joins", {"gpu": "shared"}, {"main": container("gpu")}))
    pods.create(*one_gpu("next"))
    assert pods.seen("joins") == held
    # A kubelet does not remember what was prepared, only that it has the claim.
    assert node.log().count("prepared claim default/shared") == 2
    assert pods.seen("next").gpus.isdisjoint(held.gpus)
    assert node.cluster.node.container_id("default", "runs", "main") == container_id
    assert len(node.claims_in_store()) == 2


def test_a_pod_outlives_a_killed_plugin_and_ends_once_it_is_back(node: ClusterGpuNode, pods: Pods) -> None:
    node.start_ready()
    pods.create(*one_gpu("stays"), *one_gpu("goes"))
    stays, goes = pods.seen("stays").gpus, pods.seen("goes").gpus
    node.kill()
    node.api.delete("v1", "Pod", "goes")
    pods.create(*one_gpu("comes"))
    pods.event("comes", "FailedPrepareDynamicResources")
    assert node.api.find("v1", "Pod", "goes") is not None
    assert len(node.cdi_files()) == 2

    node.start_ready()

    node.api.wait_gone("v1", "Pod", "goes")
    comes = pods.seen("comes").gpus
    assert comes.isdisjoint(stays)
    answer = node.cluster.node.ctr_exec("default", "stays", "main", "nvidia-smi", "-L")
    assert [uuid in answer.stdout for uuid in (*stays, *goes)] == [True, False]


def test_a_container_restarts_with_its_gpu_while_the_plugin_is_away(node: ClusterGpuNode, pods: Pods) -> None:
    node.start_ready()
    pods.create(*one_gpu("again", restart="Always"))
    before = pods.seen("again")
    node.kill()
    killed = node.cluster.node.ctr_exec("default", "again", "main", "kill", "1")
    # The end of the container's first process may take the one that asked for it along.
    assert killed.returncode in (0, 128 + signal.SIGKILL), killed

    def restarted(found: dict[str, Any]) -> bool:
        (status,) = found["status"]["containerStatuses"]
        return status["restartCount"] == 1 and "running" in status["state"]

    node.api.wait_for("v1", "Pod", "again", restarted, "to have restarted")
    assert pods.seen("again") == before
    node.start_ready()


def test_b068_b016_a_pod_has_its_gpu_again_after_a_reboot_that_moved_the_minors(
    node: ClusterGpuNode, pods: Pods
) -> None:
    node.start_ready()
    pods.create(*one_gpu("survives", restart="Always"))
    before = pods.seen("survives")
    (uuid,) = before.gpus
    node.cluster.node.stop_kubelet()
    node.kill()
    node.cluster.node.kill_containers()
    shutil.rmtree(node.cdi_root)
    node.gpus.reboot()
    node.gpus.permute_minors([3, 2, 1, 0, 7, 6, 5, 4])

    node.start()
    node.cluster.node.start_kubelet()

    def started_again() -> bool:
        pods.running("survives")
        return pods.seen("survives") != before

    wait_until(started_again, "the pod to run in a new sandbox", 30.0, interval=0.5)
    after = pods.seen("survives")
    assert after.gpus == {uuid}
    assert list(after.nodes) == node.container_nodes(node.gpu(uuid))


def test_b037_the_plugin_is_away_for_a_minute(node: ClusterGpuNode, pods: Pods) -> None:
    node.start_ready()
    pods.create(*one_gpu("before"))
    held = pods.seen("before").gpus
    gone_at = time.monotonic()
    assert node.stop() == 0
    assert len(node.published()) == 8

    wait_until(lambda: not node.slices(), "the kubelet to wipe the slices", KUBELET_WIPE_SECONDS)
    pods.create(*one_gpu("during"))
    pods.pending("during", "cannot allocate all claims")
    time.sleep(max(0.0, gone_at + ABSENT_SECONDS - time.monotonic()))
    node.start_ready()

    assert pods.seen("during").gpus.isdisjoint(held)
    assert node.cluster.node.ctr_exec("default", "before", "main", "true").returncode == 0
    assert len(node.published()) == 8


def test_b062_ten_pods_in_quick_succession(node: ClusterGpuNode, pods: Pods) -> None:
    node.start_ready()
    before = node.published()
    cel = at(node, 5)
    for number in range(10):
        name = f"quick-{number}"
        pods.create(*one_gpu(name, cel))
        # Caught at different times: at once, when it has its claim, and when it runs.
        if number % 3 == 1:
            node.api.wait_for("v1", "Pod", name, lambda found: "nodeName" in found["spec"], "scheduled")
        elif number % 3 == 2:
            pods.running(name)
        node.api.delete("v1", "Pod", name, grace_seconds=1)
    pods.create(*one_gpu("last", cel))
    assert pods.seen("last").gpus == {node.gpus.gpus()[5].uuid}
    for number in range(10):
        node.api.wait_gone("v1", "Pod", f"quick-{number}")
    assert len(node.claims_in_store()) == len(node.cdi_files()) == 1
    assert node.published() == before


def test_b050_a_gpu_of_a_force_deleted_pod_waits_for_its_containers(node: ClusterGpuNode, pods: Pods) -> None:
    node.start_ready()
    cel = at(node, 2)
    stubborn = container("gpu", script="trap '' TERM; sleep 86400")
    spec = claim_spec(exactly("gpu", cel=cel))
    pods.create(*pod("stubborn", {"gpu": spec}, {"main": stubborn}, grace_seconds=6))
    pods.seen("stubborn")
    held = pods.claim_of("stubborn", "gpu")["metadata"]

    node.api.delete("v1", "Pod", "stubborn", grace_seconds=0)
    pods.create(*one_gpu("successor", cel))

    said = pods.event("successor", "FailedPrepareDynamicResources")
    assert held["name"] in said
    assert held["uid"] in said
    assert pods.seen("successor").gpus == {node.gpus.gpus()[2].uuid}
    assert held["uid"] not in node.claims_in_store()


def test_b133_pods_come_and_go_while_one_plugin_replaces_another(node: ClusterGpuNode, pods: Pods) -> None:
    old = node.start_ready(pod_uid="11111111-aaaa")
    pods.create(*one_gpu("old-pod"))
    pods.seen("old-pod")
    names: list[str] = []
    failures: list[BaseException] = []
    enough = threading.Event()

    def come_and_go(worker: int) -> None:
        try:
            for number in itertools.count():
                if enough.is_set():
                    return
                name = f"turn-{worker}-{number}"
                pods.create(*one_gpu(name))
                assert len(pods.seen(name).gpus) == 1
                pods.delete(name)
                names.append(name)
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=come_and_go, args=(number,)) for number in range(3)]
    for worker in workers:
        worker.start()
    try:
        wait_until(lambda: len(names) >= 3 or failures, "pods on the old plugin", 30.0)
        node.start_ready(pod_uid="22222222-bbbb")
        done = len(names)
        wait_until(lambda: len(names) >= done + 3 or failures, "pods on both plugins", 30.0)
        assert old.stop() == 0
        done = len(names)
        wait_until(lambda: len(names) >= done + 3 or failures, "pods on the new plugin", 30.0)
    finally:
        enough.set()
        for worker in workers:
            worker.join(40.0)
    assert failures == []
    said = [event for name in names for event in node.api.events(name)]
    assert [event for event in said if "DynamicResources" in event] == []
    pods.delete("old-pod")
    assert (node.claims_in_store(), node.cdi_files()) == ({}, [])
    assert len(node.published()) == 8
    assert len(node.slices()) == 1
