"""A small API server over real HTTP, for what a real one cannot be asked to do: fail on demand.

It has resourceVersions, 409 on stale writes, field selectors, paging, watches with bookmarks and 410, and
generateName; it lets a test queue faults, cut watches, forget history and drop fields from what is written.
"""

from __future__ import annotations

import copy
import json
import threading
import time
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kube.configuration import Configuration, RESTClientObject

Object = dict[str, Any]
Fault = tuple[int, str, dict[str, str]]
"""Status, reason and headers to answer with instead of doing what was asked."""


class FakeApiServer:
    """State and faults; every public attribute may be changed by a test while requests run."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.version = 100
        self.oldest_version = 0
        self.objects: dict[tuple[str, str], Object] = {}
        self.history: list[tuple[int, str, str, Object]] = []
        self.requests: list[tuple[str, str]] = []
        self.faults: list[Fault | Callable[[str, str], Fault | None]] = []
        self.on_write: Callable[[Object], None] = lambda written: None
        self.unserved: set[str] = set()
        self.kubernetes: object = "v1.37.2"
        self.watches = 0
        self.watch_epoch = 0
        self.delay = 0.0
        handler = type("Handler", (_Handler,), {"api": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def rest_client(self) -> RESTClientObject:
        return RESTClientObject(Configuration(host=self.url))

    def close(self) -> None:
        self.cut_watches()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def put(self, collection: str, item: Object) -> Object:
        """Somebody else creates or changes an object."""
        with self.lock:
            return self._store(collection, copy.deepcopy(item))

    def remove(self, collection: str, name: str) -> None:
        """Somebody else deletes an object."""
        with self.lock:
            self._remove(collection, name)

    def items(self, collection: str) -> list[Object]:
        with self.lock:
            return [
                copy.deepcopy(item) for (path, _), item in sorted(self.objects.items()) if path == collection
            ]

    def cut_watches(self) -> None:
        with self.lock:
            self.watch_epoch += 1
            self.lock.notify_all()

    def forget_history(self) -> None:
        """Compaction: watches from before now get 410, and open ones end with it."""
        with self.lock:
            self.history.clear()
            self.version += 1
            self.oldest_version = self.version
            self.lock.notify_all()

    def writes(self) -> list[tuple[str, str]]:
        return [request for request in self.requests if request[0] in ("POST", "PUT", "PATCH", "DELETE")]

    def _store(self, collection: str, item: Object) -> Object:
        metadata = item.setdefault("metadata", {})
        if "name" not in metadata:
            metadata["name"] = metadata["generateName"][:58] + uuid.uuid4().hex[:5]
        key = (collection, metadata["name"])
        old = self.objects.get(key)
        metadata["uid"] = old["metadata"]["uid"] if old else str(uuid.uuid4())
        self.on_write(item)
        if old and {**item, "metadata": {**metadata, "resourceVersion": ""}} == {
            **old,
            "metadata": {**old["metadata"], "resourceVersion": ""},
        }:
            return old
        self.version += 1
        metadata["resourceVersion"] = str(self.version)
        self.objects[key] = item
        self.history.append((self.version, collection, "MODIFIED" if old else "ADDED", copy.deepcopy(item)))
        self.lock.notify_all()
        return item

    def _remove(self, collection: str, name: str) -> None:
        item = self.objects.pop((collection, name))
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        self.history.append((self.version, collection, "DELETED", item))
        self.lock.notify_all()


class _Refused(Exception):
    def __init__(self, status: int, reason: str, message: str = "") -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message or reason


def _matches(item: Object, selector: str) -> bool:
    for term in filter(None, selector.split(",")):
        path, _, wanted = term.partition("=")
        value: Any = item
        for part in path.split("."):
            value = value.get(part, {}) if isinstance(value, dict) else {}
        if value != wanted:
            return False
    return True


class _Handler(BaseHTTPRequestHandler):
    api: FakeApiServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        """Requests are recorded, not printed."""

    def do_GET(self) -> None:
        self._handle("GET")

    def do_POST(self) -> None:
        self._handle("POST")

    def do_PUT(self) -> None:
        self._handle("PUT")

    def do_PATCH(self) -> None:
        self._handle("PATCH")

    def do_DELETE(self) -> None:
        self._handle("DELETE")

    def _handle(self, method: str) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        if self.api.delay:
            time.sleep(self.api.delay)
        try:
            with self.api.lock:
                self.api.requests.append((method, self.path))
                if self._faulty(method):
                    return
                if any(url.path.startswith(prefix) for prefix in self.api.unserved):
                    self._answer_text(404, "404 page not found\n")
                    return
            if query.get("watch"):
                self._watch(url.path, query)
                return
            if url.path == "/version":
                self._answer(200, {"gitVersion": self.api.kubernetes})
                return
            with self.api.lock:
                answer, status = self._act(method, url.path, query, body)
                self._answer(status, answer)
        except _Refused as refused:
            self._refuse(refused.status, refused.reason, {}, refused.message)

    def _faulty(self, method: str) -> bool:
        while self.api.faults:
            fault = self.api.faults[0]
            if callable(fault):
                made = fault(method, self.path)
                if made is None:
                    return False
                fault = made
            else:
                self.api.faults.pop(0)
            if fault[0] == 0:
                self.close_connection = True
                return True
            self._refuse(*fault)
            return True
        return False

    def _act(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[Object, int]:
        api = self.api
        collection, _, name = path.rpartition("/")
        if method == "POST":
            if (path, body["metadata"].get("name")) in api.objects:
                raise _Refused(409, "AlreadyExists")
            if query.get("dryRun"):
                api.on_write(body)
                return body, 201
            return api._store(path, body), 201
        if (collection, name) not in api.objects:
            if method == "GET" and name.endswith("s"):
                return self._list(path, query), 200
            raise _Refused(404, "NotFound", f'"{name}" not found')
        stored = api.objects[collection, name]
        if method == "GET":
            return stored, 200
        metadata = stored["metadata"]
        if method == "DELETE":
            conditions = (body or {}).get("preconditions", {})
            if any(metadata[key] != value for key, value in conditions.items()):
                raise _Refused(409, "Conflict", "precondition failed")
            api._remove(collection, name)
            return {"kind": "Status", "status": "Success"}, 200
        if method == "PATCH":
            body = {**stored, **body, "metadata": {**metadata, **body.get("metadata", {})}}
        elif (
            body["metadata"].get("resourceVersion", metadata["resourceVersion"])
            != metadata["resourceVersion"]
        ):
            raise _Refused(409, "Conflict", "the object has been modified")
        return api._store(collection, copy.deepcopy(body)), 200

    def _list(self, path: str, query: dict[str, str]) -> Object:
        items = [
            item
            for (collection, _), item in sorted(self.api.objects.items())
            if collection == path and _matches(item, query.get("fieldSelector", ""))
        ]
        start, limit = int(query.get("continue", 0)), int(query.get("limit", 500))
        metadata = {"resourceVersion": str(self.api.version)}
        if start + limit < len(items):
            metadata["continue"] = str(start + limit)
        return {"kind": "List", "metadata": metadata, "items": items[start : start + limit]}

    def _watch(self, path: str, query: dict[str, str]) -> None:
        api = self.api
        since = int(query["resourceVersion"])
        ends = time.monotonic() + float(query.get("timeoutSeconds", 60))
        with api.lock:
            epoch = api.watch_epoch
            if since < api.oldest_version:
                raise _Refused(410, "Expired", "too old resource version")
            api.watches += 1
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        selector = query.get("fieldSelector", "")
        while True:
            events: list[Object] = []
            expired = False
            with api.lock:
                while not events and epoch == api.watch_epoch and time.monotonic() < ends:
                    if since < api.oldest_version:
                        expired = True
                        break
                    for version, collection, kind, item in api.history:
                        if version > since and collection == path and _matches(item, selector):
                            events.append({"type": kind, "object": item})
                    if api.version > since:
                        bookmark = {"metadata": {"resourceVersion": str(api.version)}}
                        events.append({"type": "BOOKMARK", "object": bookmark})
                        since = api.version
                    if not events:
                        api.lock.wait(0.5)
            if expired:
                gone = {
                    "kind": "Status",
                    "code": 410,
                    "reason": "Expired",
                    "message": "too old resource version",
                }
                events = [{"type": "ERROR", "object": gone}]
            if not events:
                break
            try:
                for event in events:
                    line = json.dumps(event).encode() + b"\n"
                    self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
            except OSError:
                return
            if expired:
                break
        with api.lock:
            cut = epoch != api.watch_epoch
        if cut:
            self.close_connection = True
        else:
            self.wfile.write(b"0\r\n\r\n")

    def _refuse(self, status: int, reason: str, headers: dict[str, str], message: str = "") -> None:
        content = {"kind": "Status", "code": status, "reason": reason, "message": message or reason}
        self._answer(status, content, headers)

    def _answer(self, status: int, content: Object, headers: dict[str, str] | None = None) -> None:
        self._send(
            status, json.dumps(content).encode(), {"Content-Type": "application/json", **(headers or {})}
        )

    def _answer_text(self, status: int, text: str) -> None:
        self._send(status, text.encode(), {"Content-Type": "text/plain"})

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
