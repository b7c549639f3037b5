"""``whenBusy: Evict``: the GPU is closed first, then pods go through the eviction API, budgets included."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.api import Api, Object, wait_until
from tests.cluster.controlplane import ControlPlane
from tests.harness.claims import Claim, create_claim, result
from tests.harness.controller import running_controller
from tests.harness.devices import gpu_name
from tests.harness.partitionrequests import REQUEST, ask, defined, wait_story
from tests.harness.plugin import PluginNode
from tests.node.conftest import MakeNode

TAINT = {"key": "gpu.nvidia.com/repartition", "effect": "NoSchedule"}
HALVES = {"3g.40gb": 2}


@pytest.fixture(scope="module", autouse=True)
def kinds(control_plane: ControlPlane) -> Iterator[None]:
    # Without the controller manager nobody makes it, and pods cannot be created without.
    if control_plane.api.find("v1", "ServiceAccount", "default") is None:
        metadata = {"name": "default", "namespace": "default"}
        control_plane.api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    with defined(control_plane.api), running_controller(control_plane) as controller:
        controller.start()
        yield


@pytest.fixture
def node(make_node: MakeNode, control_plane: ControlPlane) -> Iterator[PluginNode]:
    made = make_node("hgx-h100")
    made.flags["mig"] = "dynamic"
    made.start()
    made.wait_published(8 * 26, 30)
    label = {"gpudra.test/node": made.name}
    made.api.patch("v1", "Node", made.name, {"metadata": {"labels": label}})
    yield made
    for item in control_plane.api.list(*REQUEST):
        control_plane.api.delete(*REQUEST, item["metadata"]["name"])


def running_pod(node: PluginNode, **labels: str) -> Object:
    """A pod as the kubelet would have it running; nobody runs it."""
    name = f"pod-{uuid.uuid4().hex[:8]}"
    made = node.api.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "labels": labels},
            "spec": {
                "nodeName": node.name,
                "terminationGracePeriodSeconds": 600,
                "containers": [{"name": "main", "image": "none"}],
                "automountServiceAccountToken": False,
            },
        }
    )
    ready = [{"type": "Ready", "status": "True"}]
    status = {"phase": "Running", "conditions": ready}
    node.api.patch("v1", "Pod", name, {"status": status}, subresource="status")
    return made


def hold(node: PluginNode, device: str, pod: Object) -> Claim:
    """A prepared claim on a device, reserved for the pod."""
    claim = create_claim(node.api, [result(device, node.name)], reserved=False)
    consumer = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    status = {"status": {"reservedFor": [consumer]}}
    node.api.patch("resource.k8s.io/v1", "ResourceClaim", claim.name, status, subresource="status")
    assert node.kubelet.prepare_one(claim).error == ""
    return claim


def let_go(node: PluginNode, claim: Claim, pod: Object) -> None:
    """What the kubelet does when the pod's containers have ended."""
    assert node.kubelet.unprepare_one(claim).error == ""
    name = pod["metadata"]["name"]
    path = f"/api/v1/namespaces/default/pods/{name}"
    node.api.request("DELETE", path, {"kind": "DeleteOptions", "gracePeriodSeconds": 0})


def is_ending(api: Api, pod: Object) -> dict[str, Any] | None:
    """The metadata of a pod that was asked to go."""
    metadata: dict[str, Any] = api.get("v1", "Pod", pod["metadata"]["name"])["metadata"]
    return metadata if "deletionTimestamp" in metadata else None


def evicting(node: PluginNode, index: int, **more: Any) -> dict[str, Any]:
    return {
        "nodeSelector": {"gpudra.test/node": node.name},
        "gpus": {"indexes": [index]},
        "layout": HALVES,
        "whenBusy": "Evict",
        **more,
    }


def test_b158_the_gpu_is_tainted_its_pods_are_evicted_and_then_it_is_changed(node: PluginNode) -> None:
    name = gpu_name(node.gpus.gpus()[0].pci_bus_id)
    other = gpu_name(node.gpus.gpus()[1].pci_bus_id)
    gone, stays, elsewhere = (running_pod(node) for _ in range(3))
    wrong = hold(node, f"{name}-mig-1g10gb-5", gone)
    right = hold(node, f"{name}-mig-3g40gb-0", stays)
    hold(node, other, elsewhere)
    ask(node.api, "evict", evicting(node, 0, gracePeriod="90s"))
    wait_until(lambda: is_ending(node.api, gone), "the eviction", 15)
    ending = is_ending(node.api, gone)
    assert ending is not None
    assert ending["deletionGracePeriodSeconds"] == 90
    tainted = {key: one for key, one in node.published().items() if key.startswith(name)}
    assert set(tainted) == {f"{name}-mig-1g10gb-5", f"{name}-mig-3g40gb-0"}
    for device in tainted.values():
        assert [{key: one[key] for key in TAINT} for one in device["taints"]] == [TAINT]
    assert not any("taints" in one for key, one in node.published().items() if not key.startswith(name))
    status = wait_story(node.api, "evict", "1 wait (claims are in the way")
    assert f"default/{gone['metadata']['name']}" in str(status["nodes"])
    assert set(node.claims_in_store()) > {wrong.uid, right.uid}

    let_go(node, wrong, gone)
    wait_story(node.api, "evict", "1 of 1 GPUs on 1 nodes are as wanted")
    left = {key: one for key, one in node.published().items() if key.startswith(name)}
    assert set(left) == {f"{name}-mig-3g40gb-0", f"{name}-mig-3g40gb-4"}
    assert not any("taints" in one for one in left.values())
    assert is_ending(node.api, stays) is None
    assert is_ending(node.api, elsewhere) is None


def test_b158_a_pod_disruption_budget_holds(node: PluginNode) -> None:
    name = gpu_name(node.gpus.gpus()[0].pci_bus_id)
    pod = running_pod(node, budget=node.name)
    hold(node, name, pod)
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": node.name, "namespace": "default"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"budget": node.name}}},
    }
    node.api.create(budget)
    ask(node.api, "held", evicting(node, 0))

    def is_told() -> bool:
        return "a PodDisruptionBudget holds it" in str(node.api.get(*REQUEST, "held").get("status"))

    wait_until(is_told, "what holds the pod", 20)
    assert is_ending(node.api, pod) is None
    node.api.delete("policy/v1", "PodDisruptionBudget", node.name)
    wait_until(lambda: is_ending(node.api, pod), "the eviction", 20)
    assert is_ending(node.api, pod)
