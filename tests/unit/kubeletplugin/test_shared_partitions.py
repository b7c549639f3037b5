"""Shares of one device, held by several claims: made with the first share, gone with the last."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from driver.claim import ClaimError
from driver.nodepolicy import NodePolicy, PolicyEntry
from driver.nvml import Code
from driver.resourceslices import way_of_sharing
from driver.shares import ShareMode, Shares
from kubeletplugin import migoperations
from kubeletplugin.migoperations import MigOperationError
from kubeletplugin.owninstances import own_instances
from kubeletplugin.store import ClaimRecord, ClaimState, boot_seconds
from tests.harness.enginenode import CALL_SECONDS, EngineNode, Killed, Steps, watched
from tests.harness.shares import prepare_shares, share_id, shares

FIRST, SECOND = "gpu-0000-11-00-0", "gpu-0000-12-00-0"
GPUS = [{"model": "h100-sxm5-80gb", "pci": f"0000:{bus}:00.0"} for bus in (11, 12)]
PART = f"{FIRST}-mig-1g10gb-0"
KEY = (0, "1g.10gb", 0)


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EngineNode]:
    monkeypatch.setattr(migoperations, "IN_USE_SECONDS", 0.05)
    made = EngineNode(tmp_path, "hgx-h100", gpus=GPUS)
    await made.start()
    yield made
    await made.stop()


def cdi_devices(node: EngineNode, uid: str) -> dict[str, list[str]]:
    """The device nodes of a claim's CDI devices, by their names within the claim."""
    spec = json.loads(node.specs.read(uid) or b"{}")
    return {
        device["name"].removeprefix(f"{uid}-"): [
            one["path"] for one in device["containerEdits"]["deviceNodes"]
        ]
        for device in spec["devices"]
    }


def uuids(record: ClaimRecord) -> list[str]:
    return [held.uuid for held in record.devices]


@pytest.mark.parametrize("first_to_go", ["a", "b"])
async def test_b104_a_shared_partition_is_made_once_and_goes_with_its_last_share(
    node: EngineNode, first_to_go: str
) -> None:
    a, b = await prepare_shares(node, "a", PART), await prepare_shares(node, "b", PART)
    assert uuids(a) == uuids(b) == node.instances()[KEY]
    assert [held.share_id for held in (*a.devices, *b.devices)] == [share_id("a", 0), share_id("b", 0)]
    assert a.devices[0].cdi_device != b.devices[0].cdi_device
    assert cdi_devices(node, "a")[f"{PART}-share-{share_id('a', 0)}"] != []
    before = node.instances()
    await node.unprepare(first_to_go)
    assert node.instances() == before
    (left,) = {"a", "b"} - {first_to_go}
    assert set(await node.engine.records()) == node.specs.claim_uids() == {left}
    assert uuids(await prepare_shares(node, left, PART)) == uuids(a)
    await node.unprepare(left)
    assert (node.instances(), node.specs.claim_uids()) == ({}, set())


async def test_a_share_of_an_open_partition_changes_nothing_of_the_hardware(node: EngineNode) -> None:
    await prepare_shares(node, "a", PART)
    steps = Steps(kinds=("nvml",))
    with watched(steps):
        await prepare_shares(node, "b", PART)
        await node.unprepare("b")
    assert steps.seen == []


async def test_shares_and_an_exclusive_claim_never_meet(node: EngineNode) -> None:
    await prepare_shares(node, "a", PART)
    for device in (PART, FIRST, f"{FIRST}-mig-2g20gb-0"):
        with pytest.raises(ClaimError, match=r"claim-b .*claim-a ") as raised:
            await node.prepare("b", device)
        assert raised.value.cause == "InUse"
    with pytest.raises(ClaimError, match="overlaps"):
        await prepare_shares(node, "b", FIRST)
    await prepare_shares(node, "b", f"{FIRST}-mig-1g10gb-1")
    await node.unprepare("a")
    await node.prepare("c", PART)
    with pytest.raises(ClaimError, match=f"device {PART}, which it has a share of, is in use as a whole"):
        await prepare_shares(node, "a", PART)
    await node.restart()
    with pytest.raises(ClaimError, match="as a whole by claim default/claim-c"):
        await prepare_shares(node, "a", PART)
    node.gpus.reboot()
    await node.restart()
    with pytest.raises(ClaimError, match="as a whole by claim default/claim-c"):
        await prepare_shares(node, "a", PART)
    with pytest.raises(ClaimError, match=f"overlaps {FIRST}-mig-1g10gb-[01], "):
        await node.prepare("d", FIRST)


async def test_one_claim_may_have_two_shares_of_one_device(node: EngineNode) -> None:
    record = await prepare_shares(node, "a", PART, PART)
    assert uuids(record) == 2 * node.instances()[KEY]
    devices = cdi_devices(node, "a")
    assert list(devices) == sorted(f"{PART}-share-{share_id('a', number)}" for number in (0, 1))
    assert len({tuple(nodes) for nodes in devices.values()}) == 1
    assert (await prepare_shares(node, "a", PART, PART)).devices == record.devices
    await prepare_shares(node, "b", PART)
    await node.unprepare("a")
    assert list(node.instances()) == [KEY]
    await node.unprepare("b")
    assert node.instances() == {}


async def test_two_shares_that_cannot_be_made_leave_nothing(node: EngineNode) -> None:
    node.gpus.set_return("nvmlGpuInstanceCreateComputeInstance", Code.INSUFFICIENT_RESOURCES, times=1)
    with pytest.raises(MigOperationError, match="INSUFFICIENT_RESOURCES"):
        await prepare_shares(node, "a", PART, PART)
    assert (node.instances(), await node.engine.records()) == ({}, {})


@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize("order", ["ab", "ba"])
async def test_mig_mode_goes_on_again_with_the_last_share_if_an_administrator_had_it_on(
    node: EngineNode, ours: bool, order: str
) -> None:
    if ours:
        await node.prepare("earlier", PART)
        await node.unprepare("earlier")
    else:
        node.gpus.set_mig_mode(0)
        await node.restart()
    assert node.gpus.gpu(0).mig_mode
    await prepare_shares(node, "a", FIRST, FIRST)
    await prepare_shares(node, "b", FIRST)
    assert not node.gpus.gpu(0).mig_mode
    await node.unprepare(order[0])
    assert not node.gpus.gpu(0).mig_mode
    await node.unprepare(order[1])
    assert node.gpus.gpu(0).mig_mode is not ours


async def test_the_last_two_shares_go_at_the_same_time(node: EngineNode) -> None:
    node.gpus.set_mig_mode(0)
    await node.restart()
    for _ in range(5):
        await prepare_shares(node, "a", FIRST, f"{SECOND}-mig-1g10gb-0")
        await prepare_shares(node, "b", FIRST, f"{SECOND}-mig-1g10gb-0")
        await asyncio.gather(node.unprepare("a"), node.unprepare("b"))
        assert node.gpus.gpu(0).mig_mode
        assert node.instances() == {}


async def test_many_shares_at_the_same_time(node: EngineNode) -> None:
    names = [f"c{number}" for number in range(24)]
    records = await asyncio.gather(*(prepare_shares(node, uid, PART) for uid in names))
    assert {held.uuid for record in records for held in record.devices} == set(node.instances()[KEY])
    await asyncio.gather(*(node.unprepare(uid) for uid in names))
    assert (node.instances(), node.specs.claim_uids()) == ({}, set())


@dataclass
class Until(Steps):
    """The process ends at the first step of this name."""

    name: str = ""
    is_dead: bool = False

    def step(self, kind: str, what: str) -> None:
        self.is_dead = self.is_dead or what == self.name
        if self.is_dead:
            raise Killed(what)


async def dies(node: EngineNode, uid: str, *devices: str, at: str) -> None:
    """A prepare of shares that ends at a step with its process, and a new process."""
    with watched(Until(name=at)), pytest.raises(Killed):
        await prepare_shares(node, uid, *devices)
    await node.restart()


MADE = ["before create_gpu_instance", "after create_gpu_instance", "after create_compute_instance"]


@pytest.mark.parametrize("at", MADE)
@pytest.mark.parametrize("order", ["ab", "ba"])
async def test_a_share_whose_prepare_died_leaves_its_instance_to_the_next(
    node: EngineNode, at: str, order: str
) -> None:
    await dies(node, "a", PART, at=at)
    b = await prepare_shares(node, "b", PART)
    assert uuids(b) == node.instances()[KEY]
    for uid in order:
        await node.unprepare(uid)
    assert node.instances() == {}


@pytest.mark.parametrize("at", MADE)
async def test_a_share_whose_prepare_died_is_prepared_when_the_other_has_been_there(
    node: EngineNode, at: str
) -> None:
    await dies(node, "a", PART, at=at)
    b = await prepare_shares(node, "b", PART)
    await node.unprepare("b")
    # The other claim still may come back for it.
    assert node.instances()[KEY] == uuids(b)
    a = await prepare_shares(node, "a", PART)
    assert uuids(a) == node.instances()[KEY]
    await node.unprepare("a")
    assert node.instances() == {}


async def test_both_go_at_the_same_time_after_the_first_had_died(node: EngineNode) -> None:
    for _ in range(5):
        await dies(node, "a", PART, at="after create_gpu_instance")
        await prepare_shares(node, "b", PART)
        await asyncio.gather(node.unprepare("b"), node.unprepare("a"))
        assert node.instances() == {}


async def test_a_share_that_fails_in_an_instance_that_another_has_begun(node: EngineNode) -> None:
    await dies(node, "a", PART, at="after create_gpu_instance")
    node.gpus.set_return("nvmlGpuInstanceCreateComputeInstance", Code.INSUFFICIENT_RESOURCES, times=1)
    with pytest.raises(MigOperationError):
        await prepare_shares(node, "b", PART)
    assert list(node.instances()) == [KEY]
    assert set(await node.engine.records()) == {"a"}
    await node.unprepare("a")
    assert node.instances() == {}


async def test_a_claim_that_is_allocated_otherwise_leaves_what_others_share(node: EngineNode) -> None:
    await dies(node, "a", PART, at="after create_gpu_instance")
    await prepare_shares(node, "b", PART)
    other = f"{FIRST}-mig-2g20gb-4"
    await prepare_shares(node, "b", other)
    assert set(node.instances()) == {KEY, (0, "2g.20gb", 4)}
    await node.unprepare("a")
    assert set(node.instances()) == {(0, "2g.20gb", 4)}


async def test_a_claim_that_gets_another_share_of_its_device_keeps_the_instance(node: EngineNode) -> None:
    a = await prepare_shares(node, "a", PART)
    anew = replace(shares("a", PART), results=(replace(shares("b", PART).results[0]),))
    again = await node.engine.prepare(anew, boot_seconds(), CALL_SECONDS)
    assert uuids(again) == uuids(a) == node.instances()[KEY]
    assert list(cdi_devices(node, "a")) == [f"{PART}-share-{share_id('b', 0)}"]


async def test_b088_after_a_reboot_the_first_share_makes_the_partition_again(node: EngineNode) -> None:
    a, b = await prepare_shares(node, "a", PART), await prepare_shares(node, "b", PART)
    node.gpus.reboot()
    await node.restart()
    again = await prepare_shares(node, "b", PART)
    assert uuids(again) == node.instances()[KEY] != uuids(b)
    await node.unprepare("b")
    assert node.instances() == {}
    once_more = await prepare_shares(node, "a", PART)
    assert uuids(once_more) == node.instances()[KEY] != uuids(a)
    await node.unprepare("a")
    assert node.instances() == {}


async def test_an_instance_that_was_destroyed_in_use_is_made_anew_for_the_next_share(
    node: EngineNode,
) -> None:
    a, b = await prepare_shares(node, "a", PART), await prepare_shares(node, "b", PART)
    node.gpus.destroy_mig(0, node.gpus.gpu(0).gpu_instances[0].id)
    await node.hardware.read_once()
    gone = await node.engine.vanished()
    assert sorted(record.claim.uid for record, _ in gone) == ["a", "b"]
    c = await prepare_shares(node, "c", PART)
    assert uuids(c) == node.instances()[KEY] != uuids(a)
    # Who is asked for again gets what is there now.
    assert uuids(await prepare_shares(node, "a", PART)) == uuids(c)
    await node.unprepare("c")
    assert node.instances()[KEY] == uuids(c)
    await node.unprepare("b")
    assert node.instances()[KEY] == uuids(c)
    assert uuids(b) == uuids(a) != uuids(c)
    await node.unprepare("a")
    assert node.instances() == {}


async def test_an_administrators_instance_in_the_place_of_a_shared_one_is_left_alone(
    node: EngineNode,
) -> None:
    await prepare_shares(node, "a", PART)
    node.gpus.destroy_mig(0, node.gpus.gpu(0).gpu_instances[0].id)
    foreign = node.gpus.create_mig(0, "1g.10gb", 0)
    with pytest.raises(MigOperationError, match="was not created by this driver"):
        await prepare_shares(node, "b", PART)
    await node.unprepare("a")
    assert node.instances()[KEY] == [one.uuid for one in foreign.compute_instances]


async def test_a_lost_cdi_spec_of_a_share_is_written_as_it_was(node: EngineNode) -> None:
    for uid in ("a", "b"):
        await node.engine.prepare(shares(uid, PART, PART, memory_bytes=5 << 30), boot_seconds(), CALL_SECONDS)
    before = {uid: node.specs.read(uid) for uid in ("a", "b")}
    name = "GPU_MEMORY_LIMIT_BYTES_GPU_0000_11_00_0_MIG_1G10GB_0"
    assert all((spec or b"").count(f'"{name}={5 << 30}"'.encode()) == 2 for spec in before.values())
    for uid in before:
        node.specs.remove(uid)
    assert {claim.uid for claim in await node.engine.mend()} == {"a", "b"}
    assert {uid: node.specs.read(uid) for uid in ("a", "b")} == before


async def test_the_hardware_view_knows_a_shared_instance_as_ours(node: EngineNode) -> None:
    await prepare_shares(node, "a", PART)
    await prepare_shares(node, "b", PART)
    await node.unprepare("a")
    await node.hardware.read_once()
    records = (await node.engine.records()).values()
    own = own_instances(records, node.hardware.inventory.gpus, node.hardware.boot_id())
    assert [len(ids) for ids in own.values()] == [1]
    device = (await node.hardware.devices(1.0))[PART]
    assert device.partition is not None


async def test_one_claim_asked_for_by_many_pods_is_prepared_once(node: EngineNode) -> None:
    steps = Steps(kinds=("nvml", "cdi"), phases=("before",))
    with watched(steps):
        records = await asyncio.gather(*(node.prepare("a", PART) for _ in range(64)))
    assert steps.seen == [
        "before set_mig_mode",
        "before create_gpu_instance",
        "before create_compute_instance",
        "before write",
    ]
    assert len({record.devices[0].uuid for record in records}) == 1
    assert all(record.state is ClaimState.PREPARED for record in records)
    await node.unprepare("a")
    assert node.instances() == {}


async def test_a_device_in_use_keeps_its_way_of_sharing_whoever_joins_or_comes_again(
    node: EngineNode,
) -> None:
    def way(record: ClaimRecord) -> object:
        return way_of_sharing(record.devices[0].published)

    def apply(shares: Shares) -> None:
        node.hardware.apply(NodePolicy(entries=(PolicyEntry(profile_shares=(("1g.10gb", shares),)),)))

    apply(Shares(ShareMode.PLACES, 4))
    first = way(await prepare_shares(node, "a", PART))
    apply(Shares(ShareMode.MEMORY))
    assert way(await prepare_shares(node, "a", PART)) == first
    assert way(await prepare_shares(node, "b", PART)) == first
    await node.unprepare("a")
    assert [way(record) for record in (await node.engine.records()).values()] == [first]
    await node.unprepare("b")
    assert way(await prepare_shares(node, "c", PART)) != first
