"""Probes and metrics of the running plugin."""

from __future__ import annotations

import socket

from prometheus_client.parser import text_string_to_metric_families

from tests.cluster.api import wait_until
from tests.harness.claims import create_claim, result
from tests.harness.plugin import free_address, get
from tests.harness.probes import Probes
from tests.node.conftest import MakeNode


def request(address: str, head: str) -> str:
    """What comes back for these bytes, until the server closes."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=15.0) as connection:
        connection.sendall(head.encode())
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts).decode()


def test_liveness_asks_the_plugins_own_sockets(make_node: MakeNode) -> None:
    node = make_node("t4x4")
    probes = Probes(free_address())
    node.start(http_address=probes.address)
    node.wait_published(4)
    assert probes.alive() == (200, "ok\n")
    dra_socket, registration_socket = node.sockets()

    hidden = dra_socket.with_name("hidden.sock")
    dra_socket.rename(hidden)
    status, text = probes.alive()
    assert status == 503
    assert "sockets" in text
    hidden.rename(dra_socket)
    assert probes.alive()[0] == 200

    registration_socket.unlink()
    assert probes.alive()[0] == 503
    assert "not alive" in node.log()


def test_readiness_follows_the_kubelets_word(make_node: MakeNode) -> None:
    node = make_node("t4x4")
    probes = Probes(free_address())
    node.start(http_address=probes.address)
    node.wait_published(4)
    assert probes.ready() == (503, "not registered yet\n")
    node.kubelet.notify(registered=False, error="plugin name is taken")
    assert probes.ready() == (503, "the kubelet refused the plugin: plugin name is taken\n")
    node.kubelet.notify(registered=True)
    assert probes.ready() == (200, "ok\n")


def test_metrics_tell_what_the_plugin_did(make_node: MakeNode) -> None:
    node = make_node("t4x4")
    probes = Probes(free_address())
    node.start(http_address=probes.address, cleanup_seconds="1")
    name = sorted(node.wait_published(4))[0]
    good = create_claim(node.api, [result(name, node.name)])
    bad = create_claim(node.api, [result("gpu-0000-99-00-0", node.name)])
    for _ in range(3):
        assert node.kubelet.prepare_one(good).error == ""
    assert node.kubelet.prepare_one(bad).error != ""
    operations = "gpudra_claim_operations_total"
    assert probes.metric(operations, operation="prepare", cause="") == 3
    assert probes.metric(operations, operation="prepare", cause="UnknownDevice") == 1
    assert probes.metric("gpudra_claim_operation_seconds_count", operation="prepare") == 4
    assert probes.metric("gpudra_prepare_step_seconds_count", step="cdi-write") == 3
    assert probes.metric("gpudra_claim_operations_in_flight", operation="prepare") == 0
    assert probes.metric("gpudra_published_devices") == 4
    assert probes.metric("gpudra_pool_generation") == 1
    assert probes.metric("gpudra_api_requests_total", verb="GET", code="200") >= 4
    wait_until(lambda: probes.metric("gpudra_prepared_claims") == 1, "one prepared claim", 10.0)

    text = get(f"http://{probes.address}/metrics")[1]
    families = list(text_string_to_metric_families(text))
    assert all(family.documentation for family in families)
    assert {family.name.split("_")[0] for family in families} == {"gpudra"}


def test_odd_requests_are_answered_or_dropped_and_hurt_nobody(make_node: MakeNode) -> None:
    node = make_node("t4x4")
    probes = Probes(free_address())
    node.start(http_address=probes.address)
    assert get(f"http://{probes.address}/nothing")[0] == 404
    assert get(f"http://{probes.address}/healthz?verbose")[0] == 200
    assert request(probes.address, "POST /metrics HTTP/1.1\r\n\r\n").startswith("HTTP/1.1 405 ")
    assert request(probes.address, f"GET /{'x' * 20_000} HTTP/1.1\r\n\r\n") == ""
    host, _, port = probes.address.rpartition(":")
    with socket.create_connection((host, int(port))) as silent:
        silent.sendall(b"GET /hea")
        assert probes.alive()[0] == 200
    assert probes.alive()[0] == 200


def test_an_address_that_is_taken_is_named(make_node: MakeNode) -> None:
    node = make_node("t4x4")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        process = node.start(wait=False, http_address=address)
        assert process.wait(15.0) == 1
    assert "address already in use" in node.log()
    assert address.rpartition(":")[2] in node.log()
    assert "Traceback" not in node.log()
