"""Probes and metrics over HTTP: ``/metrics``, ``/healthz`` (alive), ``/readyz`` (of use)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

_REQUEST_SECONDS = 10.0
_LONGEST_REQUEST_BYTES = 8192

Check = Callable[[], Awaitable[list[str]]]
"""Returns what is wrong, in words; empty if all is well."""

log = logging.getLogger(__name__)


class ProbeServer:
    """A small HTTP server for the kubelet's probes and for Prometheus; GET only, one request a connection."""

    def __init__(
        self, address: tuple[str, int], registry: CollectorRegistry, healthy: Check, ready: Check
    ) -> None:
        """``address`` is host and port; an empty host means all addresses."""
        self._host, self._port = address
        self._registry = registry
        self._checks = {"/healthz": healthy, "/readyz": ready}

    async def run(self) -> None:
        """Serve until cancelled.

        Raises:
            OSError: the address is in use or not allowed.
        """
        server = await asyncio.start_server(
            self._serve, self._host or None, self._port, limit=_LONGEST_REQUEST_BYTES, reuse_address=True
        )
        async with server:
            await server.serve_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                status, kind, body = await self._answer(head)
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
                    "Connection: close\r\n\r\n".encode()
                    + body
                )
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            log.debug("an HTTP request was not answered: %r", error)
        finally:
            writer.close()

    async def _answer(self, head: bytes) -> tuple[str, str, bytes]:
        method, _, rest = head.partition(b" ")
        path = rest.split(b" ", 1)[0].split(b"?", 1)[0].decode("ascii", "replace")
        text = "text/plain; charset=utf-8"
        if method != b"GET":
            return "405 Method Not Allowed", text, b"only GET\n"
        if path == "/metrics":
            return "200 OK", CONTENT_TYPE_LATEST, generate_latest(self._registry)
        check = self._checks.get(path)
        if check is None:
            return "404 Not Found", text, b"try /metrics, /healthz or /readyz\n"
        problems = await check()
        if problems:
            return "503 Service Unavailable", text, ("\n".join(problems) + "\n").encode()
        return "200 OK", text, b"ok\n"
