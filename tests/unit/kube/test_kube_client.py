"""The blocking client against real HTTP: objects, errors, time limits, watches and their end."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from kube.client import KubeClient
from kube.configuration import Configuration, ConfigurationError, RESTClientObject, load_rest_client
from kube.errors import ApiError, ApiUnavailable
from kube.resources import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from tests.unit.kube.fakeapiserver import FakeApiServer


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    fake = FakeApiServer()
    yield fake
    fake.close()


@pytest.fixture
def client(server: FakeApiServer) -> Iterator[KubeClient]:
    with KubeClient(server.rest_client(), read_timeout=2.0) as made:
        yield made


def test_paths_of_resources() -> None:
    assert NODES.path(name="n1") == "/api/v1/nodes/n1"
    assert RESOURCE_CLAIMS.path("team", "c", "status") == (
        "/apis/resource.k8s.io/v1/namespaces/team/resourceclaims/c/status"
    )
    assert Resource("v1", "pods").path("a/b", "..") == "/api/v1/namespaces/a%2Fb/pods/.."


def test_create_get_replace_patch_apply_delete(server: FakeApiServer, client: KubeClient) -> None:
    made = client.create(RESOURCE_SLICES, {"metadata": {"generateName": "a-"}, "spec": {"x": 1}})
    name = made["metadata"]["name"]
    assert client.get(RESOURCE_SLICES, name) == made
    changed = client.replace(RESOURCE_SLICES, name, made | {"spec": {"x": 2}})
    assert changed["spec"] == {"x": 2}
    assert client.patch(RESOURCE_SLICES, name, {"spec": {"x": 3}})["spec"] == {"x": 3}
    assert client.apply(RESOURCE_SLICES, name, {"spec": {"x": 4}}, field_manager="m")["spec"] == {"x": 4}
    with pytest.raises(ApiError) as stale:
        client.delete(RESOURCE_SLICES, name, resource_version=changed["metadata"]["resourceVersion"])
    assert stale.value.conflict
    client.delete(RESOURCE_SLICES, name, uid=made["metadata"]["uid"])
    with pytest.raises(ApiError) as missing:
        client.get(RESOURCE_SLICES, name)
    assert missing.value.not_found


def test_list_fetches_every_page(server: FakeApiServer, client: KubeClient) -> None:
    for index in range(7):
        node = "n1" if index % 2 else "n2"
        server.put(RESOURCE_SLICES.path(), {"metadata": {"name": f"s{index}"}, "spec": {"nodeName": node}})
    items, version = client.list(RESOURCE_SLICES, page_size=2)
    assert [item["metadata"]["name"] for item in items] == [f"s{index}" for index in range(7)]
    assert version == str(server.version)
    selected, _ = client.list(RESOURCE_SLICES, field_selector="spec.nodeName=n1")
    assert len(selected) == 3


@pytest.mark.parametrize(
    ("status", "reason", "helper"),
    [
        (409, "Conflict", "conflict"),
        (409, "AlreadyExists", "already_exists"),
        (410, "Expired", "gone"),
        (401, "Unauthorized", "unauthorized"),
        (403, "Forbidden", "forbidden"),
        (422, "Invalid", "invalid"),
        (429, "TooManyRequests", "retriable"),
        (503, "ServiceUnavailable", "retriable"),
    ],
)
def test_errors_say_what_the_server_said(
    server: FakeApiServer, client: KubeClient, status: int, reason: str, helper: str
) -> None:
    server.faults.append((status, reason, {"Retry-After": "7"}))
    with pytest.raises(ApiError) as caught:
        client.get(NODES, "n1")
    assert (caught.value.status, caught.value.reason, caught.value.retry_after) == (status, reason, 7.0)
    helpers = ("conflict", "already_exists", "gone", "unauthorized", "forbidden", "invalid", "retriable")
    assert [name for name in helpers if getattr(caught.value, name)] == [helper]


def test_an_unserved_group_version_is_not_found_with_the_text_of_the_answer(
    server: FakeApiServer, client: KubeClient
) -> None:
    server.unserved.add("/apis/resource.k8s.io/v1")
    with pytest.raises(ApiError) as caught:
        client.list(RESOURCE_SLICES)
    assert caught.value.not_found
    assert caught.value.message == "404 page not found"


def test_a_read_is_repeated_when_an_idle_connection_was_closed(
    server: FakeApiServer, client: KubeClient
) -> None:
    server.put(NODES.path(), {"metadata": {"name": "n1"}})
    client.get(NODES, "n1")
    server.faults.append((0, "", {}))
    assert client.get(NODES, "n1")["metadata"]["name"] == "n1"


def test_a_write_is_not_repeated_on_a_broken_connection(server: FakeApiServer, client: KubeClient) -> None:
    server.faults.append((0, "", {}))
    with pytest.raises(ApiUnavailable, match="POST http://"):
        client.create(NODES, {"metadata": {"name": "n1"}})
    assert server.writes() == [("POST", NODES.path())]


def test_no_server_and_a_silent_server_are_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        client = KubeClient(
            RESTClientObject(Configuration(host=f"http://127.0.0.1:{port}")), read_timeout=0.2
        )
        started = time.monotonic()
        with pytest.raises(ApiUnavailable, match="ReadTimeout"):
            client.get(NODES, "n1")
        assert time.monotonic() - started < 2
    with pytest.raises(ApiUnavailable, match="refused"):
        client.get(NODES, "n1")


def test_requests_are_counted_by_verb_and_code(server: FakeApiServer) -> None:
    seen: Counter[tuple[str, str]] = Counter()

    def count(verb: str, code: str, seconds: float) -> None:
        assert seconds >= 0
        seen[verb, code] += 1

    client = KubeClient(server.rest_client(), on_request=count)
    client.list(NODES)
    client.create(NODES, {"metadata": {"name": "n1"}})
    with pytest.raises(ApiError):
        client.get(NODES, "n2")
    server.faults.append((0, "", {}))
    with pytest.raises(ApiUnavailable):
        client.delete(NODES, "n1")
    assert seen == {
        ("LIST", "200"): 1,
        ("POST", "201"): 1,
        ("GET", "404"): 1,
        ("DELETE", "<error>"): 1,
    }


def test_watch_yields_events_and_bookmarks(server: FakeApiServer, client: KubeClient) -> None:
    _, version = client.list(NODES)
    stream = client.watch(NODES, resource_version=version)
    server.put(NODES.path(), {"metadata": {"name": "n1"}})
    seen: list[str] = []
    for batch in stream:
        seen += [kind for kind, _ in batch]
        if "BOOKMARK" in seen:
            break
    stream.close()
    assert seen == ["ADDED", "BOOKMARK"]


def test_watch_from_a_forgotten_version_is_gone(server: FakeApiServer, client: KubeClient) -> None:
    _, version = client.list(NODES)
    stream = client.watch(NODES, resource_version=version)
    server.forget_history()
    with pytest.raises(ApiError) as in_stream:
        list(stream)
    assert in_stream.value.gone
    with pytest.raises(ApiError) as at_once:
        client.watch(NODES, resource_version=version)
    assert at_once.value.gone


def test_a_cut_watch_is_unavailable_and_a_stopped_one_just_ends(
    server: FakeApiServer, client: KubeClient
) -> None:
    cut = client.watch(NODES, resource_version="100")
    threading.Timer(0.1, server.cut_watches).start()
    with pytest.raises(ApiUnavailable, match="the watch broke"):
        list(cut)
    stopped = client.watch(NODES, resource_version="100")
    started = time.monotonic()
    threading.Timer(0.1, stopped.stop).start()
    assert list(stopped) == []
    assert time.monotonic() - started < 5


def test_kubeconfig_from_path_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\n"
        "clusters: [{name: c, cluster: {server: 'https://10.0.0.1:6443'}}]\n"
        "users: [{name: u, user: {token: secret}}]\n"
        "contexts: [{name: a, context: {cluster: c, user: u}}]\n"
    )
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert load_rest_client(kubeconfig).configuration.host == "https://10.0.0.1:6443"
    with pytest.raises(ConfigurationError, match="set KUBECONFIG"):
        load_rest_client()
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    assert load_rest_client().configuration.host == "https://10.0.0.1:6443"
    with pytest.raises(ConfigurationError, match="missing"):
        load_rest_client(tmp_path / "missing")


def test_a_pod_without_a_service_account_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(ConfigurationError, match="automountServiceAccountToken"):
        load_rest_client()
