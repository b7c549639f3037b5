"""The claim engine on a real store, real locks and a real CDI folder, with hardware that the test decides."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from cdi.claimspec import claim_spec
from cdi.spec import ContainerEdits, DeviceNode, to_json
from cdi.specfolder import SpecFolder, SpecFolderError
from driver.claim import AllocatedClaim, AllocationResult, ClaimError, ClaimReference
from driver.devices import Device, known_devices, offered_devices
from driver.inventory import PciAddress
from driver.migoffer import MigPolicy
from driver.nodepolicy import NodePolicy
from driver.nvml import Nvml
from driver.presence import DevicePresenceError
from driver.resourceslices import published
from driver.timeslicing import Interval
from kubeletplugin.claimspecs import ContainerDevice
from kubeletplugin.engine import ClaimEngine
from kubeletplugin.gpulocks import GpuLocks
from kubeletplugin.lanes import Lanes
from kubeletplugin.metrics import Metrics
from kubeletplugin.store import ClaimState, Store, StoreError, boot_seconds
from kubeletplugin.storethread import StoreThread
from tests.unit.driver.inventories import gpu, inventory
from tests.unit.kubeletplugin.records import held, record

T = TypeVar("T")

POOL = "node-1"


class Hardware:
    """Two GPUs whose MIG mode is not ours to change.

    ``gone`` are devices that NVML no longer has, ``excluded`` those that are not offered.
    """

    def __init__(self) -> None:
        self.inventory = inventory(
            gpu(0x65, index=0, minor=0, resetless_mig=False), gpu(0x66, index=1, minor=1, resetless_mig=False)
        )
        self.gone: set[str] = set()
        self.excluded: set[str] = set()
        self.verified: list[str] = []

    async def devices(self, timeout: float) -> Mapping[str, Device]:
        return known_devices(self.inventory, {})

    def why_not_offered(self, name: str) -> str:
        offered = {
            device.name for device in offered_devices(self.inventory, NodePolicy(mig=MigPolicy.STATIC), {})
        }
        return "" if name in offered - self.excluded else "is excluded"

    def published(self, device: Device) -> dict[str, Any]:
        return published(device, self.inventory)

    async def verify(self, device: Device) -> bool:
        self.verified.append(device.name)
        if device.name in self.gone:
            raise DevicePresenceError(device.name, "there is no GPU any more")
        return False

    async def on_gpu(self, pci: PciAddress, call: str, function: Callable[[Nvml], T], timeout: float) -> T:
        raise AssertionError(f"{call}: nothing here needs MIG")

    async def set_interval(self, pci: PciAddress, gpu_uuid: str, interval: Interval, lock: int) -> None:
        raise AssertionError(f"GPU {pci}: nothing here asks for the interval {interval}")

    def describe_process(self, pid: int) -> str:
        return str(pid)

    def driver_is_gone(self) -> bool:
        return False

    def claim_spec(self, claim_uid: str, devices: Sequence[ContainerDevice]) -> bytes:
        edits = {
            item.device.name: ContainerEdits(
                device_nodes=(DeviceNode(f"/dev/nvidia{item.device.gpu.minor}"),)
            )
            for item in devices
        }
        return to_json(claim_spec(claim_uid, edits, ContainerEdits()))


class Specs(SpecFolder):
    """A CDI folder that refuses what the test says."""

    refuses: frozenset[str] = frozenset()

    def write(self, claim_uid: str, content: bytes) -> None:
        if "write" in self.refuses:
            raise SpecFolderError(self.path, "write", OSError(28, "No space left on device"))
        super().write(claim_uid, content)

    def remove(self, claim_uid: str) -> None:
        if "remove" in self.refuses:
            raise SpecFolderError(self.path, "remove", OSError(30, "Read-only file system"))
        super().remove(claim_uid)


class Fixture:
    def __init__(self, folder: Path) -> None:
        (folder / "locks").mkdir()
        self.hardware = Hardware()
        self.specs = Specs(folder / "cdi")
        self.store = StoreThread(Store(folder / "state.db"))
        self.locks = GpuLocks(folder / "locks")
        self.engine = ClaimEngine(
            hardware=self.hardware,
            store=self.store,
            locks=self.locks,
            specs=self.specs,
            lanes=Lanes(lambda thread: ""),
            metrics=Metrics(),
            pool=POOL,
            boot_id="boot-1",
        )
        self.engine.restored.set()

    async def prepare(self, claim: AllocatedClaim, timeout: float = 5) -> list[str]:
        record = await self.engine.prepare(claim, boot_seconds(), timeout)
        return [device.cdi_device for device in record.devices]

    async def held(self) -> dict[str, ClaimState]:
        return {uid: record.state for uid, record in (await self.engine.records()).items()}


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Fixture]:
    made = Fixture(tmp_path)
    yield made
    await asyncio.to_thread(made.store.close)


def claim(uid: str, *devices: str, admin: bool = False) -> AllocatedClaim:
    results = tuple(AllocationResult("gpu", POOL, device, admin) for device in devices)
    return AllocatedClaim(ClaimReference("default", f"claim-{uid}", uid), results, (), ())


FIRST, SECOND = "gpu-0000-65-00-0", "gpu-0000-66-00-0"


async def test_a_claim_is_prepared_recorded_and_forgotten(node: Fixture) -> None:
    assert await node.prepare(claim("a", FIRST, SECOND)) == [
        f"gpudra.io/claim=a-{FIRST}",
        f"gpudra.io/claim=a-{SECOND}",
    ]
    assert node.engine.changed.is_set()
    assert await node.held() == {"a": ClaimState.PREPARED}
    spec = json.loads(node.specs.read("a") or b"")
    assert [device["name"] for device in spec["devices"]] == [f"a-{FIRST}", f"a-{SECOND}"]
    forgotten = await node.engine.unprepare(claim("a").reference, 5)
    assert forgotten is not None
    assert [device.device for device in forgotten.devices] == [FIRST, SECOND]
    assert await node.held() == {}
    assert node.specs.read("a") is None
    assert await node.engine.unprepare(claim("a").reference, 5) is None


async def test_a_cdi_folder_that_refuses_undoes_everything(node: Fixture) -> None:
    node.specs.refuses = frozenset({"write"})
    with pytest.raises(SpecFolderError, match="free space"):
        await node.prepare(claim("a", FIRST))
    assert await node.held() == {}
    node.specs.refuses = frozenset()
    await node.prepare(claim("b", FIRST))


async def test_what_cannot_be_undone_stays_half_prepared_and_is_mended_by_the_next(node: Fixture) -> None:
    node.specs.refuses = frozenset({"write", "remove"})
    with pytest.raises(SpecFolderError):
        await node.prepare(claim("a", FIRST))
    assert await node.held() == {"a": ClaimState.PREPARING}
    with pytest.raises(ClaimError, match="in use by claim default/claim-a"):
        await node.prepare(claim("b", FIRST))
    node.specs.refuses = frozenset()
    await node.prepare(claim("a", FIRST))
    assert await node.held() == {"a": ClaimState.PREPARED}


async def test_a_failing_repetition_keeps_what_was_prepared(node: Fixture) -> None:
    await node.prepare(claim("a", FIRST))
    node.hardware.gone.add(FIRST)
    with pytest.raises(DevicePresenceError):
        await node.prepare(claim("a", FIRST))
    node.hardware.gone.clear()
    node.specs.remove("a")
    node.specs.refuses = frozenset({"write"})
    with pytest.raises(SpecFolderError):
        await node.prepare(claim("a", FIRST))
    assert await node.held() == {"a": ClaimState.PREPARED}


async def test_an_unprepare_whose_file_stays_keeps_the_claim(node: Fixture) -> None:
    await node.prepare(claim("a", FIRST))
    node.specs.refuses = frozenset({"remove"})
    with pytest.raises(SpecFolderError):
        await node.engine.unprepare(claim("a").reference, 5)
    assert await node.held() == {"a": ClaimState.PREPARED}
    node.specs.refuses = frozenset()
    await node.engine.unprepare(claim("a").reference, 5)
    assert await node.held() == {}


async def test_a_device_that_is_not_offered_is_refused_but_kept_by_who_has_it(node: Fixture) -> None:
    await node.prepare(claim("a", FIRST))
    node.hardware.excluded = {FIRST, SECOND}
    with pytest.raises(ClaimError, match="is excluded") as error:
        await node.prepare(claim("b", SECOND))
    assert error.value.cause == "NotOffered"
    await node.prepare(claim("a", FIRST))


async def test_a_claim_that_was_allocated_anew_gets_its_new_devices(node: Fixture) -> None:
    await node.prepare(claim("a", FIRST))
    node.hardware.excluded = {SECOND}
    with pytest.raises(ClaimError, match="is excluded"):
        await node.prepare(claim("a", SECOND))
    node.hardware.excluded = set()
    node.specs.refuses = frozenset({"write"})
    with pytest.raises(SpecFolderError):
        await node.prepare(claim("a", SECOND))
    node.specs.refuses = frozenset()
    # From the moment that it may have been written down, the new device is nobody else's.
    with pytest.raises(ClaimError, match="in use by claim default/claim-a"):
        await node.prepare(claim("b", SECOND))
    assert await node.prepare(claim("a", SECOND)) == [f"gpudra.io/claim=a-{SECOND}"]
    await node.prepare(claim("b", FIRST))


async def test_b017_another_card_in_the_place_is_refused_with_both_uuids(node: Fixture) -> None:
    await node.prepare(claim("a", FIRST))
    node.hardware.inventory = inventory(gpu(0x65, uuid="GPU-new", minor=0, resetless_mig=False))
    with pytest.raises(ClaimError) as error:
        await node.prepare(claim("a", FIRST))
    assert error.value.cause == "CardSwapped"
    assert all(text in str(error.value) for text in (FIRST, gpu(0x65).uuid, "GPU-new"))
    await node.engine.unprepare(claim("a").reference, 5)
    await node.prepare(claim("b", FIRST))


async def test_what_a_rebuilt_record_does_not_know_is_no_swap(node: Fixture) -> None:
    unknown = record(held(FIRST, uuid="", gpu_uuid="", published={"name": FIRST}), uid="a", name="")
    await node.store.run(lambda store: store.put(unknown))
    await node.prepare(claim("a", FIRST))
    ((device,),) = [record.devices for record in (await node.engine.records()).values()]
    assert device.gpu_uuid == gpu(0x65).uuid


async def test_b151_admin_access_is_in_nobodys_way_and_is_not_verified(node: Fixture) -> None:
    await node.prepare(claim("owner", FIRST))
    node.hardware.verified.clear()
    async with node.locks.hold(["0000:65:00.0", "0000:66:00.0"], "somebody", 1):
        await node.prepare(claim("admin", FIRST, SECOND, admin=True), timeout=0.2)
    assert node.hardware.verified == []
    await node.prepare(claim("other", SECOND))
    assert len(await node.held()) == 3


async def test_b048_a_prepare_asked_for_before_the_unprepare_is_refused(node: Fixture) -> None:
    asked_at = boot_seconds()
    await node.engine.unprepare(claim("a").reference, 5)
    with pytest.raises(ClaimError, match="was unprepared while this Prepare waited"):
        await node.engine.prepare(claim("a", FIRST), asked_at, 5)
    assert await node.held() == {}
    await node.prepare(claim("a", FIRST))


async def test_b052_the_same_claim_at_once_is_carried_out_once(node: Fixture) -> None:
    answers = await asyncio.gather(*(node.prepare(claim("a", FIRST, SECOND)) for _ in range(10)))
    assert all(answer == answers[0] for answer in answers)
    assert await node.held() == {"a": ClaimState.PREPARED}


async def test_b066_prepares_unprepares_and_sweeps_at_once_leave_files_and_store_in_agreement(
    node: Fixture,
) -> None:
    async def use(number: int) -> None:
        one = claim(f"c{number % 12}", FIRST if number % 2 else SECOND)
        try:
            await node.prepare(one)
        except ClaimError as error:
            assert error.cause in ("InUse", "Unprepared")
        if number % 3:
            await node.engine.unprepare(one.reference, 5)

    async def sweep() -> None:
        for _ in range(20):
            await node.engine.sweep()
            await node.engine.mend()

    await asyncio.gather(*(use(number) for number in range(120)), sweep())
    uids = set(await node.held())
    assert node.specs.claim_uids() == uids
    assert len(uids) <= 2


async def test_a_store_that_fails_leaves_no_file(node: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    puts = iter([None, StoreError("the disk is full")])
    real = Store.put

    def put(self: Store, record: Any) -> None:
        problem = next(puts, None)
        if problem is not None:
            raise problem
        real(self, record)

    monkeypatch.setattr(Store, "put", put)
    with pytest.raises(StoreError, match="full"):
        await node.prepare(claim("a", FIRST))
    assert await node.held() == {}
    assert node.specs.claim_uids() == set()


async def test_a_lost_file_is_written_again_for_the_same_card_only(node: Fixture) -> None:
    await node.prepare(claim("a", FIRST))
    await node.prepare(claim("b", SECOND))
    before = node.specs.read("a")
    for uid in ("a", "b"):
        node.specs.remove(uid)
    node.hardware.inventory = inventory(
        gpu(0x65, minor=0, resetless_mig=False), gpu(0x66, uuid="GPU-new", minor=1, resetless_mig=False)
    )
    assert [reference.uid for reference in await node.engine.mend()] == ["a"]
    assert node.specs.read("a") == before
    assert node.specs.read("b") is None


async def test_nothing_is_prepared_before_the_store_is_known(node: Fixture) -> None:
    node.engine.restored.clear()
    with pytest.raises(ClaimError, match="the store is being rebuilt; trying again is safe") as error:
        await node.prepare(claim("a", FIRST), timeout=0.05)
    assert error.value.cause == "NotReady"
    node.engine.obstacle = "CDI folder /x: cannot list"
    with pytest.raises(ClaimError, match="CDI folder /x: cannot list"):
        await asyncio.wait_for(node.prepare(claim("a", FIRST), timeout=60), 1)
    assert await node.engine.unprepare(claim("a").reference, 5) is None


async def test_b063_mig_devices_are_not_forgotten_while_nobody_tells_whose_they_are(node: Fixture) -> None:
    part = f"{FIRST}-mig-1g10gb-0"
    for uid, name in (("whole", FIRST), ("part", part)):
        edits = {name: ContainerEdits(device_nodes=(DeviceNode("/dev/nvidia0"),))}
        node.specs.write(uid, to_json(claim_spec(uid, edits, ContainerEdits())))
    node.specs.write("broken", b"{")
    node.engine.restored.clear()
    node.engine.obstacle = "the API server does not answer"
    with pytest.raises(ClaimError, match="not known yet: the API server does not answer") as error:
        await node.engine.unprepare(claim("part").reference, 5)
    assert error.value.cause == "NotReady"
    assert await node.engine.sweep() == []
    for uid in ("whole", "broken"):
        assert await node.engine.unprepare(claim(uid).reference, 5) is None
    assert node.specs.claim_uids() == {"part"}
    named = record(held(part), uid="part")
    await node.store.run(lambda store: store.put(named))
    assert await node.engine.unprepare(claim("part").reference, 5) == named
    assert node.specs.claim_uids() == set()


async def test_b053_a_prepare_that_is_cancelled_in_mid_step_is_undone(
    node: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, go = threading.Event(), threading.Event()
    write = node.specs.write

    def wait(claim_uid: str, content: bytes) -> None:
        reached.set()
        go.wait(5)
        write(claim_uid, content)

    monkeypatch.setattr(node.specs, "write", wait)
    task = asyncio.create_task(node.prepare(claim("a", FIRST)))
    assert await asyncio.to_thread(reached.wait, 5)
    assert await node.held() == {"a": ClaimState.PREPARING}
    task.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await node.held() == {}
    assert node.specs.claim_uids() == set()
    await node.prepare(claim("a", FIRST))
