"""Probes and metrics over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry, Counter

from kube.probes import ProbeServer
from tests.cluster.controlplane import free_ports


class Served:
    def __init__(self) -> None:
        self.port = free_ports(1)[0]
        self.registry = CollectorRegistry()
        self.problems: dict[str, list[str]] = {"healthy": [], "ready": []}
        self.server = ProbeServer(("127.0.0.1", self.port), self.registry, self.healthy, self.ready)

    async def healthy(self) -> list[str]:
        return self.problems["healthy"]

    async def ready(self) -> list[str]:
        return self.problems["ready"]

    async def raw(self, request: bytes) -> tuple[str, str]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request)
        answer = (await asyncio.wait_for(reader.read(), 5)).decode()
        writer.close()
        head, _, body = answer.partition("\r\n\r\n")
        return head.split("\r\n")[0], body

    async def get(self, path: str) -> tuple[str, str]:
        return await self.raw(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    made = Served()
    task = asyncio.create_task(made.server.run())
    async with asyncio.timeout(5):
        while True:
            try:
                await made.get("/metrics")
                break
            except OSError:
                await asyncio.sleep(0.01)
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_checks_answer_with_their_problems(served: Served) -> None:
    assert await served.get("/healthz") == ("HTTP/1.1 200 OK", "ok\n")
    served.problems["ready"] = ["not registered yet", "no slices"]
    assert await served.get("/readyz?verbose") == (
        "HTTP/1.1 503 Service Unavailable",
        "not registered yet\nno slices\n",
    )
    assert (await served.get("/healthz"))[0] == "HTTP/1.1 200 OK"


async def test_metrics_are_those_of_the_registry(served: Served) -> None:
    Counter("things", "Things.", registry=served.registry).inc(3)
    status, body = await served.get("/metrics")
    assert status == "HTTP/1.1 200 OK"
    assert "things_total 3.0" in body


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /other HTTP/1.1\r\n\r\n", "HTTP/1.1 404 Not Found"),
        (b"POST /healthz HTTP/1.1\r\n\r\n", "HTTP/1.1 405 Method Not Allowed"),
        (b"\xff\xfe nonsense\r\n\r\n", "HTTP/1.1 405 Method Not Allowed"),
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n", ""),
    ],
)
async def test_other_requests_get_a_plain_answer_or_none(
    served: Served, request_bytes: bytes, status: str
) -> None:
    try:
        answer = (await served.raw(request_bytes))[0]
    except ConnectionResetError:
        answer = ""
    assert answer == status
    assert await served.get("/healthz") == ("HTTP/1.1 200 OK", "ok\n")
