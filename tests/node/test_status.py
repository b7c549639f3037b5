"""What is told of claims: status.devices, events, metrics; with the rights that a deployment has."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.api import documents, wait_until
from tests.cluster.components import REPOSITORY
from tests.cluster.controlplane import ControlPlane
from tests.harness.claims import Claim, create_claim, opaque, result
from tests.harness.plugin import PluginNode, free_address, plugin_node
from tests.harness.probes import Probes

DEPLOYMENT = REPOSITORY / "examples" / "deploy" / "node-plugin.yaml"
RESOURCE = "resource.k8s.io/v1"


def example_rules() -> list[dict[str, Any]]:
    """What the example deployment allows the node plugin."""
    (role,) = [item for item in documents(DEPLOYMENT.read_text()) if item["kind"] == "ClusterRole"]
    rules: list[dict[str, Any]] = role["rules"]
    return rules


def kubeconfig_with(node: PluginNode, name: str, rules: Sequence[dict[str, Any]]) -> Path:
    """A kubeconfig for a service account that has exactly ``rules``, as that of a pod on the node."""
    kubeconfig = node.control_plane.kubeconfig_for_service_account("plugins", name, node.name)
    api_version = "rbac.authorization.k8s.io/v1"
    metadata = {"name": f"{name}-{node.name}"}
    node.api.create(
        {"apiVersion": api_version, "kind": "ClusterRole", "metadata": metadata, "rules": list(rules)}
    )
    node.api.create(
        {
            "apiVersion": api_version,
            "kind": "ClusterRoleBinding",
            "metadata": metadata,
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": metadata["name"],
            },
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "plugins"}],
        }
    )
    return kubeconfig


@pytest.fixture(scope="module")
def probes() -> Probes:
    return Probes(free_address())


@pytest.fixture(scope="module")
def node(control_plane: ControlPlane, probes: Probes) -> Iterator[PluginNode]:
    """A node with a MIG device, whose plugin has the rights of the example deployment, no more."""
    with plugin_node(control_plane, mig={7: ["3g.40gb"]}) as made:
        made.kubeconfig = kubeconfig_with(made, "example", example_rules())
        made.start(http_address=probes.address, rescan_seconds="60")
        made.wait_published(8)
        yield made


def statuses(node: PluginNode, claim: Claim, count: int) -> list[dict[str, Any]]:
    """Wait for ``count`` entries of status.devices; returns them."""
    found = node.api.wait_for(
        RESOURCE,
        "ResourceClaim",
        claim.name,
        lambda item: len(item["status"].get("devices", [])) == count,
        f"{count} entries in status.devices",
        timeout=10,
    )
    entries: list[dict[str, Any]] = found["status"]["devices"]
    return entries


def wait_event(node: PluginNode, name: str, *texts: str) -> None:
    wait_until(
        lambda: any(all(text in event for text in texts) for event in node.api.events(name)),
        f"an event on {name} with {texts}, there are {node.api.events(name)}",
        10,
    )


def test_status_devices_tell_which_hardware_the_claim_got(node: PluginNode) -> None:
    names = sorted(node.published())
    whole, part = names[0], names[7]
    assert "mig" in part
    nic = {"request": "nic", "driver": "nic.example.com", "pool": "nics", "device": "nic0"}
    results = [result(whole, node.name, "gpu"), result(part, node.name, "slice"), nic]
    claim = create_claim(node.api, results, node=node.name)
    foreign = {"driver": "nic.example.com", "pool": "nics", "device": "nic0", "data": {"mac": "00:11"}}
    node.api.patch(
        RESOURCE, "ResourceClaim", claim.name, {"status": {"devices": [foreign]}}, subresource="status"
    )

    assert node.kubelet.prepare_one(claim).error == ""

    entries = {entry["device"]: entry for entry in statuses(node, claim, 3)}
    assert entries["nic0"]["data"] == {"mac": "00:11"}
    gpu, seventh = node.gpus.gpu(0), node.gpus.gpu(7)
    (instance,) = seventh.gpu_instances
    (compute,) = instance.compute_instances
    assert entries[whole]["data"] == {
        "uuid": gpu.uuid,
        "parentUUID": gpu.uuid,
        "pciBusID": gpu.pci_bus_id,
    }
    assert entries[part]["data"] == {
        "uuid": compute.uuid,
        "parentUUID": seventh.uuid,
        "pciBusID": seventh.pci_bus_id,
        "gpuInstanceID": instance.id,
        "computeInstanceID": compute.id,
    }
    for name in (whole, part):
        (condition,) = entries[name]["conditions"]
        assert (condition["type"], condition["status"], condition["reason"]) == ("Ready", "True", "Prepared")
        assert entries[name]["pool"] == node.name

    before = node.api.get(RESOURCE, "ResourceClaim", claim.name)["metadata"]["resourceVersion"]
    assert node.kubelet.prepare_one(claim).error == ""
    assert node.kubelet.unprepare_one(claim).error == ""
    # Another claim's status comes after it in the queue, so a second write would have been seen.
    later = create_claim(node.api, [result(whole, node.name)], node=node.name)
    node.kubelet.prepare_one(later)
    statuses(node, later, 1)
    assert node.api.get(RESOURCE, "ResourceClaim", claim.name)["metadata"]["resourceVersion"] == before
    node.kubelet.unprepare_one(later)


def test_a_share_id_stands_in_the_status(node: PluginNode) -> None:
    share = str(uuid.uuid4())
    name = sorted(node.published())[0]
    claim = create_claim(node.api, [result(name, node.name, shareID=share)], node=node.name)
    assert node.kubelet.prepare_one(claim).error == ""
    (entry,) = statuses(node, claim, 1)
    assert entry["shareID"] == share
    node.kubelet.unprepare_one(claim)


@pytest.mark.parametrize("missing", ["resourceclaims/status", "resourceclaims/driver"])
def test_a_status_that_may_not_be_written_is_an_event_and_no_failure(
    control_plane: ControlPlane, missing: str
) -> None:
    rules = [rule for rule in copy.deepcopy(example_rules()) if rule["resources"] != [missing]]
    assert len(rules) == len(example_rules()) - 1
    with plugin_node(control_plane) as node:
        probes = Probes(free_address())
        node.kubeconfig = kubeconfig_with(node, missing.partition("/")[2], rules)
        node.start(http_address=probes.address)
        claim = create_claim(node.api, [result(sorted(node.wait_published(8))[0], node.name)], node=node.name)
        assert node.kubelet.prepare_one(claim).error == ""
        wait_event(node, claim.name, "StatusNotWritten: status.devices was not written", missing)
        assert probes.metric("gpudra_claim_status_errors_total") == 1
        assert node.kubelet.unprepare_one(claim).error == ""


VERSION = "resource.nvidia.com/v1beta1"


def test_b180_b181_a_failed_prepare_tells_claim_metrics_and_kubelet_the_same(
    node: PluginNode, probes: Probes
) -> None:
    names = sorted(node.published())
    holder = create_claim(node.api, [result(names[0], node.name)], node=node.name)
    assert node.kubelet.prepare_one(holder).error == ""
    bad = opaque({"apiVersion": VERSION, "kind": "GpuConfig", "no": 1}, ["gpu"])
    cases = {
        "InUse": (create_claim(node.api, [result(names[0], node.name)]), names[0]),
        "BadConfig": (create_claim(node.api, [result(names[1], node.name)], configs=[bad]), "field no"),
        "UnknownDevice": (
            create_claim(node.api, [result("gpu-0000-ee-00-0", node.name)]),
            "gpu-0000-ee-00-0",
        ),
        "OtherNode": (create_claim(node.api, [result(names[1], "elsewhere")]), "elsewhere"),
        "NotAllocated": (create_claim(node.api, [], allocated=False), "status.allocation"),
        "NotFound": (Claim("default", f"gone-{uuid.uuid4().hex[:6]}", str(uuid.uuid4())), "does not exist"),
        # The hardware is read anew too seldom here to see it before the claim does.
        "DeviceGone": (create_claim(node.api, [result(names[2], node.name)]), names[2]),
    }
    node.gpus.lose(2)
    for cause, (claim, text) in cases.items():
        count = probes.metric("gpudra_claim_operations_total", operation="prepare", cause=cause)
        error = node.kubelet.prepare_one(claim).error
        assert text in error, error
        wait_event(node, claim.name, f"PrepareFailed: {cause}: {error}"[:900])
        assert probes.metric("gpudra_claim_operations_total", operation="prepare", cause=cause) == count + 1
    node.gpus.restore(2)
    node.kubelet.unprepare_one(holder)


def test_b180_a_cdi_folder_that_is_none_is_told_with_its_cause(
    control_plane: ControlPlane,
) -> None:
    with plugin_node(control_plane) as node:
        probes = Probes(free_address())
        file = node.folder / "file"
        file.write_text("no folder")
        taken = str(file / "below")
        node.start(http_address=probes.address, cdi_root=taken)
        node.wait_log("the store cannot be rebuilt")
        claim = create_claim(node.api, [result("gpu-0000-1b-00-0", node.name)])
        error = node.kubelet.prepare_one(claim).error
        assert f"CDI folder {taken}" in error
        assert f"CDI folder {taken}" in probes.ready()[1]
        assert "Not a directory; choose a folder with --cdi-root" in error
        wait_event(node, claim.name, "PrepareFailed: NotReady", taken)
        assert probes.metric("gpudra_claim_operations_total", operation="prepare", cause="NotReady") == 1


def test_b181_operations_are_counted_and_timed(node: PluginNode, probes: Probes) -> None:
    def counted(operation: str) -> float:
        return probes.metric("gpudra_claim_operations_total", operation=operation, cause="")

    def timed(operation: str) -> float:
        return probes.metric("gpudra_claim_operation_seconds_count", operation=operation)

    def steps() -> dict[str, float]:
        names = ("api-read", "lock-wait", "presence", "intent", "cdi-write", "commit")
        return {name: probes.metric("gpudra_prepare_step_seconds_count", step=name) for name in names}

    before = {operation: (counted(operation), timed(operation)) for operation in ("prepare", "unprepare")}
    steps_before = steps()
    claim = create_claim(node.api, [result(sorted(node.published())[0], node.name)], node=node.name)
    node.kubelet.prepare_one(claim)
    node.kubelet.unprepare_one(claim)
    for operation, (count, time_count) in before.items():
        assert (counted(operation), timed(operation)) == (count + 1, time_count + 1)
        assert probes.metric("gpudra_claim_operations_in_flight", operation=operation) == 0
    assert steps() == {name: count + 1 for name, count in steps_before.items()}
