"""The release of Kubernetes, and in which ways devices with counters are shared for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest

from driver.shares import EVERY_MODE, Release, ShareMode, counted_modes
from kube.asyncclient import AsyncKubeClient
from kube.backoff import Backoff
from kube.client import KubeClient
from kubeletplugin.serverversion import ServerVersion, parse_release
from tests.unit.kube.fakeapiserver import FakeApiServer
from tests.unit.kubeletplugin.test_publisher import until

KNOWN = EVERY_MODE - {ShareMode.UNLIMITED}


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    fake = FakeApiServer()
    yield fake
    fake.close()


@contextlib.asynccontextmanager
async def asking(server: FakeApiServer) -> AsyncIterator[ServerVersion]:
    client = AsyncKubeClient(KubeClient(server.rest_client(), read_timeout=2.0))
    version = ServerVersion(client, period=0.05, backoff=Backoff(0.02, 0.05))
    task = asyncio.create_task(version.run())
    try:
        yield version
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        client.close()


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("v1.36.3", (1, 36, 3)),
        ("v1.36.10-gke.1027000", (1, 36, 10)),
        ("v1.37.2+k3s1", (1, 37, 2)),
        ("1.37.0", (1, 37, 0)),
        ("v1.37", None),
        ("v1.37.2.1", None),
        ("", None),
        ("main", None),
    ],
)
def test_a_version_as_servers_write_it(version: str, release: Release | None) -> None:
    assert parse_release(version) == release


@pytest.mark.parametrize(
    ("release", "modes"),
    [
        (None, frozenset()),
        ((1, 34, 9), frozenset()),
        ((1, 36, 2), frozenset()),
        ((1, 36, 3), KNOWN),
        ((1, 36, 12), KNOWN),
        ((1, 37, 0), EVERY_MODE),
        ((2, 0, 0), EVERY_MODE),
    ],
)
def test_modes_that_a_scheduler_counts_right(release: Release | None, modes: frozenset[ShareMode]) -> None:
    assert counted_modes(release) == modes


async def test_the_server_is_asked_when_somebody_needs_it_and_again_after_an_upgrade(
    server: FakeApiServer,
) -> None:
    server.kubernetes = "v1.36.2"
    async with asking(server) as version:
        await asyncio.sleep(0.1)
        assert server.requests == []
        assert await asyncio.wait_for(version.answer(), 5) == (1, 36, 2)
        version.changed.clear()
        server.kubernetes = "v1.36.3"
        await asyncio.wait_for(version.changed.wait(), 5)
        assert (version.release, version.version) == ((1, 36, 3), "v1.36.3")


@pytest.mark.parametrize("told", [None, 7, "unknown"])
async def test_a_server_that_tells_no_release(server: FakeApiServer, told: object) -> None:
    server.kubernetes = told
    async with asking(server) as version:
        assert await asyncio.wait_for(version.answer(), 5) is None
        assert version.version


async def test_a_server_that_does_not_let_us_ask_is_of_no_release(server: FakeApiServer) -> None:
    server.faults.append(lambda method, path: (403, "Forbidden", {}))
    async with asking(server) as version:
        assert await asyncio.wait_for(version.answer(), 5) is None
        assert "Forbidden" in version.version


async def test_a_server_that_fails_later_keeps_its_release(server: FakeApiServer) -> None:
    async with asking(server) as version:
        assert await asyncio.wait_for(version.answer(), 5) == (1, 37, 2)
        server.faults.append(lambda method, path: (500, "InternalError", {}))
        count = len(server.requests)
        await until(lambda: len(server.requests) >= count + 3)
        assert version.release == (1, 37, 2)
