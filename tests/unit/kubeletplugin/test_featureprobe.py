"""Whether the API server stores shared counters, asked in a dry run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from kube.asyncclient import AsyncKubeClient
from kube.backoff import Backoff
from kube.client import KubeClient
from kube.resources import RESOURCE_SLICES, Object
from kubeletplugin.featureprobe import COUNTERS, FeatureProbe
from kubeletplugin.metrics import Metrics
from kubeletplugin.publisher import DroppedFields
from tests.unit.kube.fakeapiserver import FakeApiServer
from tests.unit.kubeletplugin.test_publisher import until

COLLECTION = RESOURCE_SLICES.path()


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    fake = FakeApiServer()
    yield fake
    fake.close()


@contextlib.asynccontextmanager
async def probing(server: FakeApiServer, metrics: Metrics | None = None) -> AsyncIterator[FeatureProbe]:
    client = AsyncKubeClient(KubeClient(server.rest_client(), read_timeout=2.0))
    probe = FeatureProbe(
        client,
        COUNTERS,
        (metrics or Metrics()).counters_supported,
        driver="gpu.nvidia.com",
        node_name="n1.example",
        period=0.05,
        backoff=Backoff(0.02, 0.05),
    )
    task = asyncio.create_task(probe.run())
    try:
        yield probe
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        client.close()


def without_counters(written: Object) -> None:
    written["spec"].pop("sharedCounters", None)
    for device in written["spec"].get("devices", []):
        device.pop("consumesCounters", None)


def only_without_consumption(written: Object) -> None:
    for device in written["spec"].get("devices", []):
        device.pop("consumesCounters", None)


async def test_counters_that_come_back_are_supported_and_nothing_is_stored(server: FakeApiServer) -> None:
    metrics = Metrics()
    async with probing(server, metrics) as probe:
        assert await asyncio.wait_for(probe.answer(), 5)
        assert probe.reason == ""
    assert server.items(COLLECTION) == []
    assert all("dryRun=All" in path for method, path in server.requests if method == "POST")
    assert metrics.registry.get_sample_value("gpudra_counters_supported") == 1


async def test_the_server_is_not_asked_before_the_answer_is_needed(server: FakeApiServer) -> None:
    async with probing(server):
        await asyncio.sleep(0.1)
    assert server.requests == []


@pytest.mark.parametrize(
    ("drop", "field"),
    [(without_counters, "sharedCounters"), (only_without_consumption, "devices[].consumesCounters")],
)
async def test_b030_counters_that_are_left_out_are_named(
    server: FakeApiServer, drop: Callable[[Object], None], field: str
) -> None:
    server.on_write = drop
    async with probing(server) as probe:
        assert not await asyncio.wait_for(probe.answer(), 5)
        assert field in probe.reason


async def test_b030_a_server_that_refuses_the_layout(server: FakeApiServer) -> None:
    server.faults = [lambda method, path: (422, "Invalid", {}) if method == "POST" else None]
    async with probing(server) as probe:
        assert not await asyncio.wait_for(probe.answer(), 5)
        assert "422" in probe.reason


async def test_without_an_answer_there_is_none(server: FakeApiServer) -> None:
    server.faults = [(503, "ServiceUnavailable", {})] * 3
    async with probing(server) as probe:
        assert await asyncio.wait_for(probe.answer(), 5)
    assert len(server.requests) >= 5


async def test_a_cluster_that_is_upgraded_and_set_back(server: FakeApiServer) -> None:
    server.on_write = without_counters
    async with probing(server) as probe:
        assert not await asyncio.wait_for(probe.answer(), 5)
        probe.changed.clear()
        server.on_write = lambda written: None
        await until(lambda: probe.supported)
        assert probe.changed.is_set()
        server.on_write = without_counters
        await until(lambda: not probe.supported)


async def test_an_answered_probe_keeps_its_answer_while_the_server_refuses_to_tell(
    server: FakeApiServer,
) -> None:
    async with probing(server) as probe:
        assert await asyncio.wait_for(probe.answer(), 5)
        before = len(server.requests)
        server.faults = [(403, "Forbidden", {})] * 4
        await until(lambda: len(server.requests) > before + 6)
        assert probe.supported


@pytest.mark.parametrize(
    ("fields", "refuted"),
    [
        (("sharedCounters",), True),
        (("devices[].allowMultipleAllocations", "devices[].consumesCounters"), True),
        (("devices[].taints",), False),
    ],
)
async def test_a_slice_that_lost_its_counters_is_an_answer(
    server: FakeApiServer, fields: tuple[str, ...], refuted: bool
) -> None:
    async with probing(server) as probe:
        assert await asyncio.wait_for(probe.answer(), 5)
        assert probe.refuted_by(DroppedFields("00000-x", 0, fields)) is refuted
        assert probe.supported is not refuted
