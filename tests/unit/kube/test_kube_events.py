"""Events: counted when they repeat, bounded when there are many, and never in the way."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from kube.asyncclient import AsyncKubeClient
from kube.backoff import Backoff
from kube.client import KubeClient
from kube.events import MESSAGE_BYTES, OBJECT_BURST, EventRecorder, ObjectReference
from kube.resources import EVENTS, Object
from tests.unit.kube.fakeapiserver import FakeApiServer

NODE = ObjectReference("v1", "Node", "n1", uid="n1")
POD = ObjectReference("v1", "Pod", "p", "team", "uid-p")


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    fake = FakeApiServer()
    yield fake
    fake.close()


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@contextlib.asynccontextmanager
async def recording(server: FakeApiServer, clock: Clock, start: bool = True) -> AsyncIterator[EventRecorder]:
    client = AsyncKubeClient(KubeClient(server.rest_client(), read_timeout=2.0))
    recorder = EventRecorder(
        client, component="gpu.nvidia.com", host="n1", clock=clock, backoff=Backoff(0.01, 0.05)
    )
    task = asyncio.create_task(recorder.run() if start else asyncio.sleep(0))
    try:
        yield recorder
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        client.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - the state of another thread sets no event
            await asyncio.sleep(0.01)


def events(server: FakeApiServer, namespace: str = "default") -> list[Object]:
    return server.items(EVENTS.path(namespace))


async def test_event_has_what_kubectl_describe_looks_for(server: FakeApiServer) -> None:
    async with recording(server, Clock()) as recorder:
        recorder.warning(POD, "PrepareFailed", "device gpu-0 is in use")
        await until(lambda: len(events(server, "team")) == 1)
        recorder.normal(NODE, "Published", "8 devices")
        await until(lambda: len(events(server)) == 1)
    (event,) = events(server, "team")
    name = event["metadata"].pop("name")
    assert name.startswith("p.")
    del event["metadata"]["uid"], event["metadata"]["resourceVersion"]
    assert event == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": "team"},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": "p",
            "namespace": "team",
            "uid": "uid-p",
        },
        "type": "Warning",
        "reason": "PrepareFailed",
        "message": "device gpu-0 is in use",
        "source": {"component": "gpu.nvidia.com", "host": "n1"},
        "reportingComponent": "gpu.nvidia.com",
        "reportingInstance": "n1",
        "firstTimestamp": "2027-01-15T08:00:00Z",
        "lastTimestamp": "2027-01-15T08:00:00Z",
        "count": 1,
    }
    assert events(server)[0]["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Node",
        "name": "n1",
        "uid": "n1",
    }


async def test_repeated_events_become_a_count_written_once_a_minute(server: FakeApiServer) -> None:
    clock = Clock()
    async with recording(server, clock) as recorder:
        recorder.warning(NODE, "R", "m")
        await until(lambda: len(events(server)) == 1)
        for _ in range(5):
            clock.now += 5
            recorder.warning(NODE, "R", "m")
        await asyncio.sleep(0.1)
        assert len(server.writes()) == 1
        clock.now += 60
        recorder.warning(NODE, "R", "m")
        await until(lambda: events(server)[0]["count"] == 7)
        assert len(server.writes()) == 2
        clock.now += 601
        recorder.warning(NODE, "R", "m")
        await until(lambda: len(events(server)) == 2)


async def test_an_expired_event_is_written_anew(server: FakeApiServer) -> None:
    clock = Clock()
    async with recording(server, clock) as recorder:
        recorder.warning(NODE, "R", "m")
        await until(lambda: len(events(server)) == 1)
        server.remove(EVENTS.path("default"), events(server)[0]["metadata"]["name"])
        clock.now += 100
        recorder.warning(NODE, "R", "m")
        await until(lambda: [event["count"] for event in events(server)] == [2])


async def test_an_object_gets_a_burst_and_others_are_not_affected(server: FakeApiServer) -> None:
    clock = Clock()
    async with recording(server, clock) as recorder:
        for number in range(OBJECT_BURST + 10):
            recorder.warning(NODE, "R", f"message {number}")
        recorder.warning(POD, "R", "m")
        await until(lambda: len(events(server, "team")) == 1)
        assert len(events(server)) == OBJECT_BURST
        assert recorder.lost == 10
        clock.now += 300
        recorder.warning(NODE, "R", "later")
        await until(lambda: len(events(server)) == OBJECT_BURST + 1)


async def test_memory_is_bounded_while_nothing_can_be_written(server: FakeApiServer) -> None:
    async with recording(server, Clock(), start=False) as recorder:
        for number in range(3000):
            recorder.warning(ObjectReference("v1", "Pod", f"p{number}", "team"), "R", "m")
        assert recorder.lost == 3000 - 256


async def test_errors_are_tried_again_and_never_raised(
    server: FakeApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with recording(server, Clock()) as recorder:
        server.faults += [(503, "ServiceUnavailable", {}), (0, "", {}), (429, "TooManyRequests", {})]
        recorder.warning(NODE, "R", "m")
        await until(lambda: len(events(server)) == 1)
        with caplog.at_level(logging.WARNING):
            server.faults += [(403, "Forbidden", {}), (403, "Forbidden", {})]
            recorder.warning(NODE, "R", "refused")
            recorder.warning(NODE, "R", "refused as well")
            await until(lambda: recorder.lost == 2)
        assert len([record for record in caplog.records if "refused" in record.getMessage()]) == 1
        recorder.warning(NODE, "R", "again")
        await until(lambda: len(events(server)) == 2)


@pytest.mark.parametrize("message", ["é" * 2000, "x" * 1025, "\udcff" * 2000, "short"])
async def test_messages_are_cut_at_the_limit_of_the_api(server: FakeApiServer, message: str) -> None:
    async with recording(server, Clock()) as recorder:
        recorder.warning(NODE, "R", message)
        await until(lambda: len(events(server)) == 1)
    written = events(server)[0]["message"]
    assert len(written.encode()) <= MESSAGE_BYTES
    assert written.endswith("…") or written == message


async def test_names_stay_within_their_limit(server: FakeApiServer) -> None:
    async with recording(server, Clock()) as recorder:
        recorder.warning(ObjectReference("v1", "Pod", "p" * 253, "team"), "R", "m")
        await until(lambda: len(events(server, "team")) == 1)
    assert len(events(server, "team")[0]["metadata"]["name"]) <= 253
