"""The API server over plain dicts: blocking calls on the official client's transport.

Typed models are left out on purpose: each model tree that is used costs a process 13 MiB and more.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

import urllib3

from kube.configuration import RESTClientObject, load_rest_client
from kube.errors import ApiError, ApiTooDeep, ApiUnavailable
from kube.resources import Object, Resource

JSON = "application/json"
METADATA = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

OnRequest = Callable[[str, str, float], None]
"""Called after each request with its verb (``GET``, ``LIST``, ``WATCH``, ``POST``, …), its HTTP status
(``<error>`` when no answer came) and its duration in seconds. Called from the thread of the request."""

WatchEvent = tuple[str, Object]
""""ADDED", "MODIFIED", "DELETED" or "BOOKMARK", and the object (a bookmark has only its resourceVersion)."""


class WatchStream:
    """One open watch. Iterating blocks for the next batch; ``stop`` ends it from any thread."""

    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self._response = response
        self._stopped = False

    def __iter__(self) -> Iterator[list[WatchEvent]]:
        """Yields events as they arrive, at least one at a time, until the server ends the watch or ``stop``.

        Raises:
            ApiError: the server sent an ``ERROR`` event; 410 means that a new list is needed.
            ApiUnavailable: the connection broke.
        """
        rest = b""
        try:
            for chunk in self._response.stream(65536):
                *lines, rest = (rest + chunk).split(b"\n")
                events = [_watch_event(line) for line in lines if line.strip()]
                if events:
                    yield events
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            if not self._stopped:
                raise ApiUnavailable(f"the watch broke: {error}") from error

    def stop(self) -> None:
        self._stopped = True
        try:
            self._response.shutdown()
        except (RuntimeError, ValueError, OSError):
            # Nobody reads any more: the stream has ended, or the peer is gone.
            return

    def close(self) -> None:
        """To be called by the thread that iterates, when it is done."""
        self._response.close()


def _watch_event(line: bytes) -> WatchEvent:
    try:
        event = json.loads(line)
        kind, item = event["type"], event["object"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ApiUnavailable(f"the watch sent something that is no event: {line[:200]!r}") from error
    if kind == "ERROR":
        raise ApiError.from_status(item)
    return kind, item


class KubeClient:
    """Requests to the API server, callable from many threads.

    Every method raises :class:`ApiError` for an answer that is an error, and :class:`ApiUnavailable` when
    none comes.
    ``connect_timeout`` and ``read_timeout`` are in seconds.
    """

    def __init__(
        self,
        rest_client: RESTClientObject,
        *,
        user_agent: str = "gpu-dra-driver",
        connect_timeout: float = 5.0,
        read_timeout: float = 10.0,
        on_request: OnRequest | None = None,
    ) -> None:
        self._configuration = rest_client.configuration
        self._pool = rest_client.pool_manager
        self._host: str = self._configuration.host.rstrip("/")
        self._user_agent = user_agent
        self._timeout = urllib3.Timeout(connect=connect_timeout, read=read_timeout)
        self._connect_timeout = connect_timeout
        self._on_request = on_request

    @classmethod
    def load(cls, kubeconfig: Path | None = None, **options: Any) -> Self:
        """A client from a kubeconfig, ``$KUBECONFIG`` or the pod's service account; options of the class."""
        return cls(load_rest_client(kubeconfig), **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._pool.clear()

    @property
    def server(self) -> str:
        """The URL of the API server."""
        return self._host

    def version(self) -> Object:
        """What the API server is: ``gitVersion`` and others. Everybody who is authenticated may ask."""
        return self._call("GET", "/version")

    def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        return self._call("GET", resource.path(namespace, name))

    def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        field_selector: str | None = None,
        label_selector: str | None = None,
        page_size: int = 500,
        transform: Callable[[Object], Object] | None = None,
        metadata_only: bool = False,
    ) -> tuple[list[Object], str]:
        """All objects, fetched in pages, and the resourceVersion to watch from.

        With ``metadata_only`` the objects have nothing but their ``metadata``.

        ``transform`` cuts each object down before the next page comes: large lists then need little memory.
        """
        query = _selectors(field_selector, label_selector)
        query["limit"] = str(page_size)
        items: list[Object] = []
        while True:
            accept = METADATA_LIST if metadata_only else JSON
            page = self._call("GET", resource.path(namespace), query, verb="LIST", accept=accept)
            found = page.get("items") or []
            items += found if transform is None else map(transform, found)
            following = page["metadata"].get("continue")
            if not following:
                return items, page["metadata"]["resourceVersion"]
            query["continue"] = following

    def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        resource_version: str,
        field_selector: str | None = None,
        label_selector: str | None = None,
        timeout: float = 300.0,
        metadata_only: bool = False,
    ) -> WatchStream:
        """Opens a watch with bookmarks; the server ends it after ``timeout`` seconds."""
        query = _selectors(field_selector, label_selector)
        query |= {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(max(1, round(timeout))),
        }
        # A server that has gone without a word is noticed when its own time limit has long passed.
        limit = urllib3.Timeout(connect=self._connect_timeout, read=timeout + 30.0)
        response = self._send(
            "GET",
            resource.path(namespace),
            query,
            verb="WATCH",
            timeout=limit,
            stream=True,
            accept=METADATA if metadata_only else JSON,
        )
        return WatchStream(response)

    def create(
        self,
        resource: Resource,
        body: Object,
        namespace: str | None = None,
        *,
        dry_run: bool = False,
        of: tuple[str, str] | None = None,
    ) -> Object:
        """POST; with ``dry_run`` the answer is what would be stored, and nothing is.

        ``of`` is the name of an object and of its subresource that is made, such as a pod's ``eviction``.
        """
        query, verb = ({"dryRun": "All"}, "DRYRUN") if dry_run else (None, None)
        path = resource.path(namespace, *(of or ()))
        return self._call("POST", path, query, body=body, verb=verb)

    def replace(
        self,
        resource: Resource,
        name: str,
        body: Object,
        namespace: str | None = None,
        *,
        subresource: str | None = None,
    ) -> Object:
        """PUT; with ``metadata.resourceVersion`` in the body only if that is still the newest."""
        return self._call("PUT", resource.path(namespace, name, subresource), body=body)

    def patch(
        self,
        resource: Resource,
        name: str,
        body: Object | Sequence[Object],
        namespace: str | None = None,
        *,
        subresource: str | None = None,
        content_type: str = MERGE_PATCH,
    ) -> Object:
        return self._call(
            "PATCH", resource.path(namespace, name, subresource), body=body, content_type=content_type
        )

    def apply(
        self,
        resource: Resource,
        name: str,
        body: Object,
        namespace: str | None = None,
        *,
        field_manager: str,
        force: bool = True,
        subresource: str | None = None,
    ) -> Object:
        """Server-side apply."""
        return self._call(
            "PATCH",
            resource.path(namespace, name, subresource),
            {"fieldManager": field_manager, "force": "true" if force else "false"},
            body=body,
            content_type=APPLY_PATCH,
            verb="APPLY",
        )

    def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
    ) -> None:
        """Deletes; with ``uid`` or ``resource_version`` only that very object (else 409)."""
        preconditions = {
            key: value
            for key, value in (("uid", uid), ("resourceVersion", resource_version))
            if value is not None
        }
        body: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if preconditions:
            body["preconditions"] = preconditions
        self._call("DELETE", resource.path(namespace, name), body=body)

    def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: object = None,
        content_type: str = JSON,
        verb: str | None = None,
        accept: str = JSON,
    ) -> Object:
        response = self._send(
            method, path, query, body=body, content_type=content_type, verb=verb, accept=accept
        )
        try:
            content: Object = json.loads(response.data)
        except ValueError as error:
            raise ApiUnavailable(f"{method} {self._host}{path}: the answer is not JSON: {error}") from error
        except RecursionError:
            raise ApiTooDeep(f"{method} {self._host}{path}: the answer is nested too deeply") from None
        return content

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: object = None,
        content_type: str = JSON,
        verb: str | None = None,
        timeout: urllib3.Timeout | None = None,
        stream: bool = False,
        accept: str = JSON,
    ) -> urllib3.BaseHTTPResponse:
        url = f"{self._host}{path}?{urlencode(query)}" if query else f"{self._host}{path}"
        headers = {"Accept": accept, "User-Agent": self._user_agent}
        data = None
        if body is not None:
            headers["Content-Type"] = content_type
            data = json.dumps(body, separators=(",", ":")).encode()
        started = time.monotonic()
        code = "<error>"
        try:
            headers.update(self._authorization())
            response = self._request(method, url, data, headers, timeout or self._timeout, stream)
            code = str(response.status)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiUnavailable(f"{method} {self._host}{path}: {_cause(error)}") from error
        finally:
            if self._on_request is not None:
                self._on_request(verb or method, code, time.monotonic() - started)
        if response.status >= 300:
            raise ApiError.from_response(response.status, response.headers, response.data)
        return response

    def _authorization(self) -> dict[str, str]:
        """The header with the bearer token, which the configuration reads anew when it is old."""
        token = self._configuration.auth_settings().get("BearerToken")
        return {token["key"]: token["value"]} if token is not None and token["value"] else {}

    def _request(
        self,
        method: str,
        url: str,
        data: bytes | None,
        headers: dict[str, str],
        timeout: urllib3.Timeout,
        stream: bool,
    ) -> urllib3.BaseHTTPResponse:
        def once() -> urllib3.BaseHTTPResponse:
            response: urllib3.BaseHTTPResponse = self._pool.urlopen(
                method,
                url,
                body=data,
                headers=headers,
                timeout=timeout,
                retries=False,
                redirect=False,
                preload_content=not stream,
            )
            return response

        try:
            return once()
        except urllib3.exceptions.ProtocolError:
            # The server may close an idle connection just when a request goes out; reading again is harmless.
            if method != "GET":
                raise
            return once()


def _selectors(field_selector: str | None, label_selector: str | None) -> dict[str, str]:
    query = {}
    if field_selector:
        query["fieldSelector"] = field_selector
    if label_selector:
        query["labelSelector"] = label_selector
    return query


def _cause(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
