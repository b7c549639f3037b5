"""The pure parts of the test cluster."""

from __future__ import annotations

import io
import ipaddress
import json
import tarfile
from pathlib import Path

import pytest

from tests.cluster.api import Resource, documents, wait_until
from tests.cluster.components import cache_folder, parse_go_version
from tests.cluster.fixtures import require
from tests.cluster.images import image_archive
from tests.cluster.node import parse_container_log, pod_network
from tests.cluster.workspace import mounts_below


@pytest.mark.parametrize(
    ("text", "version"),
    [("go1.26.8", (1, 26, 8)), ("go1.27rc1", (1, 27)), ("go1.26 X:nocoverageredesign", (1, 26)), ("", ())],
)
def test_go_versions(text: str, version: tuple[int, ...]) -> None:
    assert parse_go_version(text) == version


def test_the_cache_can_be_moved(tmp_path: Path) -> None:
    assert cache_folder({"GPU_DRA_CACHE": str(tmp_path)}) == tmp_path / "components"


def test_pod_networks_of_two_processes_differ() -> None:
    first, second = pod_network(100, []), pod_network(101, [])
    assert not first.overlaps(second)
    assert first.subnet_of(ipaddress.IPv4Network("10.128.0.0/9"))


def test_a_pod_network_in_use_is_passed_over() -> None:
    taken = pod_network(100, [])
    assert pod_network(100, [str(taken.network_address + 1)]) == pod_network(101, [])


def test_container_logs_join_partial_lines() -> None:
    text = "t1 stdout F one\nt2 stdout P tw\nt3 stdout F o\nt4 stderr F \n"
    assert parse_container_log(text) == "one\ntwo\n\n"


def test_mounts_are_undone_latest_first_and_only_ours() -> None:
    text = (
        "1 0 0:1 / / rw - ext4 a rw\n"
        "2 1 0:2 / /tmp/gd-x/a rw - tmpfs b rw\n"
        "3 2 0:3 / /tmp/gd-x/a/b\\040c rw - tmpfs c rw\n"
        "4 1 0:4 / /tmp/gd-xy rw - tmpfs d rw\n"
    )
    assert mounts_below(Path("/tmp/gd-x"), text) == ["/tmp/gd-x/a/b c", "/tmp/gd-x/a"]


def test_an_image_archive_is_an_oci_layout() -> None:
    data = image_archive("example.test/image:1", b"layer", ["/bin/sh"])
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:

        def read(name: str) -> bytes:
            member = archive.extractfile(name)
            assert member is not None
            return member.read()

        entry = json.loads(read("index.json"))["manifests"][0]
        manifest = json.loads(read("blobs/sha256/" + entry["digest"].removeprefix("sha256:")))
        layer = read("blobs/sha256/" + manifest["layers"][0]["digest"].removeprefix("sha256:"))
    assert entry["annotations"] == {"io.containerd.image.name": "example.test/image:1"}
    assert layer == b"layer"


def test_paths_of_resources() -> None:
    claims = Resource("/apis/resource.k8s.io/v1", "resourceclaims", namespaced=True)
    nodes = Resource("/api/v1", "nodes", namespaced=False)
    assert claims.path("a", "b", "status") == "/apis/resource.k8s.io/v1/namespaces/b/resourceclaims/a/status"
    assert claims.path(None, None) == "/apis/resource.k8s.io/v1/resourceclaims"
    assert nodes.path("n", "default") == "/api/v1/nodes/n"


def test_empty_yaml_documents_are_left_out() -> None:
    assert list(documents("---\n---\na: 1\n")) == [{"a": 1}]


def test_waiting_in_vain_names_what_was_awaited() -> None:
    with pytest.raises(TimeoutError, match="waited 0 s for the moon"):
        wait_until(lambda: None, "the moon", 0)


def test_a_missing_part_is_a_skip_on_a_laptop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPU_DRA_REQUIRE_E2E", raising=False)
    require([])
    with pytest.raises(pytest.skip.Exception, match="this machine lacks: root; runc"):
        require(["root", "runc"])


def test_a_missing_part_is_a_failure_where_e2e_is_demanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_DRA_REQUIRE_E2E", "1")
    with pytest.raises(pytest.fail.Exception, match="this machine lacks: runc"):
        require(["runc"])
