"""The publisher and the events against a real API server: what it stores, drops, refuses and forgets."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from driver.resourceslices import slice_specs
from kube.asyncclient import AsyncKubeClient
from kube.backoff import Backoff
from kube.client import KubeClient
from kube.events import EventRecorder, ObjectReference
from kube.resources import Object
from kubeletplugin.publisher import DroppedFields, SlicePublisher
from tests.cluster.controlplane import ControlPlane
from tests.cluster.fixtures import require
from tests.cluster.requirements import control_plane_missing

DRIVER = "gpu.nvidia.com"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
KUBECTL = Path(sys.executable).with_name("kubectl")


class Observer:
    def __init__(self) -> None:
        self.writes: list[str] = []
        self.drops: list[DroppedFields] = []
        self.failures: list[str] = []

    def wrote(self, verb: str) -> None:
        self.writes.append(verb)

    def dropped(self, dropped: DroppedFields) -> None:
        self.drops.append(dropped)

    def published(self, generation: int, slices: int) -> None:
        pass

    def failed_to_publish(self, message: str) -> None:
        self.failures.append(message)


@pytest.fixture
def node_name(control_plane: ControlPlane) -> Iterator[str]:
    name = f"publisher-{uuid.uuid4().hex[:8]}"
    make_node(control_plane, name)
    yield name
    for item in slices(control_plane, name):
        control_plane.api.request("DELETE", f"{SLICES}/{item['metadata']['name']}")
    control_plane.api.request("DELETE", f"/api/v1/nodes/{name}")


def make_node(control_plane: ControlPlane, name: str) -> None:
    control_plane.api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})


def slices(control_plane: ControlPlane, node: str) -> list[Object]:
    answer = control_plane.api.request("GET", f"{SLICES}?fieldSelector=spec.nodeName%3D{node}")
    return sorted(answer["items"], key=lambda item: str(item["metadata"]["name"]))


def state(control_plane: ControlPlane, node: str) -> tuple[list[str], set[tuple[int, int]]]:
    """Device names in order, and the generations with their counts."""
    items = slices(control_plane, node)
    devices = [device["name"] for item in items for device in item["spec"].get("devices", [])]
    pools = {
        (item["spec"]["pool"]["generation"], item["spec"]["pool"]["resourceSliceCount"]) for item in items
    }
    return devices, pools


def devices(count: int, memory: str = "80Gi", **fields: Any) -> list[Object]:
    return [
        {
            "name": f"gpu-{number:04}",
            "attributes": {"type": {"string": "gpu"}, "profile": {"string": ""}},
            "capacity": {"memory": {"value": memory}, "encoders": {"value": "0"}},
            **fields,
        }
        for number in range(count)
    ]


@contextlib.asynccontextmanager
async def publishing(
    control_plane: ControlPlane, node: str, observer: Observer, kubeconfig: Path | None = None
) -> AsyncIterator[SlicePublisher]:
    client = AsyncKubeClient(KubeClient.load(kubeconfig or control_plane.kubeconfig))
    publisher = SlicePublisher(
        client,
        driver=DRIVER,
        node_name=node,
        observer=observer,
        backoff=Backoff(0.1, 1.0),
        repair_backoff=Backoff(0.5, 2.0),
    )
    task = asyncio.create_task(publisher.run())
    try:
        yield publisher
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        client.close()


async def published(publisher: SlicePublisher) -> None:
    await asyncio.wait_for(publisher.first_published.wait(), 20)


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110 - another process sets no event
            await asyncio.sleep(0.05)


async def test_b028_two_hundred_devices_are_one_complete_pool(
    control_plane: ControlPlane, node_name: str
) -> None:
    observer = Observer()
    async with publishing(control_plane, node_name, observer) as publisher:
        publisher.update(slice_specs(devices(200), node_name, node_name))
        await published(publisher)
        names, pools = state(control_plane, node_name)
        assert names == [f"gpu-{number:04}" for number in range(200)]
        assert pools == {(1, 2)}
        before = slices(control_plane, node_name)
        publisher.update(slice_specs(devices(200, memory="81920Mi"), node_name, node_name))
        await asyncio.sleep(1.5)
        assert slices(control_plane, node_name) == before
        publisher.update(slice_specs(devices(300), node_name, node_name))
        await until(lambda: len(observer.writes) == 5)
        assert state(control_plane, node_name)[1] == {(2, 3)}
    owner = before[0]["metadata"]["ownerReferences"][0]
    node = control_plane.api.get("v1", "Node", node_name)
    assert (owner["kind"], owner["uid"]) == ("Node", node["metadata"]["uid"])
    assert observer.writes == ["create", "create", "update", "update", "create"]
    assert observer.failures == []
    assert observer.drops == []


async def test_b033_the_kubelets_wipe_and_foreign_edits_are_repaired(
    control_plane: ControlPlane, node_name: str
) -> None:
    observer = Observer()
    async with publishing(control_plane, node_name, observer) as publisher:
        publisher.update(slice_specs(devices(200), node_name, node_name))
        await published(publisher)
        before = {item["metadata"]["uid"] for item in slices(control_plane, node_name)}
        control_plane.api.request("DELETE", f"{SLICES}?fieldSelector=spec.nodeName%3D{node_name}")
        await until(lambda: state(control_plane, node_name)[1] == {(1, 2)})
        after = slices(control_plane, node_name)
        assert before.isdisjoint({item["metadata"]["uid"] for item in after})
        edited = after[0]
        edited["spec"]["devices"][0]["capacity"]["memory"]["value"] = "1Gi"
        control_plane.api.request("PUT", f"{SLICES}/{edited['metadata']['name']}", edited)
        await until(lambda: observer.writes.count("update") == 1)
        repaired = slices(control_plane, node_name)[0]["spec"]["devices"][0]
        assert repaired["capacity"]["memory"]["value"] == "80Gi"
    assert observer.failures == []


async def test_a_node_that_is_created_anew_gets_slices_of_its_own(
    control_plane: ControlPlane, node_name: str
) -> None:
    async with publishing(control_plane, node_name, Observer()) as publisher:
        publisher.update(slice_specs(devices(2), node_name, node_name))
        await published(publisher)
        control_plane.api.request("DELETE", f"/api/v1/nodes/{node_name}")
        for item in slices(control_plane, node_name):
            control_plane.api.request("DELETE", f"{SLICES}/{item['metadata']['name']}")
        make_node(control_plane, node_name)
        uid = control_plane.api.get("v1", "Node", node_name)["metadata"]["uid"]
        await until(
            lambda: (
                [item["metadata"]["ownerReferences"][0]["uid"] for item in slices(control_plane, node_name)]
                == [uid]
            )
        )


async def test_the_longest_node_name_makes_valid_slice_names(control_plane: ControlPlane) -> None:
    name = f"{uuid.uuid4().hex[:8]}-{'x' * 34}.{'y' * 63}.{'z' * 63}.{'w' * 63}"
    make_node(control_plane, name)
    observer = Observer()
    async with publishing(control_plane, name, observer) as publisher:
        publisher.update(slice_specs(devices(200), name, name))
        await published(publisher)
        publisher.update(slice_specs(devices(200, memory="40Gi"), name, name))
        await until(lambda: len(observer.writes) == 4)
        assert state(control_plane, name)[1] == {(2, 2)}
        await publisher.delete_all()
    control_plane.api.request("DELETE", f"/api/v1/nodes/{name}")
    assert observer.writes == ["create", "create", "update", "update", "delete", "delete"]


async def test_a_service_account_without_rights_is_told_so(
    control_plane: ControlPlane, node_name: str
) -> None:
    observer = Observer()
    kubeconfig = control_plane.kubeconfig_for_service_account("publisher", "nobody")
    async with publishing(control_plane, node_name, observer, kubeconfig) as publisher:
        publisher.update(slice_specs(devices(1), node_name, node_name))
        await until(lambda: len(observer.failures) >= 2)
        assert not publisher.first_published.is_set()
    assert any("system:serviceaccount:publisher:nobody" in message for message in observer.failures)


async def test_events_are_shown_by_kubectl_describe(control_plane: ControlPlane, node_name: str) -> None:
    client = AsyncKubeClient(KubeClient.load(control_plane.kubeconfig))
    recorder = EventRecorder(client, component=DRIVER, host=node_name)
    task = asyncio.create_task(recorder.run())
    recorder.warning(
        ObjectReference("v1", "Node", node_name, uid=node_name), "SliceFieldsDropped", "é" * 2000
    )
    claim = control_plane.api.create(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": node_name, "namespace": "default"},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]}},
        }
    )
    about = ObjectReference(
        "resource.k8s.io/v1", "ResourceClaim", node_name, "default", claim["metadata"]["uid"]
    )
    recorder.warning(about, "PrepareFailed", "device gpu-0000 is in use")

    def described(kind: str) -> str:
        command = [str(KUBECTL), f"--kubeconfig={control_plane.kubeconfig}", "describe", kind, node_name]
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout

    await until(lambda: "SliceFieldsDropped" in described("node"))
    await until(lambda: "device gpu-0000 is in use" in described("resourceclaim"))
    assert recorder.lost == 0
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    client.close()


async def test_b034_an_api_server_that_goes_away_and_comes_back() -> None:
    require(control_plane_missing())
    with ControlPlane() as own:
        make_node(own, "n1")
        observer = Observer()
        async with publishing(own, "n1", observer) as publisher:
            publisher.update(slice_specs(devices(2), "n1", "n1"))
            await published(publisher)
            await asyncio.to_thread(own.stop_api_server)
            publisher.update(slice_specs(devices(3), "n1", "n1"))
            await until(lambda: len(observer.failures) >= 3)
            await asyncio.to_thread(own.start_api_server)
            await until(lambda: len(state(own, "n1")[0]) == 3, seconds=40)
        assert state(own, "n1")[1] == {(1, 1)}


async def test_b031_fields_of_features_that_are_off_are_named_and_not_written_again() -> None:
    require(control_plane_missing())
    with ControlPlane(api_server_arguments=["--feature-gates=DRAConsumableCapacity=false"]) as own:
        make_node(own, "n1")
        observer = Observer()
        async with publishing(own, "n1", observer) as publisher:
            publisher.update(slice_specs(devices(200, allowMultipleAllocations=True), "n1", "n1"))
            await published(publisher)
            assert [drop.fields for drop in observer.drops] == [("devices[].allowMultipleAllocations",)] * 2
            before = slices(own, "n1")
            labelled = {**before[0], "metadata": {**before[0]["metadata"], "labels": {"a": "b"}}}
            own.api.request("PUT", f"{SLICES}/{before[0]['metadata']['name']}", labelled)
            await asyncio.sleep(2)
            assert observer.writes == ["create", "create"]
            assert slices(own, "n1")[1] == before[1]
