"""The publisher against a server that fails, forgets, drops fields, and has other writers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from kube.asyncclient import AsyncKubeClient
from kube.backoff import Backoff
from kube.client import KubeClient
from kube.resources import NODES, RESOURCE_SLICES, Object
from kubeletplugin.publisher import DroppedFields, PublishError, SlicePublisher
from tests.unit.kube.fakeapiserver import FakeApiServer, Fault

COLLECTION = RESOURCE_SLICES.path()


class Observer:
    def __init__(self) -> None:
        self.writes: list[str] = []
        self.drops: list[DroppedFields] = []
        self.successes: list[tuple[int, int]] = []
        self.failures: list[str] = []
        self.on_drop: Callable[[], None] = lambda: None

    def wrote(self, verb: str) -> None:
        self.writes.append(verb)

    def dropped(self, dropped: DroppedFields) -> None:
        self.drops.append(dropped)
        self.on_drop()

    def published(self, generation: int, slices: int) -> None:
        self.successes.append((generation, slices))

    def failed_to_publish(self, message: str) -> None:
        self.failures.append(message)


def specs(*devices: str, **fields: Any) -> list[Object]:
    return [{"devices": [{"name": device, **fields}]} for device in devices]


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    fake = FakeApiServer()
    fake.put(NODES.path(), {"metadata": {"name": "n1"}})
    yield fake
    fake.close()


@pytest.fixture
def observer() -> Observer:
    return Observer()


@contextlib.asynccontextmanager
async def publishing(server: FakeApiServer, observer: Observer) -> AsyncIterator[SlicePublisher]:
    client = AsyncKubeClient(KubeClient(server.rest_client(), read_timeout=2.0))
    publisher = SlicePublisher(
        client,
        driver="gpu.nvidia.com",
        node_name="n1",
        observer=observer,
        backoff=Backoff(0.02, 0.2),
        repair_backoff=Backoff(0.1, 0.3),
    )
    task = asyncio.create_task(publisher.run())
    try:
        yield publisher
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        client.close()


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the state of another thread sets no event
            await asyncio.sleep(0.01)


async def published(publisher: SlicePublisher) -> None:
    await asyncio.wait_for(publisher.first_published.wait(), 5)


def pool(server: FakeApiServer) -> tuple[list[str], set[tuple[int, int]]]:
    """The devices in the order of the slices, and the generations with their counts."""
    items = server.items(COLLECTION)
    devices = [device["name"] for item in items for device in item["spec"].get("devices", [])]
    pools = {
        (item["spec"]["pool"]["generation"], item["spec"]["pool"]["resourceSliceCount"]) for item in items
    }
    return devices, pools


async def test_publishes_at_once_and_then_writes_nothing(server: FakeApiServer, observer: Observer) -> None:
    async with publishing(server, observer) as publisher:
        publisher.update(specs("a", "b", "c"))
        await published(publisher)
        assert pool(server) == (["a", "b", "c"], {(1, 3)})
        owner = server.items(COLLECTION)[0]["metadata"]["ownerReferences"][0]
        assert owner["uid"] == server.items(NODES.path())[0]["metadata"]["uid"]
        publisher.update(specs("a", "b", "c"))
        await asyncio.sleep(0.5)
        assert observer.writes == ["create"] * 3
        listed = [path for method, path in server.requests if method == "GET" and "watch" not in path]
        assert len([path for path in listed if path.startswith(COLLECTION)]) == 2
        publisher.update(specs("a", "x", "c"))
        await until(lambda: pool(server)[0] == ["a", "x", "c"])
        assert pool(server)[1] == {(1, 3)}
        publisher.update(specs("y", "z"))
        await until(lambda: pool(server) == (["y", "z"], {(2, 2)}))
    assert observer.failures == []


async def test_b034_watches_and_lists_only_own_slices(server: FakeApiServer, observer: Observer) -> None:
    async with publishing(server, observer) as publisher:
        publisher.update(specs("a"))
        await published(publisher)
        await until(lambda: server.watches == 1)
    selector = "fieldSelector=spec.nodeName%3Dn1%2Cspec.driver%3Dgpu.nvidia.com"
    reads = [path for method, path in server.requests if method == "GET" and path.startswith(COLLECTION)]
    assert reads
    assert all(selector in path for path in reads)


async def test_an_empty_pool_is_published(server: FakeApiServer, observer: Observer) -> None:
    async with publishing(server, observer) as publisher:
        publisher.update([{}])
        await published(publisher)
    (item,) = server.items(COLLECTION)
    assert "devices" not in item["spec"]
    assert item["spec"]["pool"]["resourceSliceCount"] == 1


async def test_b033_wiped_deleted_and_edited_slices_come_back(
    server: FakeApiServer, observer: Observer
) -> None:
    async with publishing(server, observer) as publisher:
        publisher.update(specs("a", "b"))
        await published(publisher)
        await until(lambda: server.watches == 1)
        for item in server.items(COLLECTION):
            server.remove(COLLECTION, item["metadata"]["name"])
        await until(lambda: pool(server) == (["a", "b"], {(1, 2)}))
        server.remove(COLLECTION, server.items(COLLECTION)[1]["metadata"]["name"])
        await until(lambda: pool(server)[0] == ["a", "b"])
        edited = server.items(COLLECTION)[0]
        edited["spec"]["devices"][0]["name"] = "edited"
        server.put(COLLECTION, edited)
        await until(lambda: pool(server)[0] == ["a", "b"])
        foreign = {
            "metadata": {"name": "other"},
            "spec": {"driver": "other.example.com", "nodeName": "n1", "pool": {}},
        }
        server.put(COLLECTION, foreign)
        await asyncio.sleep(0.4)
    assert "other" in [item["metadata"]["name"] for item in server.items(COLLECTION)]
    assert observer.failures == []


async def test_deletions_while_the_watch_was_expired_are_repaired(
    server: FakeApiServer, observer: Observer
) -> None:
    async with publishing(server, observer) as publisher:
        publisher.update(specs("a"))
        await published(publisher)
        await until(lambda: server.watches == 1)
        with server.lock:
            server.remove(COLLECTION, server.items(COLLECTION)[0]["metadata"]["name"])
            server.forget_history()
        await until(lambda: pool(server)[0] == ["a"])


async def test_two_disagreeing_publishers_calm_down(server: FakeApiServer, observer: Observer) -> None:
    other = Observer()
    async with publishing(server, observer) as one, publishing(server, other) as two:
        one.update(specs("a"))
        await published(one)
        two.update(specs("b"))
        await asyncio.sleep(1.5)
    assert len(observer.writes) + len(other.writes) <= 24


async def test_b032_killed_between_two_writes_the_next_run_completes_the_pool(
    server: FakeApiServer, observer: Observer
) -> None:
    async with publishing(server, observer) as publisher:
        publisher.update(specs("a", "b", "c"))
        await published(publisher)

    def after_one_write(method: str, path: str) -> Fault | None:
        written = len(server.writes()) - before
        return (503, "ServiceUnavailable", {}) if method == "PUT" and written > 1 else None

    before = len(server.writes())
    server.faults.append(after_one_write)
    async with publishing(server, Observer()) as publisher:
        publisher.update(specs("x", "y", "z"))
        await until(lambda: len(server.writes()) - before > 2)
    assert len(pool(server)[1]) == 2
    server.faults.clear()
    async with publishing(server, Observer()) as publisher:
        publisher.update(specs("x", "y", "z"))
        await published(publisher)
    assert pool(server) == (["x", "y", "z"], {(2, 3)})


async def test_b031_dropped_fields_are_told_once_and_not_written_again(
    server: FakeApiServer, observer: Observer
) -> None:
    def drop_taints(written: Object) -> None:
        for device in written.get("spec", {}).get("devices", []):
            device.pop("taints", None)

    server.on_write = drop_taints
    async with publishing(server, observer) as publisher:
        tainted = specs("a", taints=[{"key": "k", "effect": "NoSchedule"}])
        publisher.update(tainted)
        await published(publisher)
        (name,) = [item["metadata"]["name"] for item in server.items(COLLECTION)]
        assert observer.drops == [DroppedFields(name, 0, ("devices[].taints",))]
        edited = server.items(COLLECTION)[0]
        edited["metadata"]["labels"] = {"x": "y"}
        server.put(COLLECTION, edited)
        await until(lambda: len(observer.successes) == 2)
        assert observer.writes == ["create"]
        edited["spec"]["devices"][0]["name"] = "edited"
        server.put(COLLECTION, edited)
        await until(lambda: observer.writes == ["create", "update"])
        assert pool(server)[0] == ["a"]


async def test_other_slices_wanted_because_of_dropped_fields_replace_the_plan(
    server: FakeApiServer, observer: Observer
) -> None:
    def drop(written: Object) -> None:
        written.get("spec", {}).pop("sharedCounters", None)

    server.on_write = drop
    async with publishing(server, observer) as publisher:
        observer.on_drop = lambda: publisher.update(specs("whole"))
        publisher.update([{"sharedCounters": [{"name": "s"}]}, *specs("partition-1", "partition-2")])
        await published(publisher)
    assert pool(server)[0] == ["whole"]
    devices = [item["spec"].get("devices") for _, _, _, item in server.history if "spec" in item]
    assert all("partition" not in str(device) for device in devices)


def counted_pool() -> list[Object]:
    consumes = [{"counterSet": "s", "counters": {"slices": {"value": "1"}}}]
    counter_sets = [{"name": "s", "counters": {"slices": {"value": "7"}}}]
    return [
        {"sharedCounters": counter_sets},
        *specs("partition-1", "partition-2", consumesCounters=consumes),
    ]


def drop_counters_not_in_use(server: FakeApiServer) -> Callable[[Object], None]:
    """What a server with DRAPartitionableDevices off does."""

    def drop(written: Object) -> None:
        old = server.objects.get((COLLECTION, written["metadata"]["name"]), {})
        if not any(field in str(old) for field in ("sharedCounters", "consumesCounters")):
            written.get("spec", {}).pop("sharedCounters", None)
            for device in written.get("spec", {}).get("devices", []):
                device.pop("consumesCounters", None)

    return drop


def is_complete(server: FakeApiServer) -> bool:
    pools = [item["spec"]["pool"] for item in server.items(COLLECTION)]
    newest = max(pool["generation"] for pool in pools)
    counts = [pool["resourceSliceCount"] for pool in pools if pool["generation"] == newest]
    return counts == [len(counts)] * len(counts)


async def test_a_deleted_slice_that_comes_back_without_counters_does_not_complete_the_pool(
    server: FakeApiServer, observer: Observer
) -> None:
    async with publishing(server, observer) as publisher:
        publisher.update(counted_pool())
        await published(publisher)
        await until(lambda: server.watches == 1)
        assert is_complete(server)
        # From now on the server may do no more than one write.
        before = len(server.writes())
        server.on_write = drop_counters_not_in_use(server)
        server.faults.append(
            lambda method, path: (
                (503, "ServiceUnavailable", {})
                if method in ("POST", "PUT") and len(server.writes()) - before > 1
                else None
            )
        )
        observer.on_drop = lambda: publisher.update(specs("whole"))
        server.remove(COLLECTION, server.items(COLLECTION)[-1]["metadata"]["name"])
        await until(lambda: len(observer.failures) >= 2)
        assert [drop.fields for drop in observer.drops] == [("devices[].consumesCounters",)]
        assert not is_complete(server)
        server.faults.clear()
        await until(lambda: pool(server)[0] == ["whole"])
        assert is_complete(server)


async def test_without_counters_nothing_more_is_written_while_they_are_wanted(
    server: FakeApiServer, observer: Observer
) -> None:
    server.on_write = drop_counters_not_in_use(server)
    async with publishing(server, observer) as publisher:
        publisher.update(counted_pool())
        await until(lambda: len(observer.failures) >= 4)
        assert not is_complete(server)
        assert "without devices[].consumesCounters; no further slice is written" in observer.failures[0]
        assert not publisher.first_published.is_set()
        server.on_write = lambda written: None
        await published(publisher)
    assert is_complete(server)
    devices = [device for item in server.items(COLLECTION) for device in item["spec"].get("devices", [])]
    assert len(devices) == 2
    assert all(device["consumesCounters"] for device in devices)


async def test_b035_ready_only_after_the_first_accepted_publish(
    server: FakeApiServer, observer: Observer
) -> None:
    server.faults.append(lambda method, path: (500, "InternalError", {}) if method == "POST" else None)
    async with publishing(server, observer) as publisher:
        publisher.update(specs("a"))
        await until(lambda: len(observer.failures) >= 2)
        assert not publisher.first_published.is_set()
        server.faults.clear()
        await published(publisher)
    assert "cannot write ResourceSlice 00000-gpu.nvidia.com-n1-: InternalError (500 " in observer.failures[0]


async def test_b036_a_server_without_the_group_version_is_named_once(
    server: FakeApiServer, observer: Observer, caplog: pytest.LogCaptureFixture
) -> None:
    server.unserved.add("/apis/resource.k8s.io/v1")
    with caplog.at_level(logging.ERROR):
        async with publishing(server, observer) as publisher:
            publisher.update(specs("a"))
            await until(lambda: len(observer.failures) >= 5)
            (message,) = {record.getMessage() for record in caplog.records}
            assert len(caplog.records) == 1
            assert "does not serve resource.k8s.io/v1" in message
            assert "Kubernetes 1.34 or newer" in message
            server.unserved.clear()
            await published(publisher)


async def test_a_missing_node_is_named_and_waited_for(server: FakeApiServer, observer: Observer) -> None:
    server.remove(NODES.path(), "n1")
    async with publishing(server, observer) as publisher:
        publisher.update(specs("a"))
        await until(lambda: bool(observer.failures))
        assert "cannot read Node n1, which is to own the slices" in observer.failures[0]
        server.put(NODES.path(), {"metadata": {"name": "n1"}})
        await published(publisher)


async def test_b034_converges_under_random_faults(server: FakeApiServer, observer: Observer) -> None:
    chance = random.Random(34)
    faults: list[Fault | None] = [
        (409, "Conflict", {}),
        (410, "Expired", {}),
        (429, "TooManyRequests", {"Retry-After": "0"}),
        (500, "InternalError", {}),
        (0, "", {}),
        None,
        None,
        None,
    ]
    async with publishing(server, observer) as publisher:
        server.faults.append(lambda method, path: chance.choice(faults))
        for number in range(10):
            wanted = [f"d{number}-{index}" for index in range(chance.randint(1, 4))]
            publisher.update(specs(*wanted))
            server.cut_watches()
            await asyncio.sleep(0.05)
        server.faults.clear()
        await until(lambda: pool(server)[0] == wanted and len(pool(server)[1]) == 1)
    assert observer.failures


async def test_retry_after_is_respected_and_errors_are_not_hammered(
    server: FakeApiServer, observer: Observer
) -> None:
    refused: list[str] = []

    def refuse_once(method: str, path: str) -> Fault | None:
        if method != "POST" or refused:
            return None
        refused.append(path)
        return 429, "TooManyRequests", {"Retry-After": "1"}

    server.faults.append(refuse_once)
    started = time.monotonic()
    async with publishing(server, observer) as publisher:
        publisher.update(specs("a"))
        await published(publisher)
        assert time.monotonic() - started >= 1
        server.faults.append(lambda method, path: (500, "InternalError", {}))
        publisher.update(specs("b"))
        before = len(server.requests)
        await asyncio.sleep(1)
        assert len(server.requests) - before <= 40


async def test_b037_slices_stay_when_it_ends_and_go_when_asked(
    server: FakeApiServer, observer: Observer
) -> None:
    foreign = {
        "metadata": {"name": "other"},
        "spec": {"driver": "other.example.com", "nodeName": "n1", "pool": {}},
    }
    server.put(COLLECTION, foreign)
    async with publishing(server, observer) as publisher:
        publisher.update(specs("a", "b"))
        await published(publisher)
    assert len(server.items(COLLECTION)) == 3
    async with publishing(server, observer) as publisher:
        publisher.update(specs("a", "b"))
        await published(publisher)
        await publisher.delete_all()
        await asyncio.sleep(0.4)
        assert [item["metadata"]["name"] for item in server.items(COLLECTION)] == ["other"]
        server.unserved.add(COLLECTION)
        with pytest.raises(PublishError, match="does not serve"):
            await publisher.delete_all()


async def test_ending_takes_no_time_while_the_server_hangs(server: FakeApiServer, observer: Observer) -> None:
    server.delay = 1.5
    async with publishing(server, observer) as publisher:
        publisher.update(specs("a"))
        await asyncio.sleep(0.1)
        started = time.monotonic()
    assert time.monotonic() - started < 1.2
