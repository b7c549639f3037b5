"""Intervals set for claims and put back after them: which runs of nvidia-smi there are, and what is noted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from driver.claim import AllocatedClaim, AllocationResult, ClaimError, ClaimReference, ConfigEntry
from driver.devices import Device
from driver.inventory import Gpu, PciAddress
from driver.plan import PreparePlan, plan_prepare
from driver.timeslicing import Interval, NotedInterval
from kubeletplugin import intent
from kubeletplugin.gpulocks import GpuLocks
from kubeletplugin.lanes import LaneTimeout
from kubeletplugin.nvidiasmi import NotSupportedByGpu, NvidiaSmiError
from kubeletplugin.store import ClaimRecord, HeldDevice, Store, StoreError
from kubeletplugin.storethread import StoreThread
from kubeletplugin.timeslices import TimeSliceError, TimeSlices
from tests.unit.kubeletplugin.records import held, record

PCI = ["0000:65:00.0", "0000:66:00.0"]
FIRST, SECOND = (f"GPU-of-{pci}" for pci in PCI)


class Hardware:
    """GPUs that have intervals. ``answers`` are raised, for a GPU and an interval or for a GPU."""

    def __init__(self) -> None:
        self.runs: list[tuple[str, str]] = []
        self.intervals: dict[str, str] = {}
        self.answers: dict[object, Exception] = {}
        self.unloaded = False

    async def set_interval(self, pci: PciAddress, gpu_uuid: str, interval: Interval, lock: int) -> None:
        assert gpu_uuid == f"GPU-of-{pci}"
        assert lock > 2
        self.runs.append((gpu_uuid, str(interval)))
        answer = self.answers.get((gpu_uuid, str(interval))) or self.answers.get(gpu_uuid)
        if answer is not None:
            raise answer
        self.intervals[gpu_uuid] = str(interval)

    def driver_is_gone(self) -> bool:
        return self.unloaded


class Node:
    """A store and the files of locks. ``start`` is a new process, in another boot if it says so."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hardware = Hardware()
        self.store = StoreThread(Store(folder / "state.db"))

    async def start(self, boot_id: str = "boot-1") -> None:
        locks = GpuLocks(self.folder)
        async with locks.hold(PCI, "the test", 5):
            pass
        await self.store.run(lambda store: store.enter_boot(boot_id))
        self.timeslices = TimeSlices(self.hardware, self.store, locks, boot_id)

    async def prepare(self, claim: ClaimRecord) -> None:
        await self.store.run(lambda store: store.put(claim))
        await self.timeslices.hold(claim)

    async def unprepare(self, claim: ClaimRecord) -> None:
        await self.timeslices.release(claim)
        await self.store.run(lambda store: store.remove(claim.claim.uid))

    async def noted(self) -> dict[str, tuple[str, bool]]:
        found = await self.store.run(lambda store: store.noted_intervals())
        return {one.gpu_uuid: (str(one.interval), one.holds) for one in found}

    def taken_runs(self) -> list[tuple[str, str]]:
        runs, self.hardware.runs = self.hardware.runs, []
        return runs


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path)
    await made.start()
    yield made
    await asyncio.to_thread(made.store.close)


def on(gpu: int, interval: str | None, **more: Any) -> HeldDevice:
    pci = PCI[gpu]
    name = f"gpu-{pci.replace(':', '-').replace('.', '-')}"
    return held(name, pci, interval=Interval(interval) if interval else None, **more)


async def test_b097_a_claim_that_asks_for_none_runs_nothing(node: Node) -> None:
    for claim in (record(on(0, None)), record(on(0, "Long", admin_access=True))):
        await node.prepare(claim)
        await node.unprepare(claim)
    assert (node.hardware.runs, await node.noted()) == ([], {})


async def test_b097_a_claim_that_asks_for_none_does_not_even_ask_the_store(node: Node) -> None:
    await asyncio.to_thread(node.store.close)
    claim = record(on(0, None), on(1, None))
    await node.timeslices.hold(claim)
    await node.timeslices.release(claim)
    with pytest.raises(StoreError, match="is closed"):
        await node.timeslices.hold(record(on(0, "Long")))


async def test_an_interval_is_set_once_and_put_back(node: Node) -> None:
    claim = record(on(0, "Short"), on(1, None))
    await node.prepare(claim)
    assert await node.noted() == {FIRST: ("Short", True)}
    await node.prepare(claim)
    await node.start()
    await node.prepare(claim)
    assert node.taken_runs() == [(FIRST, "Short")]
    await node.unprepare(claim)
    assert node.taken_runs() == [(FIRST, "Default")]
    assert await node.noted() == {}


async def test_b100_the_default_comes_back_once_when_the_last_that_asks_has_ended(node: Node) -> None:
    first, second = (record(on(0, "Long", share_id=share)) for share in ("a", "b"))
    watching, silent = record(on(0, "Long", admin_access=True)), record(on(0, None, share_id="c"))
    for claim in (first, second, watching, silent):
        await node.prepare(claim)
    assert node.taken_runs() == [(FIRST, "Long")]
    for claim in (first, watching, silent):
        await node.unprepare(claim)
    assert (node.hardware.runs, await node.noted()) == ([], {FIRST: ("Long", True)})
    await node.unprepare(second)
    assert node.taken_runs() == [(FIRST, "Default")]


async def test_b100_the_default_that_was_asked_for_is_set_once_and_not_put_back(node: Node) -> None:
    claim = record(on(0, "Default"))
    await node.prepare(claim)
    await node.prepare(claim)
    assert node.taken_runs() == [(FIRST, "Default")]
    await node.unprepare(claim)
    assert (node.hardware.runs, await node.noted()) == ([], {})


async def test_b108_after_a_reboot_it_is_set_again(node: Node) -> None:
    claim = record(on(0, "Short"))
    await node.prepare(claim)
    await node.start("boot-2")
    assert await node.noted() == {}
    await node.prepare(claim)
    assert node.taken_runs() == [(FIRST, "Short")] * 2
    await node.start("boot-3")
    await node.unprepare(claim)
    assert node.hardware.runs == []


async def test_b105_when_the_second_gpu_fails_the_first_gets_back_what_it_had(node: Node) -> None:
    claim = record(on(0, "Long"), on(1, "Long"))
    node.hardware.answers[SECOND, "Long"] = NvidiaSmiError("nvidia-smi ended with status 15")
    with pytest.raises(TimeSliceError, match=f"interval Long .* GPU {PCI[1]}.*status 15"):
        await node.prepare(claim)
    assert node.hardware.intervals == {FIRST: "Long"}
    await node.unprepare(claim)
    assert node.hardware.intervals == {FIRST: "Default", SECOND: "Default"}
    assert await node.noted() == {}


async def test_b098_a_gpu_without_the_setting_fails_what_asks_for_more_than_the_default(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.hardware.answers[FIRST] = NotSupportedByGpu("nvidia-smi said: Not Supported")
    asks_for_short = record(on(0, "Short"))
    with pytest.raises(TimeSliceError, match=r"interval Short .*Not Supported"):
        await node.prepare(asks_for_short)
    assert await node.noted() == {}
    await node.unprepare(asks_for_short)
    assert caplog.text == ""
    asks_for_default = record(on(0, "Default"))
    await node.prepare(asks_for_default)
    assert "interval Default cannot be set on GPU 0000:65:00.0" in caplog.text
    await node.prepare(asks_for_default)
    assert node.taken_runs() == [(FIRST, "Short"), (FIRST, "Default")]


@pytest.mark.parametrize("answer", [NvidiaSmiError("status 15"), LaneTimeout("hangs")])
async def test_b099_what_cannot_be_put_back_is_left_over_until_it_can(
    node: Node, answer: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    claim = record(on(0, "Long"))
    await node.prepare(claim)
    node.hardware.answers[FIRST, "Default"] = answer
    await node.unprepare(claim)
    assert f"interval Default cannot be set on GPU 0000:65:00.0 ({FIRST}): {answer}" in caplog.text
    await node.start()
    assert [one.gpu_uuid for one in await node.timeslices.left_over()] == [FIRST]
    assert len(await node.timeslices.put_back([FIRST])) == 1
    node.hardware.answers.clear()
    assert await node.timeslices.put_back([FIRST]) == []
    assert node.hardware.intervals == {FIRST: "Default"}
    assert await node.timeslices.left_over() == []


async def test_b099_a_reset_that_is_not_supported_is_a_warning_and_done(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    claim = record(on(0, "Long"))
    await node.prepare(claim)
    node.hardware.answers[FIRST, "Default"] = NotSupportedByGpu("Not Supported")
    await node.unprepare(claim)
    assert "Not Supported" in caplog.text
    assert await node.noted() == {}


async def test_what_is_left_over_does_not_stand_in_the_way_of_the_next_claim(node: Node) -> None:
    first, second = record(on(0, "Long")), record(on(0, "Short"))
    await node.prepare(first)
    node.hardware.answers[FIRST, "Default"] = NvidiaSmiError("status 15")
    await node.unprepare(first)
    await node.prepare(second)
    assert await node.timeslices.left_over() == []
    assert node.hardware.intervals == {FIRST: "Short"}
    assert await node.timeslices.put_back([FIRST]) == []
    assert node.hardware.intervals == {FIRST: "Short"}


async def test_what_was_begun_when_the_process_died_counts_as_unknown(node: Node) -> None:
    claim = record(on(0, "Long"))
    begun = NotedInterval(PciAddress.parse(PCI[0]), FIRST, Interval.LONG, "boot-1", holds=False)

    def die_half_way(store: Store) -> None:
        store.put(claim)
        store.note_interval(begun)

    await node.store.run(die_half_way)
    assert await node.timeslices.left_over() == []
    await node.prepare(claim)
    assert node.taken_runs() == [(FIRST, "Long")]


async def test_without_the_driver_there_is_nothing_to_put_back(node: Node) -> None:
    claim = record(on(0, "Long"))
    await node.prepare(claim)
    node.hardware.unloaded = True
    await node.unprepare(claim)
    assert node.taken_runs() == [(FIRST, "Long")]
    assert await node.noted() == {}


def planned(uid: str, interval: str) -> PreparePlan:
    """A claim with a share of the first GPU."""
    sharing = {"timeSlicingConfig": {"interval": interval}}
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": sharing}
    device = Device("gpu-0000-65-00-0", Gpu(FIRST, PciAddress.parse(PCI[0]), 0))
    results = (AllocationResult("gpu", "node-1", device.name, share_id=uid),)
    entries = (ConfigEntry(0, "FromClaim", (), parameters),)
    claim = AllocatedClaim(ClaimReference("default", uid, uid), results, entries, ())
    return plan_prepare(claim, {device.name: device}, "node-1")


async def test_b101_the_second_claim_with_another_interval_is_refused_until_the_first_is_gone(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    # That two claims can hold one GPU is decided elsewhere.
    monkeypatch.setattr(intent, "check_held", lambda store, plan: None)
    first, wanted = record(on(0, "Short"), uid="first"), record(on(0, "Long"), uid="second")
    await node.prepare(first)

    def begin(store: Store) -> object:
        return intent.begin(store, planned("second", "Long"), wanted, 0.0, lambda name: "")

    with pytest.raises(ClaimError, match=r"second.*interval Long .*interval Short for claim default/claim"):
        await node.store.run(begin)
    assert await node.store.run(lambda store: set(store.claims())) == {"first"}
    assert node.hardware.intervals == {FIRST: "Short"}
    await node.unprepare(first)
    await node.store.run(begin)
    await node.timeslices.hold(wanted)
    assert node.hardware.intervals == {FIRST: "Long"}
