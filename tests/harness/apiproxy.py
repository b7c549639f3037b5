"""A proxy before the API server that can fail: answers of its own, held requests, cut watches."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import urllib3
import yaml

from tests.cluster.controlplane import ControlPlane


@dataclass(frozen=True)
class Request:
    """One request; ``path`` is without the query."""

    verb: str
    path: str
    query: dict[str, list[str]]

    @property
    def is_watch(self) -> bool:
        return "watch" in self.query

    @property
    def is_slice_write(self) -> bool:
        return self.verb in ("POST", "PUT", "DELETE") and "/resourceslices" in self.path


@dataclass(frozen=True)
class Refusal:
    """An error answer, as the API server would give it; ``retry_after`` in seconds."""

    status: int
    reason: str
    retry_after: int | None = None


@dataclass(frozen=True)
class Away:
    """No answer: the connection is closed, as by a server that has gone."""


Intercept = Callable[[Request], Refusal | Away | None]
"""Called in the thread of each request, before it is passed on; may block."""

Rewrite = Callable[[Request, bytes], bytes]
"""What to pass on in place of a request's body."""


@dataclass
class ApiProxy:
    """A running proxy.

    ``intercept`` and ``rewrite`` may be changed at any time; ``requests`` is what came so far.
    """

    url: str
    kubeconfig: Path
    intercept: Intercept | None = None
    rewrite: Rewrite | None = None
    requests: list[Request] = field(default_factory=list)
    _watches: set[socket.socket] = field(default_factory=set)

    def count(self, wanted: Callable[[Request], bool]) -> int:
        return sum(wanted(request) for request in list(self.requests))

    def cut_watches(self) -> int:
        """Break the connections of all open watches; returns how many."""
        cut = list(self._watches)
        for connection in cut:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        return len(cut)


@contextlib.contextmanager
def api_proxy(control_plane: ControlPlane, name: str) -> Iterator[ApiProxy]:
    """A proxy that passes requests on as an administrator; its ``kubeconfig`` needs no credentials."""
    pki = control_plane.workspace.path / "pki"
    pool = urllib3.PoolManager(
        ca_certs=str(control_plane.authority),
        cert_file=str(pki / "admin.crt"),
        key_file=str(pki / "admin.key"),
        maxsize=16,
        retries=False,
    )

    class Handler(_Handler):
        upstream = control_plane.url
        connections = pool

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    url = f"http://127.0.0.1:{server.server_address[1]}"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "proxy", "cluster": {"server": url}}],
        "users": [{"name": "nobody", "user": {}}],
        "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "nobody"}}],
        "current-context": "proxy",
    }
    path = control_plane.workspace.write(f"kubeconfig/{name}.yaml", yaml.safe_dump(config))
    proxy = Handler.proxy = ApiProxy(url, path)
    thread = threading.Thread(target=server.serve_forever, name="api-proxy", daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.cut_watches()
        server.shutdown()
        server.server_close()
        thread.join(5.0)
        pool.clear()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: ApiProxy
    upstream: str
    connections: urllib3.PoolManager

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = Request(self.command, parts.path, parse_qs(parts.query))
        self.proxy.requests.append(request)
        refusal = self.proxy.intercept(request) if self.proxy.intercept else None
        with contextlib.suppress(OSError):
            if isinstance(refusal, Away):
                self.close_connection = True
            elif refusal is not None:
                self._refuse(refusal)
            else:
                self._pass_on(request, self.proxy.rewrite(request, body) if self.proxy.rewrite else body)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815

    def _refuse(self, refusal: Refusal) -> None:
        status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "reason": refusal.reason,
            "message": f"made up by the test: {refusal.reason}",
            "code": refusal.status,
        }
        body = json.dumps(status).encode()
        self.send_response(refusal.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if refusal.retry_after is not None:
            self.send_header("Retry-After", str(refusal.retry_after))
        self.end_headers()
        self.wfile.write(body)

    def _pass_on(self, request: Request, body: bytes) -> None:
        headers = {
            name: text
            for name in ("Accept", "Content-Type", "User-Agent")
            if (text := self.headers.get(name))
        }
        try:
            response = self.connections.request(
                self.command,
                self.upstream + self.path,
                body=body or None,
                headers=headers,
                preload_content=False,
                timeout=urllib3.Timeout(connect=2.0, read=None if request.is_watch else 30.0),
            )
        except urllib3.exceptions.HTTPError:
            self.close_connection = True
            return
        if request.is_watch:
            self.proxy._watches.add(self.connection)
        try:
            self._stream(response)
        finally:
            self.proxy._watches.discard(self.connection)
            response.close()

    def _stream(self, response: urllib3.BaseHTTPResponse) -> None:
        self.send_response(response.status)
        for name in ("Content-Type", "Retry-After"):
            if name in response.headers:
                self.send_header(name, response.headers[name])
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for chunk in response.stream(65536):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        """Say nothing: what was asked is in ``requests``."""
