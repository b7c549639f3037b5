"""Partitions of a claim while it is prepared: which instances are ours, and what is undone in which order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from driver.devices import Footprint
from driver.inventory import GpuInstance, PciAddress, Placement
from driver.nvml import Code, Nvml
from kubeletplugin import migoperations
from kubeletplugin.migoperations import MigOperationError
from kubeletplugin.owninstances import is_held, may_be_of_boot, own_instances
from kubeletplugin.store import ClaimState
from tests.harness.enginenode import EngineNode
from tests.unit.driver.inventories import gpu, inventory, mig
from tests.unit.kubeletplugin.records import held, record
from tests.unit.kubeletplugin.test_publisher import until

FIRST, SECOND = "gpu-0000-11-00-0", "gpu-0000-12-00-0"
GPUS = [{"model": "h100-sxm5-80gb", "pci": f"0000:{bus}:00.0"} for bus in (11, 12)]


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EngineNode]:
    monkeypatch.setattr(migoperations, "IN_USE_SECONDS", 0.05)
    made = EngineNode(tmp_path, "hgx-h100", gpus=GPUS)
    await made.start()
    yield made
    await made.stop()


@pytest.mark.parametrize(
    ("noted", "uuid", "found", "uuids", "ours"),
    [
        (None, "", 3, [], True),
        (None, "", 3, ["MIG-1"], False),
        (3, "", 3, [], True),
        (3, "", 3, ["MIG-1"], True),
        (3, "MIG-1", 3, ["MIG-1"], True),
        (3, "MIG-1", 3, [], True),
        (3, "MIG-1", 3, ["MIG-2"], False),
        (3, "MIG-1", 3, ["MIG-2", "MIG-3"], False),
        (3, "MIG-1", 4, ["MIG-1"], False),
    ],
)
def test_which_instance_in_its_place_is_that_of_a_partition(
    noted: int | None, uuid: str, found: int, uuids: list[str], ours: bool
) -> None:
    assert is_held(held(uuid=uuid, gpu_instance_id=noted, profile_id=19), found, uuids) is ours


def test_b069_a_claim_may_be_of_this_boot_unless_another_is_known() -> None:
    boots = [("boot-1", "boot-1"), ("", "boot-1"), ("boot-1", ""), ("", ""), ("boot-0", "boot-1")]
    assert [may_be_of_boot(record(boot_id=one), now) for one, now in boots] == [True] * 4 + [False]


def test_own_instances_are_those_that_claims_hold_as_partitions() -> None:
    pci = PciAddress(0, 0x65, 0, 0)
    instances = (GpuInstance(7, 19, Placement(0, 1)), GpuInstance(8, 19, Placement(1, 1)))
    one = gpu(0x65, mig_enabled=True, mig_devices=(mig(0, uuid="MIG-1"),), gpu_instances=instances)
    found = inventory(one)

    def of(**more: Any) -> object:
        values = {
            "gpu_uuid": one.uuid,
            "uuid": "",
            "footprint": Footprint(pci, Placement(1, 1)),
            "profile_id": 19,
            **more,
        }
        return own_instances([record(held(**values))], found.gpus, "boot-1")

    assert of() == {pci: frozenset({8})}
    assert of(gpu_instance_id=8) == {pci: frozenset({8})}
    assert of(gpu_uuid="GPU-before") == {}
    assert of(profile_id=20) == {}
    assert of(profile_id=None) == {}
    assert of(admin_access=True) == {}
    assert own_instances([record(held(profile_id=19), boot_id="boot-0")], found.gpus, "boot-1") == {}


async def test_b085_what_was_made_is_undone_last_first(
    node: EngineNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.gpus.set_mig_mode(0)
    node.gpus.create_mig(0, "1g.20gb", 6)
    order: list[str] = []
    destroy = migoperations.destroy

    def noted(nvml: Nvml, card: Any, gpu_instance_id: int, what: str, describe: Any) -> None:
        order.append(what)
        destroy(nvml, card, gpu_instance_id, what, describe)

    monkeypatch.setattr(migoperations, "destroy", noted)
    devices = [f"{FIRST}-mig-{part}" for part in ("4g40gb-0", "1g10gb-4", "1g10gb-5", "1g10gb-6")]
    with pytest.raises(MigOperationError, match="not created by this driver"):
        await node.prepare("a", *devices)
    assert order == [f"device {name}" for name in reversed(devices[:3])]
    assert set(node.instances()) == {(0, "1g.20gb", 6)}
    assert node.gpus.gpus()[0].mig_mode
    assert await node.engine.records() == {}


async def test_b053_a_prepare_that_is_cancelled_while_nvml_works_leaves_nothing(node: EngineNode) -> None:
    node.gpus.set_delay("nvmlDeviceCreateGpuInstanceWithPlacement", 300, times=1)
    task = asyncio.create_task(node.prepare("a", f"{FIRST}-mig-1g10gb-0", f"{SECOND}-mig-1g10gb-0"))
    await until(lambda: "nvmlDeviceCreateGpuInstanceWithPlacement" in node.gpus.calls())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert node.instances() == {}
    assert (await node.engine.records(), node.specs.claim_uids()) == ({}, set())
    assert [one.mig_mode for one in node.gpus.gpus()] == [False, False]


async def test_what_cannot_be_undone_stays_in_the_store_until_it_is(node: EngineNode) -> None:
    node.gpus.set_return("nvmlGpuInstanceCreateComputeInstance", Code.INSUFFICIENT_RESOURCES, times=1)
    node.gpus.set_return("nvmlGpuInstanceDestroy", Code.UNKNOWN, times=1)
    name = f"{FIRST}-mig-1g10gb-0"
    with pytest.raises(MigOperationError, match="INSUFFICIENT_RESOURCES"):
        await node.prepare("a", name)
    (kept,) = (await node.engine.records()).values()
    assert kept.state is ClaimState.PREPARING
    assert list(node.instances()) == [(0, "1g.10gb", 0)]
    await node.unprepare("a")
    assert node.instances() == {}


async def test_an_instance_that_took_the_place_of_ours_is_left_alone(node: EngineNode) -> None:
    name = f"{FIRST}-mig-1g10gb-0"
    await node.prepare("a", name)
    ((_, uuids),) = node.instances().items()
    node.gpus.destroy_mig(0, node.gpus.gpus()[0].gpu_instances[0].id)
    foreign = node.gpus.create_mig(0, "1g.10gb", 0)
    with pytest.raises(MigOperationError, match="lies in its place and was not created by this driver"):
        await node.prepare("a", name)
    assert [held.uuid for one in (await node.engine.records()).values() for held in one.devices] == uuids
    await node.unprepare("a")
    assert node.gpus.gpus()[0].mig_uuids == [foreign.compute_instances[0].uuid]


async def test_a_compute_instance_that_was_destroyed_is_made_again_in_its_gpu_instance(
    node: EngineNode,
) -> None:
    name = f"{FIRST}-mig-3g40gb-0"
    await node.prepare("a", name)
    before = node.gpus.gpus()[0].gpu_instances[0]
    node.gpus.destroy_mig(0, before.id, 0)
    ((_, gone),) = await vanished_after_reading(node)
    assert gone == [name]
    (held,) = (await node.prepare("a", name)).devices
    after = node.gpus.gpus()[0].gpu_instances[0]
    assert (after.id, [held.uuid]) == (before.id, node.gpus.gpus()[0].mig_uuids)
    assert await vanished_after_reading(node) == []
    await node.unprepare("a")
    assert node.instances() == {}


async def vanished_after_reading(node: EngineNode) -> list[tuple[str, list[str]]]:
    assert await node.hardware.read_once()
    return [
        (record.claim.uid, [held.device for held in devices])
        for record, devices in await node.engine.vanished()
    ]


async def test_claims_on_one_gpu_wait_for_each_other_and_those_on_two_do_not(node: EngineNode) -> None:
    node.gpus.set_delay("nvmlDeviceCreateGpuInstanceWithPlacement", 400)
    loop = asyncio.get_running_loop()
    started = loop.time()
    names = [f"{gpu}-mig-1g10gb-{start}" for gpu in (FIRST, SECOND) for start in range(3)]
    await asyncio.gather(*(node.prepare(f"c{number}", name) for number, name in enumerate(names)))
    assert 3 * 0.4 <= loop.time() - started < 6 * 0.4
    assert len(node.instances()) == 6
    await asyncio.gather(*(node.unprepare(f"c{number}") for number in range(len(names))))
    assert node.instances() == {}
