"""Partitions at the running plugin: made when a claim is prepared, and gone when it is unprepared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from nvmlsim.gpus import SimulatedGpu
from tests.cluster.api import wait_until
from tests.cluster.controlplane import ControlPlane
from tests.harness.claims import Claim, create_claim, result
from tests.harness.devices import gpu_name, value
from tests.harness.plugin import PluginNode, plugin_node

DEVICES = 8 * (25 + 1)
CHANGES = (
    "nvmlDeviceSetMigMode",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceDestroy",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlComputeInstanceDestroy",
)
INSUFFICIENT_RESOURCES = 23
UNKNOWN = 999


@pytest.fixture(scope="module")
def node(control_plane: ControlPlane) -> Iterator[PluginNode]:
    """An eight-GPU H100 node whose plugin makes partitions, through all tests of this file."""
    with plugin_node(control_plane) as made:
        made.flags["mig"] = "dynamic"
        made.start()
        made.wait_published(DEVICES, 30)
        yield made


@pytest.fixture(autouse=True)
def nothing_is_left(node: PluginNode) -> Iterator[None]:
    yield
    assert (node.claims_in_store(), node.cdi_files()) == ({}, [])
    assert [gpu.gpu_instances for gpu in node.gpus.gpus()] == [()] * 8


def gpu(node: PluginNode, number: int) -> SimulatedGpu:
    return node.gpus.gpus()[number]


def part(node: PluginNode, number: int, profile: str, start: int) -> str:
    """The name of a partition."""
    return f"{gpu_name(gpu(node, number).pci_bus_id)}-mig-{profile.replace('.', '')}-{start}"


def whole(node: PluginNode, number: int) -> str:
    return gpu_name(gpu(node, number).pci_bus_id)


def new_claim(node: PluginNode, *devices: str, **more: Any) -> Claim:
    results = [result(name, node.name, f"r{position}", **more) for position, name in enumerate(devices)]
    return create_claim(node.api, results)


def prepared(node: PluginNode, *devices: str) -> Claim:
    claim = new_claim(node, *devices)
    answer = node.kubelet.prepare_one(claim)
    assert (answer.error, answer.names) == ("", list(devices))
    return claim


def unprepare(node: PluginNode, *claims: Claim) -> None:
    answers = node.kubelet.unprepare(*claims)
    assert {answer.error for answer in answers.values()} == {""}


def layout(node: PluginNode, number: int) -> list[tuple[str, int]]:
    """Profile and start of each instance of a GPU."""
    return sorted((one.profile, one.start) for one in gpu(node, number).gpu_instances)


def changes(node: PluginNode) -> dict[str, int]:
    calls = node.gpus.calls()
    return {symbol: calls[symbol] for symbol in CHANGES if calls.get(symbol)}


def statuses(node: PluginNode, claim: Claim) -> list[dict[str, Any]]:
    found = node.api.get("resource.k8s.io/v1", "ResourceClaim", claim.name)
    return list((found.get("status") or {}).get("devices") or [])


def test_b026_b078_a_partition_is_made_told_of_and_gone(node: PluginNode) -> None:
    name = part(node, 0, "3g.40gb", 4)
    published = node.published()
    assert value(published[name], "uuid") == ""
    claim = prepared(node, name)

    one = gpu(node, 0)
    (instance,) = one.gpu_instances
    (compute_instance,) = instance.compute_instances
    assert (instance.profile, instance.start, compute_instance.profile) == ("3g.40gb", 4, "3g.40gb")
    nodes = node.device_nodes(claim.uid)[name]
    assert nodes[0] == f"/dev/nvidia{one.minor}"
    assert [path.startswith("/dev/nvidia-caps/nvidia-cap") for path in nodes[1:]] == [True, True]
    wait_until(lambda: statuses(node, claim), "status.devices", 10)
    (status,) = statuses(node, claim)
    assert status["data"] == {
        "uuid": compute_instance.uuid,
        "parentUUID": one.uuid,
        "pciBusID": one.pci_bus_id,
        "gpuInstanceID": instance.id,
        "computeInstanceID": compute_instance.id,
        "madeForClaim": True,
    }
    assert status["conditions"][0]["status"] == "True"
    # NVLink of the whole GPU too is what it is with MIG mode off: who claims it gets it so.
    node.gpus.reset_calls()
    wait_until(lambda: node.gpus.calls().get("nvmlDeviceGetCount_v2", 0) > 2, "two readings", 10)
    assert node.published() == published

    unprepare(node, claim)
    assert layout(node, 0) == []
    freed = {"status": {"allocation": None, "reservedFor": None}}
    node.api.patch("resource.k8s.io/v1", "ResourceClaim", claim.name, freed, subresource="status")
    assert statuses(node, claim) == []
    assert node.published() == published


def test_b051_overlap_is_geometry_in_both_directions(node: PluginNode) -> None:
    first = prepared(node, part(node, 1, "4g.40gb", 0))
    for name in (whole(node, 1), part(node, 1, "1g.10gb", 3), part(node, 1, "7g.80gb", 0)):
        error = node.kubelet.prepare_one(new_claim(node, name)).error
        assert first.uid in error, name
        assert f"default/{first.name}" in error, name
    beside = prepared(node, part(node, 1, "3g.40gb", 4))
    assert layout(node, 1) == [("3g.40gb", 4), ("4g.40gb", 0)]
    unprepare(node, first, beside)

    all_of_it = prepared(node, whole(node, 1))
    assert all_of_it.uid in node.kubelet.prepare_one(new_claim(node, part(node, 1, "1g.10gb", 6))).error
    unprepare(node, all_of_it)


def test_b091_one_of_two_partitions_goes_and_the_other_works_on(node: PluginNode) -> None:
    node.gpus.set_mig_mode(2, False)
    first, second = prepared(node, part(node, 2, "1g.10gb", 0)), prepared(node, part(node, 2, "1g.10gb", 1))
    before = gpu(node, 2).mig_uuids
    node.gpus.reset_calls()
    unprepare(node, first)
    assert gpu(node, 2).mig_uuids == before[1:]
    assert node.kubelet.prepare_one(second).error == ""
    assert gpu(node, 2).mig_uuids == before[1:]
    # A whole GPU needs the mode off, and is told what lies on it now.
    assert second.uid in node.kubelet.prepare_one(new_claim(node, whole(node, 2))).error
    unprepare(node, second)
    assert "nvmlDeviceSetMigMode" not in changes(node)
    assert gpu(node, 2).mig_mode


def test_b078_the_mode_goes_on_with_the_first_and_off_when_a_whole_gpu_needs_it(node: PluginNode) -> None:
    node.gpus.set_mig_mode(2, False)
    node.gpus.reset_calls()
    unprepare(node, prepared(node, part(node, 2, "1g.10gb", 0)), prepared(node, part(node, 2, "1g.10gb", 1)))
    assert changes(node)["nvmlDeviceSetMigMode"] == 1
    assert gpu(node, 2).mig_mode

    claim = prepared(node, whole(node, 2))
    assert not gpu(node, 2).mig_mode
    assert node.device_nodes(claim.uid) == {whole(node, 2): [f"/dev/nvidia{gpu(node, 2).minor}"]}
    unprepare(node, claim)
    assert changes(node)["nvmlDeviceSetMigMode"] == 2
    assert not gpu(node, 2).mig_mode


def test_b078_the_mode_of_an_administrator_stays_and_is_put_back(node: PluginNode) -> None:
    node.gpus.set_mig_mode(3)
    node.gpus.reset_calls()
    unprepare(node, prepared(node, part(node, 3, "1g.20gb", 6)))
    assert "nvmlDeviceSetMigMode" not in changes(node)

    claim = prepared(node, whole(node, 3))
    assert not gpu(node, 3).mig_mode
    unprepare(node, claim)
    assert gpu(node, 3).mig_mode
    node.gpus.set_mig_mode(3, False)


def test_b083_a_compute_instance_that_is_refused_takes_its_gpu_instance_along(node: PluginNode) -> None:
    node.gpus.set_return("nvmlGpuInstanceCreateComputeInstance", INSUFFICIENT_RESOURCES, times=1)
    name = part(node, 4, "2g.20gb", 2)
    claim = new_claim(node, name)
    error = node.kubelet.prepare_one(claim).error
    assert name in error
    assert gpu(node, 4).pci_bus_id in error
    assert "INSUFFICIENT_RESOURCES (23)" in error
    assert "SUCCESS" not in error
    assert layout(node, 4) == []
    assert node.claims_in_store() == {}
    assert not gpu(node, 4).mig_mode
    assert node.kubelet.prepare_one(claim).names == [name]
    unprepare(node, claim)


def test_b085_one_that_cannot_be_made_undoes_the_others_on_all_gpus(node: PluginNode) -> None:
    node.gpus.set_mig_mode(5)
    foreign = node.gpus.create_mig(5, "1g.20gb", 6)
    claim = new_claim(
        node,
        part(node, 5, "4g.40gb", 0),
        part(node, 5, "2g.20gb", 4),
        part(node, 5, "1g.10gb", 6),
        part(node, 6, "3g.40gb", 0),
    )
    error = node.kubelet.prepare_one(claim).error
    assert "not created by this driver" in error
    assert f"GPU instance {foreign.id}" in error
    assert layout(node, 5) == [("1g.20gb", 6)]
    assert gpu(node, 5).mig_uuids == [foreign.compute_instances[0].uuid]
    assert (layout(node, 6), gpu(node, 6).mig_mode) == ([], False)
    assert (node.claims_in_store(), node.cdi_files()) == ({}, [])

    node.gpus.destroy_mig(5, foreign.id)
    # The plugin may have seen it in the meantime, and has then to see that it is gone.
    wait_until(lambda: not node.kubelet.prepare_one(claim).error, "the claim to be prepared", 10)
    assert layout(node, 5) == [("1g.10gb", 6), ("2g.20gb", 4), ("4g.40gb", 0)]
    assert layout(node, 6) == [("3g.40gb", 0)]
    unprepare(node, claim)
    node.gpus.set_mig_mode(5, False)


def test_b086_an_instance_that_is_not_ours_is_named_and_stays(node: PluginNode) -> None:
    node.gpus.set_mig_mode(6)
    foreign = node.gpus.create_mig(6, "2g.20gb", 4)
    names = (part(node, 6, "1g.10gb", 5), part(node, 6, "3g.40gb", 4), whole(node, 6))
    # Before the hardware is read again, and after it.
    for _ in range(2):
        for name in names:
            error = node.kubelet.prepare_one(new_claim(node, name)).error
            assert f"GPU instance {foreign.id}" in error, error
            assert "not created by this driver" in error, error
            assert "at 4" in error, error
        wait_until(lambda: node.published().keys().isdisjoint(names), "the change to be published", 10)
    assert gpu(node, 6).mig_uuids == [foreign.compute_instances[0].uuid]
    beside = prepared(node, part(node, 6, "4g.40gb", 0))
    unprepare(node, beside)
    assert gpu(node, 6).mig_uuids == [foreign.compute_instances[0].uuid]
    node.gpus.destroy_mig(6, foreign.id)
    node.gpus.set_mig_mode(6, False)


def test_b089_a_restart_changes_nothing_and_answers_the_same(node: PluginNode) -> None:
    claim = new_claim(node, part(node, 0, "1g.10gb", 3), part(node, 1, "3g.40gb", 0))
    first = node.kubelet.prepare_one(claim)
    assert first.error == ""
    uuids = [one.mig_uuids for one in node.gpus.gpus()]
    node.gpus.reset_calls()
    node.restart()
    node.wait_published(DEVICES)
    assert node.kubelet.prepare_one(claim) == first
    assert changes(node) == {}
    assert [one.mig_uuids for one in node.gpus.gpus()] == uuids
    unprepare(node, claim)


def test_b068_b088_after_a_reboot_the_same_placement_is_made_again(node: PluginNode) -> None:
    name = part(node, 2, "2g.20gb", 4)
    claim = new_claim(node, name)
    first = node.kubelet.prepare_one(claim)
    assert first.error == ""
    before = gpu(node, 2).mig_uuids
    node.stop()
    node.gpus.reboot()
    node.start()
    node.wait_published(DEVICES)
    assert layout(node, 2) == []
    assert node.kubelet.prepare_one(claim) == first
    assert layout(node, 2) == [("2g.20gb", 4)]
    (made,) = gpu(node, 2).mig_uuids
    assert [made] != before
    wait_until(lambda: [one["data"]["uuid"] for one in statuses(node, claim)] == [made], "the new UUID", 10)
    unprepare(node, claim)


def test_b057_after_a_reboot_or_without_a_driver_nothing_is_there_to_destroy(node: PluginNode) -> None:
    claim = prepared(node, part(node, 3, "1g.10gb", 0))
    node.stop()
    node.gpus.reboot()
    node.gpus.load_driver(False)
    node.start()
    unprepare(node, claim)
    node.gpus.load_driver()
    node.restart()
    node.wait_published(DEVICES)

    again = prepared(node, part(node, 3, "1g.10gb", 0))
    node.gpus.set_return("nvmlGpuInstanceDestroy", UNKNOWN, times=1)
    error = node.kubelet.unprepare_one(again).error
    assert "nvmlGpuInstanceDestroy: UNKNOWN (999)" in error
    assert again.uid in node.claims_in_store()
    unprepare(node, again)


def test_a_reset_in_the_same_boot_is_mended_by_the_next_prepare(node: PluginNode) -> None:
    name = part(node, 4, "3g.40gb", 0)
    claim = new_claim(node, name)
    first = node.kubelet.prepare_one(claim)
    node.gpus.reset(4)
    assert layout(node, 4) == []
    assert node.kubelet.prepare_one(claim) == first
    assert layout(node, 4) == [("3g.40gb", 0)]
    unprepare(node, claim)


def test_the_claim_of_a_lost_gpu_unprepares_and_leaves_the_others_alone(node: PluginNode) -> None:
    claim = prepared(node, part(node, 5, "1g.10gb", 0), part(node, 6, "1g.10gb", 0))
    node.gpus.lose(5)
    unprepare(node, claim)
    assert layout(node, 6) == []
    node.gpus.reset(5)
    node.wait_published(DEVICES)


def test_b092_b181_processes_delay_the_end_and_are_named(node: PluginNode) -> None:
    claim = prepared(node, part(node, 7, "2g.20gb", 0))
    (instance,) = gpu(node, 7).gpu_instances
    node.gpus.add_process(7, 4711, gi=instance.id, ci=0)
    error = node.kubelet.unprepare_one(claim).error
    assert "4711" in error
    assert "IN_USE (19)" in error
    assert part(node, 7, "2g.20gb", 0) in error
    assert claim.uid in node.claims_in_store()
    assert layout(node, 7) == [("2g.20gb", 0)]
    node.gpus.remove_process(4711)
    unprepare(node, claim)


def test_b151_admin_access_sees_what_exists_and_changes_nothing(node: PluginNode) -> None:
    held = part(node, 0, "1g.10gb", 0)
    owner = prepared(node, held)
    node.wait_log("found 8 GPUs")
    node.gpus.reset_calls()
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"admin-{node.name}"}}
    namespace["metadata"]["labels"] = {"resource.kubernetes.io/admin-access": "true"}  # type: ignore[index]
    node.api.create(namespace)
    free = part(node, 0, "1g.10gb", 1)
    results = [
        result(name, node.name, f"r{number}", adminAccess=True)
        for number, name in enumerate((held, free, whole(node, 0)))
    ]
    admin = create_claim(node.api, results, namespace=f"admin-{node.name}")

    def same_nodes() -> bool:
        assert node.kubelet.prepare_one(admin).error == ""
        return node.device_nodes(admin.uid)[held] == node.device_nodes(owner.uid)[held]

    wait_until(same_nodes, "the owner's MIG device is among the administrator's", 10)
    assert node.device_nodes(admin.uid)[free] == [f"/dev/nvidia{gpu(node, 0).minor}"]
    unprepare(node, admin)
    assert changes(node) == {}
    assert layout(node, 0) == [("1g.10gb", 0)]
    unprepare(node, owner)
