"""What the API server lets node plugins write, by the chart's policies and real service-account tokens."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kube.client import KubeClient
from kube.errors import ApiError
from kube.resources import NODE_PARTITIONS, NODES, RESOURCE_SLICES, Object
from tests.cluster.api import wait_until
from tests.cluster.controlplane import ControlPlane
from tests.harness.chart import rendered
from tests.harness.partitionrequests import defined
from tests.harness.plugin import PluginNode
from tests.harness.rights import documented_rules

NAMESPACE = "policy-test"


def account(of: str = "is-node-plugin") -> str:
    """The user for whom a policy is, as the rendered policy has it."""
    policies = rendered("admission-policy.yaml", NAMESPACE)
    conditions = [one for item in policies for one in item["spec"].get("matchConditions", ())]
    expression = next(one["expression"] for one in conditions if one["name"] == of)
    prefix = f'request.userInfo.username == "system:serviceaccount:{NAMESPACE}:'
    assert expression.startswith(prefix)
    return str(expression.removeprefix(prefix).removesuffix('"'))


def bound(role: str, *accounts: str) -> Object:
    """The binding of a ClusterRole, by its name, to service accounts."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": role},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE} for name in accounts],
    }


def slice_on(name: str, driver: str = "gpu.nvidia.com", **node: Any) -> Object:
    device = {"name": "gpu-0"}
    if node.get("perDeviceNodeSelection"):
        device = {"name": "gpu-0", "nodeName": "mine"}
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {"driver": driver, "pool": pool, "devices": [device], **node},
    }


class Callers:
    """Clients of users who may write slices and NodePartitions as far as RBAC goes."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self.mine, self.other = (f"node-{uuid.uuid4().hex[:8]}" for _ in range(2))
        for node in (self.mine, self.other):
            plane.api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
        self.plugin = self._client(account(), self.mine)
        self.unbound = self._client(account(), None)
        self.controller = self._client(account("is-controller"), None)
        self.somebody = self._client("somebody", self.mine)

    def _client(self, name: str, node: str | None) -> KubeClient:
        path: Path = self._plane.kubeconfig_for_service_account(NAMESPACE, name, node)
        return KubeClient.load(path)

    def close(self) -> None:
        for client in (self.plugin, self.unbound, self.controller, self.somebody):
            client.close()
        for node in (self.mine, self.other):
            self._plane.api.delete("v1", "Node", node)


@pytest.fixture(scope="module")
def callers(control_plane: ControlPlane) -> Iterator[Callers]:
    api = control_plane.api
    made = [*rendered("admission-policy.yaml", NAMESPACE)]
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "policy-test"},
        "rules": [
            {"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"], "verbs": ["*"]},
            {
                "apiGroups": ["gpudra.io"],
                "resources": ["nodepartitions", "nodepartitions/status"],
                "verbs": ["*"],
            },
            {"apiGroups": [""], "resources": ["nodes"], "verbs": ["*"]},
        ],
    }
    made += [role, bound("policy-test", account(), account("is-controller"), "somebody")]
    api.apply(yaml.safe_dump_all(made))
    started = Callers(control_plane)

    def in_force() -> bool:
        try:
            started.plugin.create(RESOURCE_SLICES, slice_on("probe", nodeName=started.other), dry_run=True)
        except ApiError as error:
            return "spec.nodeName must be" in error.message
        return False

    wait_until(in_force, "the policy to be in force", 30)
    with defined(api):
        yield started
    started.close()
    for item in made[::-1]:
        api.delete(item["apiVersion"], item["kind"], item["metadata"]["name"])


def test_b155_the_documented_rights_of_the_node_plugin_are_narrow() -> None:
    rules = documented_rules("node plugin")
    by_resource: dict[str, set[str]] = {}
    for rule in rules:
        by_resource.setdefault(rule["resources"][0], set()).update(rule["verbs"])
    assert "*" not in {verb for verbs in by_resource.values() for verb in verbs}
    assert not {"pods", "secrets"} & by_resource.keys()
    assert by_resource["nodes"] == {"get"}
    (driver,) = (rule for rule in rules if rule["resources"] == ["resourceclaims/driver"])
    assert driver["resourceNames"] == ["gpu.nvidia.com"]
    assert all(verb.startswith("associated-node:") for verb in driver["verbs"])


def refused(error: pytest.ExceptionInfo[ApiError], *words: str) -> None:
    assert error.value.forbidden, error.value
    for word in words:
        assert word in error.value.message


def test_b152_a_node_plugin_writes_and_deletes_slices_of_its_own_node(callers: Callers) -> None:
    plugin, name = callers.plugin, f"own-{callers.mine}"
    stored = plugin.create(RESOURCE_SLICES, slice_on(name, nodeName=callers.mine))
    stored["spec"]["pool"]["generation"] = 2
    plugin.replace(RESOURCE_SLICES, name, stored)
    plugin.patch(RESOURCE_SLICES, name, {"metadata": {"labels": {"a": "b"}}})
    plugin.delete(RESOURCE_SLICES, name)


NODE_SELECTOR = {
    "nodeSelectorTerms": [
        {"matchExpressions": [{"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}]}
    ]
}


@pytest.mark.parametrize(
    "where",
    [
        {"nodeName": "other"},
        {"allNodes": True},
        {"nodeSelector": NODE_SELECTOR},
        {"perDeviceNodeSelection": True},
    ],
    ids=["other node", "all nodes", "node selector", "per device"],
)
def test_b152_a_node_plugin_writes_no_slice_of_other_nodes(callers: Callers, where: dict[str, Any]) -> None:
    if "nodeName" in where:
        where = {"nodeName": callers.other}
    with pytest.raises(ApiError) as raised:
        callers.plugin.create(RESOURCE_SLICES, slice_on("elsewhere", **where))
    refused(raised, f"spec.nodeName must be {callers.mine}", where.get("nodeName", '""'))
    callers.somebody.create(RESOURCE_SLICES, slice_on("elsewhere", **where))
    with pytest.raises(ApiError) as raised:
        callers.plugin.delete(RESOURCE_SLICES, "elsewhere")
    refused(raised, "spec.nodeName must be")
    with pytest.raises(ApiError) as raised:
        callers.plugin.patch(RESOURCE_SLICES, "elsewhere", {"metadata": {"labels": {"a": "b"}}})
    refused(raised, "spec.nodeName must be")
    callers.somebody.delete(RESOURCE_SLICES, "elsewhere")


def test_b152_a_token_that_is_bound_to_no_node_writes_no_slice(callers: Callers) -> None:
    with pytest.raises(ApiError) as raised:
        callers.unbound.create(RESOURCE_SLICES, slice_on("unbound", nodeName=callers.mine))
    refused(raised, "bound to no node")


def test_a_node_plugin_writes_no_slice_of_another_driver(callers: Callers) -> None:
    with pytest.raises(ApiError) as raised:
        callers.plugin.create(
            RESOURCE_SLICES, slice_on("foreign", "other.example.com", nodeName=callers.mine)
        )
    refused(raised, "spec.driver must be gpu.nvidia.com; it is other.example.com")


def test_b152_others_are_not_concerned(callers: Callers, control_plane: ControlPlane) -> None:
    for name, where in (("any-node", {"nodeName": callers.other}), ("any-all", {"allNodes": True})):
        callers.somebody.create(RESOURCE_SLICES, slice_on(name, **where))
        callers.somebody.delete(RESOURCE_SLICES, name)


def test_a_node_plugin_writes_the_status_of_its_own_node_partition_only(callers: Callers) -> None:
    for node in (callers.mine, callers.other):
        callers.somebody.create(
            NODE_PARTITIONS,
            {"apiVersion": "gpudra.io/v1alpha1", "kind": "NodePartition", "metadata": {"name": node}},
        )
    change = {"status": {"observedGeneration": 7}}
    callers.plugin.patch(NODE_PARTITIONS, callers.mine, change, subresource="status")
    with pytest.raises(ApiError) as raised:
        callers.plugin.patch(NODE_PARTITIONS, callers.other, change, subresource="status")
    refused(raised, "only the NodePartition of its own node", callers.mine, callers.other)
    with pytest.raises(ApiError) as raised:
        callers.plugin.patch(NODE_PARTITIONS, callers.mine, {"spec": {"gpus": []}})
    refused(raised, "only the status")


ANSWER = "nvidia.com/mig.config.state"


def test_the_controller_changes_one_label_of_a_node_and_nothing_else(callers: Callers) -> None:
    node = callers.mine
    callers.somebody.patch(NODES, node, {"metadata": {"labels": {"kept": "yes"}}})
    callers.controller.patch(NODES, node, {"metadata": {"labels": {ANSWER: "pending"}}})
    callers.controller.patch(NODES, node, {"metadata": {"labels": {ANSWER: None}}})
    for labels in ({"kept": None}, {"kept": "no"}, {"new": "yes"}, {"nvidia.com/mig.config": "whole"}):
        with pytest.raises(ApiError) as raised:
            callers.controller.patch(NODES, node, {"metadata": {"labels": labels}})
        refused(raised, "no label of a Node but nvidia.com/mig.config.state")
    taint = {"key": "mine", "effect": "NoExecute"}
    for change in (
        {"spec": {"taints": [taint]}},
        {"spec": {"unschedulable": True}},
        {"metadata": {"annotations": {"new": "yes"}}},
        {"metadata": {"finalizers": ["test/kept"]}},
    ):
        with pytest.raises(ApiError) as raised:
            callers.controller.patch(NODES, node, change)
        refused(raised, "nothing of a Node but its label")
    assert callers.somebody.get(NODES, node)["metadata"]["labels"]["kept"] == "yes"
    with pytest.raises(ApiError) as raised:
        callers.plugin.delete(NODE_PARTITIONS, callers.mine)
    refused(raised, "only the status")


def test_the_plugin_publishes_and_repairs_with_the_documented_rights_and_the_policies(
    callers: Callers, make_node: Callable[..., PluginNode], control_plane: ControlPlane
) -> None:
    node = make_node("t4x4")
    name, api = f"plugin-{node.name}", control_plane.api
    node.kubeconfig = control_plane.kubeconfig_for_service_account(NAMESPACE, account(), node.name)
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": documented_rules("node plugin"),
    }
    # The role with which this module tries the policies would let the plugin do everything.
    api.delete("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "policy-test")
    api.apply(yaml.safe_dump_all([role, bound(name, account())]))
    try:
        node.start()
        published = node.wait_published(4)
        for item in node.slices():
            api.delete("resource.k8s.io/v1", "ResourceSlice", item["metadata"]["name"])
        assert node.wait_published(4, 60.0).keys() == published.keys()
        assert "forbidden" not in node.log()
    finally:
        for kind in ("ClusterRole", "ClusterRoleBinding"):
            api.delete("rbac.authorization.k8s.io/v1", kind, name)
        api.apply(yaml.safe_dump(bound("policy-test", account(), "somebody")))
