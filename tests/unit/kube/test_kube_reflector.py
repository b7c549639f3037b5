"""The reflector's copy stays true through cut watches, expired versions, errors and silence."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from kube.asyncclient import AsyncKubeClient
from kube.backoff import Backoff
from kube.client import KubeClient
from kube.errors import ApiError, ApiUnavailable
from kube.reflector import Change, Reflector
from kube.resources import NODES, Object
from tests.unit.kube.fakeapiserver import FakeApiServer

COLLECTION = NODES.path()


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    fake = FakeApiServer()
    yield fake
    fake.close()


class Seen:
    def __init__(self) -> None:
        self.changes: list[tuple[str, str]] = []
        self.errors: list[ApiError | ApiUnavailable] = []

    def changed(self, change: Change, item: Object) -> None:
        self.changes.append((change, item["metadata"]["name"]))


@contextlib.asynccontextmanager
async def reflecting(server: FakeApiServer, seen: Seen) -> AsyncIterator[Reflector]:
    client = AsyncKubeClient(KubeClient(server.rest_client(), read_timeout=2.0))
    reflector = Reflector(
        client,
        NODES,
        on_change=seen.changed,
        on_error=seen.errors.append,
        backoff=Backoff(0.02, 0.1),
    )
    task = asyncio.create_task(reflector.run())
    try:
        await asyncio.wait_for(reflector.synced.wait(), 5)
        yield reflector
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        client.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - the state of another thread sets no event
            await asyncio.sleep(0.01)


def names(reflector: Reflector) -> list[str]:
    return sorted(name for _, name in reflector.items)


def node(name: str, **labels: str) -> Object:
    return {"metadata": {"name": name, "labels": labels, "managedFields": [{"manager": "m"}]}}


async def test_lists_then_follows(server: FakeApiServer) -> None:
    seen = Seen()
    server.put(COLLECTION, node("a"))
    async with reflecting(server, seen) as reflector:
        server.put(COLLECTION, node("b"))
        server.put(COLLECTION, node("a", x="1"))
        await until(lambda: len(seen.changes) == 3)
        server.remove(COLLECTION, "b")
        await until(lambda: names(reflector) == ["a"])
        assert reflector.items["", "a"]["metadata"]["labels"] == {"x": "1"}
        assert "managedFields" not in reflector.items["", "a"]["metadata"]
    assert seen.changes == [("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")]
    assert seen.errors == []


async def test_a_deletion_in_the_gap_of_an_expired_version_is_seen(server: FakeApiServer) -> None:
    seen = Seen()
    server.put(COLLECTION, node("a"))
    server.put(COLLECTION, node("b"))
    async with reflecting(server, seen) as reflector:
        await until(lambda: server.watches == 1)
        with server.lock:
            server.remove(COLLECTION, "a")
            server.put(COLLECTION, node("c"))
            server.forget_history()
        await until(lambda: names(reflector) == ["b", "c"])
    assert seen.changes[2:] == [("DELETED", "a"), ("ADDED", "c")]
    assert seen.errors == []


async def test_b034_converges_through_errors_and_cut_watches(server: FakeApiServer) -> None:
    seen = Seen()
    async with reflecting(server, seen) as reflector:
        for round_ in range(4):
            server.faults += [
                (500, "InternalError", {}),
                (429, "TooManyRequests", {}),
                (0, "", {}),
                (0, "", {}),
            ]
            server.cut_watches()
            server.put(COLLECTION, node(f"n{round_}"))
            await until(lambda wanted=f"n{round_}": wanted in names(reflector))  # type: ignore[misc]
    assert sorted(name for _, name in seen.changes) == ["n0", "n1", "n2", "n3"]
    assert {type(error) for error in seen.errors} == {ApiError, ApiUnavailable}


async def test_a_server_that_ends_watches_at_once_is_not_asked_in_a_tight_loop(server: FakeApiServer) -> None:
    seen = Seen()
    async with reflecting(server, seen):
        server.faults.append(lambda method, path: (200, "", {}) if "watch=1" in path else None)
        server.cut_watches()
        before = len(server.requests)
        await asyncio.sleep(0.6)
        assert 2 <= len(server.requests) - before <= 30


async def test_cancelling_ends_at_once_while_the_watch_is_silent(server: FakeApiServer) -> None:
    async with reflecting(server, Seen()):
        await until(lambda: server.watches == 1)
        started = time.monotonic()
    assert time.monotonic() - started < 2


def test_the_process_ends_at_once_while_a_request_hangs() -> None:
    program = """
import asyncio, socket
from kube.asyncclient import AsyncKubeClient
from kube.client import KubeClient
from kube.configuration import Configuration, RESTClientObject
from kube.resources import NODES

async def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = f"http://127.0.0.1:{silent.getsockname()[1]}"
        client = AsyncKubeClient(KubeClient(RESTClientObject(Configuration(host=host)), read_timeout=60.0))
        try:
            async with asyncio.timeout(0.2):
                await client.get(NODES, "n1")
        except TimeoutError:
            print("ended", flush=True)

asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=10)
    assert ended.stdout == "ended\n", ended.stderr
    assert ended.returncode == 0
