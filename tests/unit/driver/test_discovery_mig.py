"""Static MIG devices through the real binding on the simulated library."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple

import pytest

from driver.devices import offered_devices
from driver.discovery import GpuReading, read_gpu
from driver.inventory import Inventory, Placement
from driver.migoffer import MigPolicy
from driver.nodepolicy import NodePolicy
from driver.presence import verify
from driver.resourceslices import published, slice_specs
from nvmlsim.library import StateError
from nvmlsim.models import boards, models
from nvmlsim.node import SimulatedNode
from tests.unit.driver.conftest import OpenedNode, OpenNode
from tests.unit.driver.slicevalidator import violations


def _names(inventory: Inventory) -> list[str]:
    return [device.name for device in offered_devices(inventory, NodePolicy(mig=MigPolicy.STATIC), {})]


def test_b070_seven_instances_are_seven_devices(open_node: OpenNode) -> None:
    node = open_node("a100-pcie-pair", mig={0: ["1g.10gb"] * 7})
    inventory = node.discover()
    assert _names(inventory) == [
        *(f"gpu-0000-17-00-0-mig-1g10gb-{start}" for start in range(7)),
        "gpu-0000-37-00-0",
    ]
    parent = inventory.gpus[0]
    assert parent.mig_enabled
    assert {mig.uuid for mig in parent.mig_devices} == set(node.simulated.gpus()[0].mig_uuids)
    assert {astuple(mig.engines) for mig in parent.mig_devices} == {(14, 1, 0, 0, 0, 0)}


def test_the_ids_are_those_that_nvml_counts_with(open_node: OpenNode) -> None:
    node = open_node("hgx-h100", mig={2: ["1g.10gb", "1g.10gb", "3g.40gb"]})
    gpu = next(gpu for gpu in node.simulated.gpus() if gpu.gpu == 2)
    found = next(one for one in node.discover().gpus if one.uuid == gpu.uuid)
    assert {
        (mig.gpu_instance_id, mig.placement, mig.compute_instance_id, mig.uuid) for mig in found.mig_devices
    } == {
        (gi.id, Placement(gi.start, gi.size), ci.id, ci.uuid)
        for gi in gpu.gpu_instances
        for ci in gi.compute_instances
    }
    assert [mig.profile for mig in found.mig_devices] == ["1g.10gb", "1g.10gb", "3g.40gb"]


def test_several_compute_instances_of_one_gpu_instance(open_node: OpenNode) -> None:
    inventory = open_node("dgx-a100-40", mig={0: ["1c.3g.20gb", "3g.20gb"]}).discover()
    shared = [mig for mig in inventory.gpus[0].mig_devices if mig.compute_placement is not None]
    whole = [mig for mig in inventory.gpus[0].mig_devices if mig.compute_placement is None]
    assert [mig.profile for mig in shared] == ["1c.3g.20gb"] * 3
    assert [mig.compute_placement for mig in shared] == [Placement(start, 1) for start in range(3)]
    assert len({mig.gpu_instance_id for mig in shared}) == 1
    assert [astuple(mig.engines)[:3] for mig in shared] == [(14, 3, 2)] * 3
    assert [mig.profile for mig in whole] == ["3g.20gb"]
    start = shared[0].placement.start
    assert [name for name in _names(inventory) if "1c3g20gb" in name] == [
        f"gpu-0000-07-00-0-mig-1c3g20gb-{start}-{compute}" for compute in range(3)
    ]


@pytest.mark.parametrize(
    ("profile", "label", "extensions"),
    [
        ("1g.24gb", "1g24gb", (False, False, False)),
        ("1g.24gb+me", "1g24gb-me", (True, False, False)),
        ("1g.24gb-me", "1g24gb-no-me", (False, False, False)),
        ("1g.24gb+me.all", "1g24gb-me-all", (True, True, False)),
        ("2g.48gb+gfx", "2g48gb-gfx", (False, False, True)),
    ],
)
def test_b027_variants_of_a_profile(
    open_node: OpenNode, profile: str, label: str, extensions: tuple[bool, ...]
) -> None:
    inventory = open_node("rtx-pro-6000x8", mig={0: [profile]}).discover()
    (mig,) = inventory.gpus[0].mig_devices
    assert mig.profile == profile
    assert (mig.media_extensions, mig.all_media_extensions, mig.graphics) == extensions
    assert _names(inventory)[0] == f"gpu-0000-11-00-0-mig-{label}-{mig.placement.start}"


def test_b072_a_gpu_in_mig_mode_without_instances_offers_nothing(open_node: OpenNode) -> None:
    node = open_node("a100-pcie-pair")
    node.simulated.set_mig_mode(0)
    inventory = node.discover()
    assert [inventory.gpus[0].mig_enabled, inventory.gpus[0].mig_devices] == [True, ()]
    assert _names(inventory) == ["gpu-0000-37-00-0"]


def test_profiles_are_known_with_mig_mode_off_and_read_once(open_node: OpenNode) -> None:
    node = open_node("hgx-h100")
    before = read_gpu(node.nvml, node.roots, 0)
    assert isinstance(before, GpuReading)
    assert [one.profile for one in before.gpu.profiles] == [
        *("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb", "1g.10gb+me", "1g.20gb")
    ]
    assert before.gpu.profiles[1].placements == (Placement(0, 2), Placement(2, 2), Placement(4, 2))
    node.simulated.reset_calls()
    assert read_gpu(node.nvml, node.roots, 0, before) == before
    calls = node.simulated.calls()
    assert not {call for call in calls if "Profile" in call or "Placements" in call}
    # Another MIG mode or another card may have other ones.
    node.simulated.set_mig_mode(0)
    read_gpu(node.nvml, node.roots, 0, before)
    assert node.simulated.calls()["nvmlDeviceGetGpuInstancePossiblePlacements_v2"] == 7
    read_gpu(node.nvml, node.roots, 1, before)
    assert node.simulated.calls()["nvmlDeviceGetGpuInstancePossiblePlacements_v2"] == 14


def test_what_was_read_with_a_failure_is_read_again(open_node: OpenNode) -> None:
    node = open_node("hgx-h100")
    node.simulated.set_return("nvmlDeviceGetGpuInstancePossiblePlacements_v2", 999, times=1)
    before = read_gpu(node.nvml, node.roots, 0)
    assert isinstance(before, GpuReading)
    assert len(before.gpu.profiles) == 6
    assert [failure.field for failure in before.failures] == ["migProfiles[19]"]
    after = read_gpu(node.nvml, node.roots, 0, before)
    assert isinstance(after, GpuReading)
    assert len(after.gpu.profiles) == 7


def test_b086_an_instance_without_a_compute_instance_is_known(open_node: OpenNode) -> None:
    node = open_node("hgx-h100", mig={0: ["3g.40gb", "1g.10gb"]})
    made = node.simulated.gpus()[0].gpu_instances
    node.simulated.destroy_mig(0, made[0].id, ci=0)
    gpu = node.discover().gpus[0]
    assert len(gpu.mig_devices) == 1
    assert {(one.id, one.placement) for one in gpu.gpu_instances or ()} == {
        (one.id, Placement(one.start, one.size)) for one in made
    }


def test_instances_that_cannot_be_listed_are_not_taken_for_none(open_node: OpenNode) -> None:
    node = open_node("hgx-h100", mig={0: ["3g.40gb"]})
    node.simulated.set_return("nvmlDeviceGetGpuInstances", 999, gpu=0)
    inventory = node.discover()
    assert inventory.gpus[0].gpu_instances is None
    assert len(inventory.gpus[0].mig_devices) == 1
    assert {failure.field for failure in inventory.unreadable_fields} == {"gpuInstances"}


def _read_while(node: OpenedNode, symbol: str, change: Callable[[], object]) -> GpuReading:
    """The reading of GPU 0 while ``change`` is made during its first call of ``symbol``."""
    node.simulated.set_delay(symbol, 300, times=1, gpu=0)
    before = node.simulated.calls().get(symbol, 0)
    with ThreadPoolExecutor(1) as executor:
        reading = executor.submit(read_gpu, node.nvml, node.roots, 0)
        deadline = time.monotonic() + 10.0
        while node.simulated.calls().get(symbol, 0) == before:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        change()
        found = reading.result(10.0)
    assert isinstance(found, GpuReading)
    return found


@pytest.mark.parametrize(
    "symbol",
    [
        "nvmlDeviceGetGpuInstanceProfileInfoV",
        "nvmlDeviceGetGpuInstances",
        "nvmlGpuInstanceGetInfo",
        "nvmlDeviceGetMaxMigDeviceCount",
        "nvmlDeviceGetMigDeviceHandleByIndex",
        "nvmlDeviceGetAttributes_v2",
        "nvmlDeviceGetUUID",
    ],
)
@pytest.mark.parametrize("ends_on", [False, True])
def test_a_reading_while_mig_mode_changes_is_of_one_moment(
    open_node: OpenNode, symbol: str, ends_on: bool
) -> None:
    node = open_node("hgx-h100", mig={0: ["1g.10gb", "2g.20gb"]})

    def change() -> None:
        for instance in node.simulated.gpus()[0].gpu_instances:
            node.simulated.destroy_mig(0, instance.id)
        node.simulated.set_mig_mode(0, False)
        if ends_on:
            node.simulated.set_mig_mode(0, True)

    assert _read_while(node, symbol, change) == read_gpu(node.nvml, node.roots, 0)


@pytest.mark.parametrize("symbol", ["nvmlDeviceGetGpuInstanceProfileInfoV", "nvmlDeviceGetNumGpuCores"])
def test_a_reading_while_mig_mode_is_turned_on_is_of_one_moment(open_node: OpenNode, symbol: str) -> None:
    node = open_node("hgx-h100")

    def change() -> None:
        node.simulated.set_mig_mode(0)
        node.simulated.create_mig(0, "1g.10gb", 0)

    found = _read_while(node, symbol, change)
    assert found == read_gpu(node.nvml, node.roots, 0)
    assert len(found.gpu.mig_devices) == 1


@pytest.mark.parametrize(
    "symbol",
    [
        "nvmlDeviceGetGpuInstances",
        "nvmlGpuInstanceGetInfo",
        "nvmlDeviceGetMigDeviceHandleByIndex",
        "nvmlDeviceGetGpuInstanceId",
        "nvmlDeviceGetAttributes_v2",
    ],
)
def test_an_instance_that_goes_while_it_is_read_is_no_failure(open_node: OpenNode, symbol: str) -> None:
    node = open_node("hgx-h100", mig={0: ["1g.10gb", "2g.20gb"]})
    first = node.simulated.gpus()[0].gpu_instances[0]
    found = _read_while(node, symbol, lambda: node.simulated.destroy_mig(0, first.id))
    assert found == read_gpu(node.nvml, node.roots, 0)
    assert (len(found.gpu.mig_devices), found.failures) == (1, ())


def test_a_list_that_is_refused_as_with_the_mode_off_is_tried_again(open_node: OpenNode) -> None:
    node = open_node("hgx-h100", mig={0: ["3g.40gb"]})
    expected = read_gpu(node.nvml, node.roots, 0)
    node.simulated.set_return("nvmlDeviceGetGpuInstances", 3, times=2, gpu=0)
    assert read_gpu(node.nvml, node.roots, 0) == expected
    node.simulated.set_return("nvmlDeviceGetGpuInstances", 3, gpu=0)
    found = read_gpu(node.nvml, node.roots, 0)
    assert isinstance(found, GpuReading)
    assert (found.gpu.gpu_instances, found.settled) == (None, False)
    assert [failure.field for failure in found.failures] == ["gpuInstances"]


@pytest.mark.parametrize("field_answers", [True, False])
@pytest.mark.parametrize(
    ("machine", "resetless"), [("hgx-h100", True), ("dgx-a100-40", False), ("t4x4", False)]
)
def test_b077_whether_the_mode_changes_without_a_reset(
    open_node: OpenNode, machine: str, resetless: bool, field_answers: bool
) -> None:
    node = open_node(machine)
    if not field_answers:
        node.simulated.set_return("nvmlDeviceGetFieldValues", 3)
    inventory = node.discover()
    assert {gpu.resetless_mig for gpu in inventory.gpus} == {resetless}
    assert inventory.unreadable_fields == ()


def test_b010_a_vgpu_is_asked_for_no_placement(open_node: OpenNode) -> None:
    node = open_node("hgx-h100")
    node.simulated.set_gpu(0, virtualization=2)
    inventory = node.discover()
    assert (inventory.gpus[0].profiles, inventory.gpus[0].resetless_mig) == ((), False)
    assert node.simulated.calls()["nvmlDeviceGetGpuInstancePossiblePlacements_v2"] == 7 * 7


def test_b071_instances_of_an_administrator_come_and_go(open_node: OpenNode) -> None:
    node = open_node("a100-pcie-pair", mig={0: ["3g.40gb"]})
    before = _names(node.discover())
    made = node.simulated.create_mig(0, "1g.10gb", 4 if before[0].endswith("-0") else 0)
    assert len(_names(node.discover())) == len(before) + 1
    node.simulated.destroy_mig(0, made.id)
    assert _names(node.discover()) == before


def test_a_pending_mode_is_not_the_mode(open_node: OpenNode) -> None:
    node = open_node("dgx-a100-40")
    node.simulated.set_mig_mode(0, pending_only=True)
    gpu = node.discover().gpus[0]
    assert [gpu.mig_enabled, gpu.mig_pending] == [False, True]


def test_a_gpu_in_mig_mode_leaves_the_nvlink_domain_of_the_others(open_node: OpenNode) -> None:
    node = open_node("two-islands", mig={0: ["7g.141gb"]})
    inventory = node.discover()
    first = {"type": {"string": "mig"}, "nvlinkLinks": {"int": 0}, "nvlinkPeers": {"int": 0}}
    devices = [
        published(device, inventory)
        for device in offered_devices(inventory, NodePolicy(mig=MigPolicy.STATIC), {})
    ]
    assert {key: devices[0]["attributes"][key] for key in first} == first
    assert devices[0]["attributes"]["nvlinkDomain"] == devices[0]["attributes"]["uuid"]
    assert [gpu.nvlink.peers for gpu in inventory.gpus if gpu.nvlink] == [2, 2, 2, 3, 3, 3, 3]


def test_b020_b025_a_mixed_node_is_a_valid_pool_of_distinct_devices(open_node: OpenNode) -> None:
    gpus = [{"model": "t4"}, {"model": "h100-sxm5-80gb", "count": 2}, {"model": "rtx-pro-6000-server"}]
    mig = {1: ["1g.10gb+me", "1c.2g.20gb", "3g.40gb"], 3: ["1g.24gb+me.all", "1g.24gb-me"]}
    inventory = open_node("t4x4", gpus=gpus, mig=mig).discover()
    offered = offered_devices(inventory, NodePolicy(mig=MigPolicy.STATIC), {})
    devices = [published(device, inventory) for device in offered]
    assert len({device["name"] for device in devices}) == len({device.uuid for device in offered}) == 8
    assert len({frozenset(device["attributes"]) for device in devices}) == 1
    specs = slice_specs(devices, "node-1", "node-1")
    assert violations([spec | {"pool": spec["pool"] | {"generation": 1}} for spec in specs]) == []
    for one in offered:
        assert [other.name for other in offered if other.footprint.overlaps(one.footprint)] == [one.name]


@pytest.mark.parametrize("seed", range(12))
def test_b025_any_mig_state_is_a_valid_pool_that_maps_back_to_the_hardware(
    open_node: OpenNode, seed: int
) -> None:
    choice = random.Random(seed)
    keys = sorted(key for key, model in models().items() if model["mig_profile_key"])
    chosen = [choice.choice(keys) for _ in range(choice.randint(1, 6))]
    node = open_node("t4x4", gpus=[{"model": key} for key in chosen])
    for gpu, key in enumerate(chosen):
        _partition_at_random(node.simulated, gpu, key, choice)
    inventory = node.discover()
    offered = offered_devices(inventory, NodePolicy(mig=MigPolicy.STATIC), {})
    devices = [published(device, inventory) for device in offered]
    specs = slice_specs(devices, "node-1", "node-1")
    assert violations([spec | {"pool": spec["pool"] | {"generation": 1}} for spec in specs]) == []
    assert len({device.name for device in offered}) == len(offered)
    expected = [
        uuid for gpu in node.simulated.gpus() for uuid in (gpu.mig_uuids if gpu.mig_mode else [gpu.uuid])
    ]
    assert sorted(device.uuid for device in offered) == sorted(expected)
    for device in offered:
        verify(node.nvml, device)


def _partition_at_random(node: SimulatedNode, gpu: int, key: str, choice: random.Random) -> None:
    if choice.random() < 0.3:
        return
    node.set_mig_mode(gpu)
    profiles = boards()[models()[key]["mig_profile_key"]]["profiles"]
    for _ in range(choice.randint(0, 8)):
        profile = choice.choice(profiles)
        ci = choice.choice(profile["ci_profiles"])
        with contextlib.suppress(StateError):
            node.create_mig(gpu, ci["name_prefix"] + profile["name"])
