"""ResourceSlices of the running plugin: complete pools, faults of the API server, ends and beginnings."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.api import create_node, wait_until
from tests.cluster.controlplane import ControlPlane
from tests.harness.apiproxy import ApiProxy, Away, Refusal, Request, api_proxy
from tests.harness.claims import create_claim, result
from tests.harness.devices import gpu_name
from tests.harness.plugin import PluginNode, free_address
from tests.harness.probes import Probes
from tests.node.conftest import MakeNode
from tests.unit.driver.slicevalidator import violations

SLICE = ("resource.k8s.io/v1", "ResourceSlice")
MANY = {
    "gpus": [{"model": "h100-sxm5-80gb", "count": 29}],
    "mig": {gpu: ["1g.10gb"] * 7 for gpu in range(29)},
}


@pytest.fixture
def proxy(control_plane: ControlPlane) -> Iterator[ApiProxy]:
    with api_proxy(control_plane, "proxy") as made:
        yield made


def pools(node: PluginNode) -> list[tuple[int, int]]:
    """Generation and slice count of each slice."""
    specs = [item["spec"]["pool"] for item in node.slices()]
    return [(pool["generation"], pool["resourceSliceCount"]) for pool in specs]


def versions(node: PluginNode) -> list[str]:
    return [item["metadata"]["resourceVersion"] for item in node.slices()]


def test_b028_two_hundred_mig_devices_are_one_valid_pool(make_node: MakeNode) -> None:
    node = make_node("hgx-h100", nvswitches=[], links_per_nvswitch=[], **MANY)
    node.start()
    devices = node.wait_published(203)
    slices = node.slices()
    assert [len(item["spec"]["devices"]) for item in slices] == [128, 75]
    assert pools(node) == [(1, 2), (1, 2)]
    assert violations([item["spec"] for item in slices]) == []
    order = [device["name"] for item in slices for device in item["spec"]["devices"]]
    assert order == sorted(devices)
    owner = slices[0]["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"]) == ("Node", node.name)
    assert owner["uid"] == node.api.get("v1", "Node", node.name)["metadata"]["uid"]

    node.gpus.destroy_mig(28, node.gpus.gpus()[28].gpu_instances[0].id)
    node.wait_published(202)
    assert {generation for generation, _ in pools(node)} == {1}, "one slice changed, so no new generation"
    for gpu in range(26, 29):
        for instance in node.gpus.gpus()[gpu].gpu_instances:
            node.gpus.destroy_mig(gpu, instance.id)
        node.gpus.set_mig_mode(gpu, False)
    node.gpus.destroy_mig(0, node.gpus.gpus()[0].gpu_instances[0].id)
    wait_until(lambda: len(node.published()) == 184 and pools(node)[0][0] > 1, "a new generation", 15.0)
    assert len(set(pools(node))) == 1


def test_b032_a_pool_is_complete_again_after_a_kill_between_two_writes(
    make_node: MakeNode, proxy: ApiProxy
) -> None:
    node = make_node("hgx-h100", nvswitches=[], links_per_nvswitch=[], **MANY)
    node.kubeconfig = proxy.kubeconfig
    node.start()
    node.wait_published(203)
    reached, release = threading.Event(), threading.Event()
    written = []

    def hold_the_second(request: Request) -> Refusal | None:
        if request.is_slice_write:
            written.append(request)
            if len(written) == 2:
                reached.set()
                release.wait(30.0)
                return Refusal(503, "ServiceUnavailable")
        return None

    proxy.intercept = hold_the_second
    node.gpus.destroy_mig(0, node.gpus.gpus()[0].gpu_instances[0].id)
    assert reached.wait(15.0)
    assert sorted(pools(node)) == [(1, 2), (2, 2)], "the pool is incomplete now, and nobody uses it"
    node.kill()
    proxy.intercept = None
    release.set()

    node.start()
    node.wait_published(202)
    assert len(set(pools(node))) == 1
    assert pools(node)[0][0] >= 2
    assert violations([item["spec"] for item in node.slices()]) == []


def test_b033_edited_and_wiped_slices_come_back_and_claims_go_on(make_node: MakeNode) -> None:
    node = make_node("two-islands")
    node.start()
    devices = node.wait_published(8)
    name = sorted(devices)[0]
    claim = create_claim(node.api, [result(name, node.name)])
    assert node.kubelet.prepare_one(claim).error == ""

    edited = node.api.get(*SLICE, node.slices()[0]["metadata"]["name"])
    edited["spec"]["devices"] = edited["spec"]["devices"][:3]
    node.api.replace(edited)
    wait_until(lambda: node.published() == devices, "the devices that were edited away", 30.0)

    node.api.request(
        "DELETE",
        "/apis/resource.k8s.io/v1/resourceslices",
        query={"fieldSelector": f"spec.nodeName={node.name}"},
    )
    wait_until(lambda: node.published() == devices, "the slices that were wiped", 30.0)
    assert node.kubelet.prepare_one(claim).error == ""
    assert node.kubelet.unprepare_one(claim).error == ""


def test_a_node_object_that_comes_late_gets_its_slices(make_node: MakeNode) -> None:
    node = make_node("t4x4")
    node.api.delete("v1", "Node", node.name)
    node.start()
    node.wait_log(f"cannot read Node {node.name}, which is to own the slices")
    assert node.slices() == []
    created = create_node(node.api, node.name)
    node.wait_published(4)
    [owner] = node.slices()[0]["metadata"]["ownerReferences"]
    assert owner["uid"] == created["metadata"]["uid"]


def test_b031_a_field_that_the_server_drops_is_named_once_and_not_fought_over(
    make_node: MakeNode, proxy: ApiProxy
) -> None:
    def without_ofa_engines(request: Request, body: bytes) -> bytes:
        if not request.is_slice_write or not body:
            return body
        item = json.loads(body)
        for device in item["spec"].get("devices", []):
            del device["capacity"]["ofaEngines"]
        return json.dumps(item).encode()

    node = make_node("t4x4")
    node.kubeconfig = proxy.kubeconfig
    proxy.rewrite = without_ofa_engines
    probes = Probes(free_address())
    node.start(http_address=probes.address)
    node.kubelet.register()
    devices = node.wait_published(4)
    assert all("ofaEngines" not in device["capacity"] for device in devices.values())
    probes.wait_ready()
    wait_until(
        lambda: any("devices[].capacity.ofaEngines" in text for text in node.api.events(node.name)),
        "an event on the Node that names the field",
        10.0,
    )
    metric = "gpudra_dropped_slice_fields_total"
    assert probes.metric(metric, field="devices[].capacity.ofaEngines") == 1

    node.gpus.unplug(3)
    node.wait_published(3)
    readings = probes.metric("gpudra_discovery_seconds_count") + 2
    wait_until(lambda: probes.metric("gpudra_discovery_seconds_count") >= readings, "two more readings", 15.0)
    assert proxy.count(lambda request: request.is_slice_write) == 2, "one write for each change of hardware"


def test_slices_of_others_stay_and_old_ones_of_ours_go(make_node: MakeNode) -> None:
    node = make_node("t4x4")
    spec: dict[str, Any] = {
        "driver": "gpu.nvidia.com",
        "nodeName": node.name,
        "pool": {"name": "an-older-pool", "generation": 7, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0"}],
    }
    for name, changes in (
        ("ours", {}),
        ("other-driver", {"driver": "nic.example.com"}),
        ("other-node", {"nodeName": f"{node.name}-other"}),
    ):
        node.api.create(
            {
                "apiVersion": SLICE[0],
                "kind": SLICE[1],
                "metadata": {"name": f"{name}-{node.name}"},
                "spec": {**spec, **changes},
            }
        )
    node.start()
    node.wait_published(4)
    assert node.api.find(*SLICE, f"ours-{node.name}") is None
    for name in ("other-driver", "other-node"):
        assert node.api.find(*SLICE, f"{name}-{node.name}") is not None
        node.api.delete(*SLICE, f"{name}-{node.name}")


def test_nothing_is_written_when_nothing_changed_also_over_a_restart(make_node: MakeNode) -> None:
    node = make_node("t4x4")
    probes = Probes(free_address())
    node.flags["http-address"] = probes.address
    node.start()
    node.wait_published(4)
    before = versions(node)
    node.restart()
    node.kubelet.register()
    probes.wait_ready()
    readings = probes.metric("gpudra_discovery_seconds_count") + 2
    wait_until(lambda: probes.metric("gpudra_discovery_seconds_count") >= readings, "two more readings", 15.0)
    for verb in ("create", "update", "delete"):
        assert probes.metric("gpudra_slice_writes_total", verb=verb) == 0
    assert versions(node) == before


def test_b034_random_faults_and_cut_watches_end_with_the_right_slices(
    make_node: MakeNode, proxy: ApiProxy
) -> None:
    node = make_node("t4x4")
    node.kubeconfig = proxy.kubeconfig
    dice = random.Random(34)
    faults = [
        Refusal(409, "Conflict"),
        Refusal(410, "Expired"),
        Refusal(429, "TooManyRequests", retry_after=1),
        Refusal(500, "InternalError"),
        Refusal(503, "ServiceUnavailable"),
    ]
    proxy.intercept = lambda request: dice.choice(faults) if dice.random() < 0.25 else None
    node.start()
    node.wait_published(4, timeout=60.0)
    selector = f"spec.nodeName={node.name},spec.driver=gpu.nvidia.com"
    watches = [request for request in proxy.requests if request.is_watch]
    assert watches or proxy.count(lambda request: request.path.endswith("/resourceslices"))
    asked = [
        request.query
        for request in proxy.requests
        if request.verb == "GET" and request.path.endswith("/resourceslices")
    ]
    assert {query["fieldSelector"][0] for query in asked} == {selector}

    for number in range(2):
        proxy.cut_watches()
        node.gpus.unplug(number)
        node.wait_published(3 - number, timeout=60.0)
    proxy.intercept = None
    wait_until(lambda: proxy.cut_watches() > 0, "a watch", 30.0)
    node.api.delete(*SLICE, node.slices()[0]["metadata"]["name"])
    node.wait_published(2, timeout=30.0)


def test_b035_readiness_waits_for_the_first_accepted_publish(make_node: MakeNode, proxy: ApiProxy) -> None:
    node = make_node("t4x4")
    node.kubeconfig = proxy.kubeconfig
    refused = Refusal(403, "Forbidden")
    proxy.intercept = lambda request: refused if request.is_slice_write else None
    probes = Probes(free_address())
    node.start(http_address=probes.address)
    assert "not registered yet" in probes.ready()[1]
    node.kubelet.register()
    wait_until(lambda: probes.metric("gpudra_publish_errors_total") >= 2, "two refused publishes", 15.0)
    status, text = probes.ready()
    assert status == 503
    assert text == "the API server has not accepted the ResourceSlices yet\n"
    wait_until(lambda: any("PublishFailed" in text for text in node.api.events(node.name)), "an event", 10.0)
    assert node.log().count("made up by the test: Forbidden (403 Forbidden); will try again") == 1

    claim = create_claim(node.api, [result(gpu_name(node.gpus.gpus()[0].pci_bus_id), node.name)])
    assert node.kubelet.prepare_one(claim).error == ""
    assert node.kubelet.unprepare_one(claim).error == ""

    proxy.intercept = None
    probes.wait_ready(30.0)
    assert len(node.published()) == 4


def test_b034_b055_an_api_server_that_is_away_while_hardware_changes(
    make_node: MakeNode, proxy: ApiProxy
) -> None:
    node = make_node("t4x4")
    node.kubeconfig = proxy.kubeconfig
    probes = Probes(free_address())
    node.start(http_address=probes.address)
    node.kubelet.register()
    name = sorted(node.wait_published(4))[0]
    claim = create_claim(node.api, [result(name, node.name)])
    assert node.kubelet.prepare_one(claim).error == ""

    proxy.intercept = lambda request: Away()
    proxy.cut_watches()
    node.gpus.unplug(3)
    wait_until(lambda: probes.metric("gpudra_publish_errors_total") >= 3, "failed publishes", 20.0)
    assert probes.alive()[0] == 200, "a restart would not help"
    started = time.monotonic()
    assert node.kubelet.unprepare_one(claim).error == ""
    assert time.monotonic() - started < 5
    error = node.kubelet.prepare_one(claim, timeout=4.0).error
    assert proxy.url in error
    assert node.cdi_files() == []

    proxy.intercept = None
    node.wait_published(3, timeout=30.0)
    assert node.kubelet.prepare_one(claim).error == ""


def test_b036_a_server_without_the_group_version_is_named_and_unprepare_works(
    make_node: MakeNode, proxy: ApiProxy
) -> None:
    node = make_node("t4x4")
    node.kubeconfig = proxy.kubeconfig
    probes = Probes(free_address())
    node.flags["http-address"] = probes.address
    node.start()
    claim = create_claim(node.api, [result(sorted(node.wait_published(4))[0], node.name)])
    assert node.kubelet.prepare_one(claim).error == ""

    missing = Refusal(404, "NotFound")
    proxy.intercept = lambda request: (
        missing if request.path.startswith("/apis/resource.k8s.io/v1/") else None
    )
    node.restart()
    node.kubelet.register()
    text = "does not serve resource.k8s.io/v1: Kubernetes 1.34 or newer is needed"
    node.wait_log(text)
    wait_until(lambda: probes.metric("gpudra_publish_errors_total") >= 4, "some tries", 20.0)
    assert node.log().count(text) == 1, node.log()
    assert probes.ready()[0] == 503
    assert probes.alive()[0] == 200
    assert node.kubelet.unprepare_one(claim).error == ""


@pytest.mark.parametrize("delete", ["false", "true"])
def test_b037_slices_at_the_end_stay_for_a_successor_or_go(make_node: MakeNode, delete: str) -> None:
    node = make_node("t4x4")
    node.start(delete_slices_on_exit=delete)
    node.wait_published(4)
    started = time.monotonic()
    assert node.stop() == 0
    assert time.monotonic() - started < 3.0
    assert len(node.slices()) == (0 if delete == "true" else 1)
    if delete == "true":
        node.start()
        node.wait_published(4)
