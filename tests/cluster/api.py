"""A thin Kubernetes API client for tests: plain dicts in, plain dicts out.

Kinds are found by asking the server, so custom and new kinds work without a list here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import quote, urlencode

import urllib3
import yaml

Object = dict[str, Any]
T = TypeVar("T")

REQUEST_SECONDS = 30.0


class ApiError(Exception):
    """The server refused: `status` is the HTTP status, `reason` Kubernetes' word for it."""

    def __init__(self, method: str, path: str, status: int, reason: str, message: str) -> None:
        super().__init__(f"{method} {path}: {status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


@dataclass(frozen=True)
class Resource:
    """Where a kind is served: its API version's path, plural name, and whether it has namespaces."""

    prefix: str
    plural: str
    namespaced: bool

    def path(self, name: str | None, namespace: str | None, subresource: str | None = None) -> str:
        parts = [self.prefix]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", quote(namespace)]
        parts.append(self.plural)
        if name is not None:
            parts.append(quote(name))
        if subresource is not None:
            parts.append(subresource)
        return "/".join(parts)


class Api:
    """A client for the server at `url`, with a client certificate or a bearer token. Thread-safe."""

    def __init__(
        self,
        url: str,
        authority: Path,
        certificate: Path | None = None,
        key: Path | None = None,
        token: str | None = None,
    ) -> None:
        self.url = url
        self._pool = urllib3.PoolManager(
            ca_certs=str(authority),
            cert_file=str(certificate) if certificate else None,
            key_file=str(key) if key else None,
            maxsize=16,
            retries=False,
            timeout=REQUEST_SECONDS,
        )
        self._headers = {"Accept": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._resources: dict[tuple[str, str], Resource] = {}

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Any:
        """One request; returns the decoded JSON, or text when the answer is none. Raises ApiError."""
        url = self.url + path + (f"?{urlencode(query)}" if query else "")
        response = self._pool.request(
            method,
            url,
            body=None if body is None else json.dumps(body),
            headers={**self._headers, "Content-Type": content_type},
        )
        text = response.data.decode()
        is_json = response.headers.get("Content-Type", "").startswith("application/json")
        answer = json.loads(text) if is_json else text
        if response.status >= 400:
            detail = answer if isinstance(answer, dict) else {"message": text}
            raise ApiError(
                method, path, response.status, detail.get("reason", ""), detail.get("message", text)
            )
        return answer

    def resource(self, api_version: str, kind: str) -> Resource:
        """Where a kind is served. Raises ApiError (404) when the server has no such version or kind."""
        key = (api_version, kind)
        if key not in self._resources:
            prefix = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
            for entry in self.request("GET", prefix)["resources"]:
                if "/" not in entry["name"]:
                    found = Resource(prefix, entry["name"], entry["namespaced"])
                    self._resources[(api_version, entry["kind"])] = found
            if key not in self._resources:
                raise ApiError("GET", prefix, 404, "NotFound", f"{api_version} serves no kind {kind}")
        return self._resources[key]

    def _path_of(self, item: Object, *, named: bool, subresource: str | None = None) -> str:
        metadata = item["metadata"]
        resource = self.resource(item["apiVersion"], item["kind"])
        namespace = metadata.get("namespace", "default")
        return resource.path(metadata["name"] if named else None, namespace, subresource)

    def get(self, api_version: str, kind: str, name: str, namespace: str = "default") -> Object:
        """Read one object; `namespace` is ignored where the kind has none. Raises ApiError."""
        return self._object("GET", self.resource(api_version, kind).path(name, namespace))

    def find(self, api_version: str, kind: str, name: str, namespace: str = "default") -> Object | None:
        """Read one object, or None when there is none."""
        try:
            return self.get(api_version, kind, name, namespace)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def list(
        self,
        api_version: str,
        kind: str,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> Sequence[Object]:
        """The objects of a kind, in one namespace or in all of them."""
        query = {
            name: value
            for name, value in (("labelSelector", label_selector), ("fieldSelector", field_selector))
            if value is not None
        }
        path = self.resource(api_version, kind).path(None, namespace)
        return cast("Sequence[Object]", self.request("GET", path, query=query)["items"])

    def create(self, item: Object) -> Object:
        """Create an object (in namespace `default` when it names none); returns what was stored."""
        return self._object("POST", self._path_of(item, named=False), item)

    def replace(self, item: Object, *, subresource: str | None = None) -> Object:
        """Write a whole object, or one of its sub-resources such as `status`."""
        return self._object("PUT", self._path_of(item, named=True, subresource=subresource), item)

    def patch(
        self,
        api_version: str,
        kind: str,
        name: str,
        change: Object,
        namespace: str = "default",
        *,
        subresource: str | None = None,
    ) -> Object:
        """Change an object by a JSON merge patch."""
        path = self.resource(api_version, kind).path(name, namespace, subresource)
        return self._object("PATCH", path, change, content_type="application/merge-patch+json")

    def delete(
        self,
        api_version: str,
        kind: str,
        name: str,
        namespace: str = "default",
        *,
        grace_seconds: int | None = None,
    ) -> None:
        """Ask for an object's deletion; one that isn't there is no error. `grace_seconds` is for pods."""
        body: Object = {"propagationPolicy": "Background"}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        try:
            self.request("DELETE", self.resource(api_version, kind).path(name, namespace), body)
        except ApiError as error:
            if error.status != 404:
                raise

    def apply(self, manifests: str | Path, namespace: str | None = None) -> Sequence[Object]:
        """Server-side apply of every document in a YAML text or file; returns what was stored.

        `namespace` is for documents that name none.
        """
        text = manifests.read_text() if isinstance(manifests, Path) else manifests
        stored = []
        for item in documents(text):
            if namespace is not None:
                item["metadata"].setdefault("namespace", namespace)
            if not self.resource(item["apiVersion"], item["kind"]).namespaced:
                item["metadata"].pop("namespace", None)
            query = {"fieldManager": "gpu-dra-driver-tests", "force": "true"}
            path = self._path_of(item, named=True)
            stored.append(
                self._object("PATCH", path, item, query=query, content_type="application/apply-patch+yaml")
            )
        return stored

    def _object(
        self,
        method: str,
        path: str,
        body: object = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        return cast("Object", self.request(method, path, body, query, content_type))

    def wait_for(
        self,
        api_version: str,
        kind: str,
        name: str,
        condition: Callable[[Object], object],
        what: str,
        namespace: str = "default",
        timeout: float = 30.0,
    ) -> Object:
        """Wait until the object exists and `condition` holds for it; returns it.

        Raises TimeoutError with `what` was awaited and the object as it was last seen.
        """
        seen: list[Object | None] = [None]

        def look() -> Object | None:
            seen[0] = self.find(api_version, kind, name, namespace)
            return seen[0] if seen[0] is not None and condition(seen[0]) else None

        try:
            return wait_until(look, f"{kind} {name}: {what}", timeout)
        except TimeoutError as error:
            shown = yaml.safe_dump(seen[0]) if seen[0] else "it does not exist"
            raise TimeoutError(f"{error}; last seen:\n{shown}") from None

    def wait_gone(
        self, api_version: str, kind: str, name: str, namespace: str = "default", timeout: float = 30.0
    ) -> None:
        """Wait until an object is no longer there. Raises TimeoutError."""
        wait_until(
            lambda: self.find(api_version, kind, name, namespace) is None, f"{kind} {name}: gone", timeout
        )

    def events(self, name: str, namespace: str = "default") -> Sequence[str]:
        """What the events about the object called `name` say, as `Reason: message`, oldest first."""
        found = self.list("v1", "Event", namespace, field_selector=f"involvedObject.name={name}")
        ordered = sorted(found, key=lambda event: event.get("eventTime") or event.get("firstTimestamp") or "")
        return [f"{event.get('reason')}: {event.get('message')}" for event in ordered]


def documents(text: str) -> Iterator[Object]:
    """The documents of a YAML text, empty ones left out."""
    for item in yaml.safe_load_all(text):
        if item:
            yield item


def wait_until(look: Callable[[], T | None], what: str, timeout: float, interval: float = 0.05) -> T:
    """Call `look` until it returns something true, and return that. Raises TimeoutError naming `what`."""
    deadline = time.monotonic() + timeout
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() >= deadline:
            raise TimeoutError(f"waited {timeout:g} s for {what}")
        time.sleep(interval)


def create_node(api: Api, name: str, labels: Mapping[str, str] | None = None) -> Object:
    """A made-up Node that the scheduler puts pods on, for tests without a kubelet; returns it."""
    node = api.create(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        }
    )
    resources = {"cpu": "64", "memory": "512Gi", "pods": "200"}
    ready = {"type": "Ready", "status": "True", "reason": "Test", "message": "no kubelet"}
    status = {"capacity": resources, "allocatable": resources, "conditions": [ready]}
    api.patch("v1", "Node", name, {"status": status}, subresource="status")
    # Admission taints a new Node as not ready; only the controller manager would ever take that back.
    return api.patch(
        "v1", "Node", name, {"metadata": {"uid": node["metadata"]["uid"]}, "spec": {"taints": []}}
    )
