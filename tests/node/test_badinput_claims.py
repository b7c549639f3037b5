"""Claims that are wrong: each gets an error that says what is wrong, and nothing happens to the node."""

from __future__ import annotations

import random
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from tests.cluster.controlplane import ControlPlane
from tests.harness.claims import Claim, create_claim, delete_claim, opaque, result
from tests.harness.plugin import PluginNode, plugin_node

VERSION = "resource.nvidia.com/v1beta1"


@pytest.fixture(scope="module", autouse=True)
def deep_recursion() -> Iterator[None]:
    """Let these tests write what the plugin, with Python's own limit, cannot read."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(8 * before)
    yield
    sys.setrecursionlimit(before)


@pytest.fixture(scope="module")
def node(control_plane: ControlPlane) -> Iterator[PluginNode]:
    """An eight-GPU H100 node whose plugin runs through all tests of this file."""
    with plugin_node(control_plane) as made:
        made.start()
        made.wait_published(8)
        yield made


@pytest.fixture
def gpu(node: PluginNode) -> str:
    return sorted(node.published())[0]


@pytest.fixture(autouse=True)
def nothing_happened(node: PluginNode) -> Iterator[None]:
    """After each test nothing is held, and the plugin that ran before still runs."""
    before = node.process
    yield
    assert (node.claims_in_store(), node.cdi_files()) == ({}, [])
    assert node.process is before
    assert before is not None
    before.check_running()


def error_beside_a_good_claim(node: PluginNode, bad: Claim) -> str:
    """Prepare ``bad`` in one call with a claim that is right; returns the error of the first."""
    good = create_claim(node.api, [result(sorted(node.published())[7], node.name)])
    answers = node.kubelet.prepare(bad, good)
    assert answers[good.uid].error == ""
    assert answers[bad.uid].devices == ()
    assert list(node.claims_in_store()) == [good.uid]
    gone = node.kubelet.unprepare(bad, good)
    assert {answer.error for answer in gone.values()} == {""}
    assert answers[bad.uid].error != ""
    return answers[bad.uid].error


def test_b049_a_claim_that_does_not_exist(node: PluginNode) -> None:
    error = error_beside_a_good_claim(node, Claim("default", "nobody", str(uuid.uuid4())))
    assert "claim default/nobody" in error
    assert "does not exist in the API server" in error


def test_b049_a_claim_with_another_uid(node: PluginNode, gpu: str) -> None:
    old = create_claim(node.api, [result(gpu, node.name)])
    delete_claim(node.api, old)
    new = create_claim(node.api, [result(gpu, node.name)], name=old.name)
    error = error_beside_a_good_claim(node, old)
    assert all(text in error for text in (old.name, old.uid, new.uid)), error


def test_b049_a_claim_without_allocation(node: PluginNode, gpu: str) -> None:
    claim = create_claim(node.api, [result(gpu, node.name)], allocated=False)
    assert "is not allocated: status.allocation is empty" in error_beside_a_good_claim(node, claim)


def test_b049_a_claim_that_is_reserved_for_nobody(node: PluginNode, gpu: str) -> None:
    claim = create_claim(node.api, [result(gpu, node.name)], reserved=False)
    assert "status.reservedFor is empty" in error_beside_a_good_claim(node, claim)


def test_a_claim_allocated_from_another_nodes_pool(node: PluginNode, gpu: str) -> None:
    error = error_beside_a_good_claim(node, create_claim(node.api, [result(gpu, "other-node")]))
    assert all(text in error for text in ("other-node", node.name, "request gpu")), error


def test_a_device_that_was_never_here(node: PluginNode) -> None:
    claim = create_claim(node.api, [result("gpu-0000-ee-00-0", node.name)])
    error = error_beside_a_good_claim(node, claim)
    assert all(text in error for text in ("gpu-0000-ee-00-0", "request gpu", "not on this node")), error


def test_one_wrong_device_refuses_the_whole_claim(node: PluginNode, gpu: str) -> None:
    results = [result(gpu, node.name, "a"), result("gpu-0000-ee-00-0", node.name, "b")]
    assert "gpu-0000-ee-00-0" in error_beside_a_good_claim(node, create_claim(node.api, results))


def test_the_same_device_twice_in_one_claim(node: PluginNode, gpu: str) -> None:
    results = [result(gpu, node.name, "a"), result(gpu, node.name, "b", shareID=str(uuid.uuid4()))]
    error = error_beside_a_good_claim(node, create_claim(node.api, results))
    assert "its devices" in error
    assert gpu in error


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


CONFIGURATIONS: Mapping[str, tuple[dict[str, Any], Sequence[str]]] = {
    "no kind": ({"apiVersion": VERSION}, ["kind", "GpuConfig, MigDeviceConfig"]),
    "unknown kind": ({"apiVersion": VERSION, "kind": "GpuConfg"}, ["kind", "'GpuConfg'", "GpuConfig"]),
    "kind of another type": ({"apiVersion": VERSION, "kind": ["GpuConfig"]}, ["kind", "GpuConfig"]),
    "kind for another device": ({"apiVersion": VERSION, "kind": "MigDeviceConfig"}, ["MigDeviceConfig"]),
    "no version": ({"kind": "GpuConfig"}, ["apiVersion", VERSION]),
    "old version": (
        {"apiVersion": "gpu.resource.nvidia.com/v1alpha1", "kind": "GpuConfig"},
        ["apiVersion", "gpu.resource.nvidia.com/v1alpha1", VERSION],
    ),
    "version null": ({"apiVersion": None, "kind": "GpuConfig"}, ["apiVersion", "None"]),
    "unknown field": ({"apiVersion": VERSION, "kind": "GpuConfig", "sharng": {}}, ["sharng", "sharing"]),
    "sharing is a text": ({"apiVersion": VERSION, "kind": "GpuConfig", "sharing": "x"}, ["sharing", "'x'"]),
    "sharing is a list": ({"apiVersion": VERSION, "kind": "GpuConfig", "sharing": [1]}, ["sharing", "[1]"]),
    "strategy is a number": (
        {"apiVersion": VERSION, "kind": "GpuConfig", "sharing": {"strategy": 3}},
        ["sharing.strategy", "3"],
    ),
    "not there yet": (
        {"apiVersion": VERSION, "kind": "GpuConfig", "sharing": {"strategy": "MPS"}},
        ["sharing.strategy", "'MPS'", "not supported yet", "TimeSlicing"],
    ),
    "b043 MPS with a time-slice": (
        {
            "apiVersion": VERSION,
            "kind": "GpuConfig",
            "sharing": {"strategy": "MPS", "timeSlicingConfig": {"interval": "Long"}},
        },
        ["sharing.timeSlicingConfig", "'Long'", "TimeSlicing"],
    ),
    "b043 an unknown interval": (
        {
            "apiVersion": VERSION,
            "kind": "GpuConfig",
            "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Forever"}},
        },
        ["sharing.timeSlicingConfig.interval", "'Forever'", "'Default', 'Short', 'Medium' or 'Long'"],
    ),
    "b042 a misspelt field": (
        {
            "apiVersion": VERSION,
            "kind": "GpuConfig",
            "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"intervall": "Short"}},
        },
        ["sharing.timeSlicingConfig.intervall is unknown", "interval"],
    ),
    "deep": ({"apiVersion": VERSION, "kind": "GpuConfig", "sharing": nested(200)}, ["sharing.a"]),
    "deeper than can be read": (
        {"apiVersion": VERSION, "kind": "GpuConfig", "sharing": nested(1500)},
        ["nested too deeply"],
    ),
    "as large as may be": (
        {"apiVersion": VERSION, "kind": "GpuConfig", "x" * 10_100: 1},
        ["is unknown", "sharing"],
    ),
}


@pytest.mark.parametrize("case", CONFIGURATIONS)
def test_b041_b042_configuration_that_is_wrong(node: PluginNode, gpu: str, case: str) -> None:
    parameters, texts = CONFIGURATIONS[case]
    claim = create_claim(node.api, [result(gpu, node.name)], configs=[opaque(parameters, ["gpu"])])
    error = error_beside_a_good_claim(node, claim)
    assert all(text in error for text in texts), error
    if case != "deeper than can be read":
        assert "status.allocation.devices.config[0].opaque.parameters" in error
    delete_claim(node.api, claim)


def test_b041_every_depth_around_what_can_be_read_gets_an_answer(node: PluginNode, gpu: str) -> None:
    for levels in range(900, 1000, 9):
        parameters = {"apiVersion": VERSION, "kind": "GpuConfig", "sharing": nested(levels)}
        claim = create_claim(node.api, [result(gpu, node.name)], configs=[opaque(parameters, ["gpu"])])
        error = node.kubelet.prepare_one(claim).error
        assert "sharing.a is unknown" in error or "nested too deeply" in error, (levels, error)
        delete_claim(node.api, claim)


def test_b041_arbitrary_parameters_get_an_error_or_the_device(node: PluginNode, gpu: str) -> None:
    choose = random.Random(41)
    words = [
        "GpuConfig",
        "MigDeviceConfig",
        VERSION,
        "TimeSlicing",
        "MPS",
        "Default",
        "",
        "\u0000",
        "\ud83d\ude00",
    ]
    fields = [
        "apiVersion",
        "kind",
        "sharing",
        "strategy",
        "timeSlicingConfig",
        "mpsConfig",
        "interval",
        "x.y",
        "",
    ]

    def value(depth: int) -> Any:
        kind = choose.randrange(7 if depth else 5)
        if kind == 5:
            return [value(depth - 1) for _ in range(choose.randrange(3))]
        if kind == 6:
            return {choose.choice(fields): value(depth - 1) for _ in range(choose.randrange(4))}
        return choose.choice([None, True, 10**30, -1.5e300, choose.choice(words)])

    for _ in range(60):
        parameters = {"apiVersion": VERSION, "kind": "GpuConfig"} if choose.random() < 0.7 else {}
        parameters |= {choose.choice(fields): value(3) for _ in range(choose.randrange(1, 4))}
        claim = create_claim(node.api, [result(gpu, node.name)], configs=[opaque(parameters, ["gpu"])])
        answer = node.kubelet.prepare_one(claim)
        right = set(parameters) <= {"apiVersion", "kind", "sharing"} and parameters.get("sharing") is None
        if answer.error:
            assert "opaque.parameters" in answer.error, (parameters, answer.error)
        else:
            assert right, parameters
            node.kubelet.unprepare_one(claim)
        assert (node.claims_in_store(), node.cdi_files()) == ({}, []), parameters


def test_the_last_configuration_that_fits_counts_and_each_must_be_right(node: PluginNode, gpu: str) -> None:
    wrong = {"apiVersion": VERSION, "kind": "GpuConfig", "no": 1}
    right = {"apiVersion": VERSION, "kind": "GpuConfig"}
    for_mig = {"apiVersion": VERSION, "kind": "MigDeviceConfig"}
    claim = create_claim(node.api, [result(gpu, node.name)], configs=[opaque(wrong), opaque(right)])
    assert "config[0]" in error_beside_a_good_claim(node, claim)
    fits = create_claim(
        node.api, [result(gpu, node.name)], configs=[opaque(for_mig), opaque(right), opaque(for_mig)]
    )
    assert node.kubelet.prepare_one(fits).error == ""
    node.kubelet.unprepare_one(fits)


def test_a_claim_nested_too_deeply_hides_no_other_from_the_clean_up(control_plane: ControlPlane) -> None:
    with plugin_node(control_plane) as node:
        node.flags.update({"cleanup-seconds": "0.2", "claim-grace-seconds": "0.3"})
        node.start()
        names = sorted(node.wait_published(8))
        gone = create_claim(node.api, [result(names[0], node.name)])
        kept = create_claim(node.api, [result(names[1], node.name)], allocated=False)
        deep = opaque(nested(1500), driver="nic.example.com")
        node.api.patch(
            "resource.k8s.io/v1",
            "ResourceClaim",
            kept.name,
            {
                "status": {
                    "allocation": {"devices": {"results": [result(names[1], node.name)], "config": [deep]}},
                    "reservedFor": [{"resource": "pods", "name": "p", "uid": str(uuid.uuid4())}],
                }
            },
            subresource="status",
        )
        assert "nested too deeply" in node.kubelet.prepare_one(kept).error
        assert node.kubelet.prepare_one(gone).error == ""
        delete_claim(node.api, gone)
        node.wait_log("is unprepared without the kubelet")
        delete_claim(node.api, kept)
