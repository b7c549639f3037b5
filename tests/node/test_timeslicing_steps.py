"""What is left of time-slice intervals when work ends at any step: killed, refused, full disk, reboot."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from kubeletplugin.nvidiasmi import NvidiaSmiError
from kubeletplugin.store import ClaimState, StoreError
from kubeletplugin.timeslices import TimeSliceError
from tests.harness.enginenode import EngineNode, Killed, Steps, watched
from tests.harness.timeslices import intervals, time_slicing

FIRST, SECOND = "gpu-0000-11-00-0", "gpu-0000-12-00-0"
GPUS = [{"model": "h100-sxm5-80gb", "pci": f"0000:{bus}:00.0"} for bus in (11, 12)]
MOST_STEPS = 60


@dataclass(frozen=True)
class Case:
    """One claim to prepare and unprepare. With ``partition``, a MIG mode is changed for it; with ``beside``,
    another claim has shares of these devices and asks for the same."""

    devices: tuple[str, ...]
    interval: str
    partition: bool = False
    beside: tuple[str, ...] = ()

    def wanted_on(self, *devices: str) -> dict[int, str]:
        """The intervals that claims with these devices make, by number of the GPU."""
        numbers = [(FIRST, SECOND).index(device) for device in devices]
        return {} if self.interval == "Default" else dict.fromkeys(numbers, self.interval)

    @property
    def alone(self) -> set[str]:
        """The devices of which nobody else has asked for the interval."""
        return set(self.devices) - set(self.beside)


CASES = {
    "one GPU": Case((FIRST,), "Long"),
    "two GPUs": Case((FIRST, SECOND), "Short"),
    "the default": Case((SECOND,), "Default"),
    "a GPU that had partitions": Case((FIRST,), "Medium", partition=True),
    "a share beside another": Case((FIRST, SECOND), "Long", beside=(FIRST,)),
}


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[EngineNode]:
    made = EngineNode(tmp_path, "hgx-h100", gpus=GPUS)
    await made.start()
    yield made
    await made.stop()


class Trial:
    """A case on a node, again and again from the same beginning."""

    def __init__(self, node: EngineNode, case: Case) -> None:
        self.node = node
        self.case = case

    async def begin(self) -> None:
        for uid in await self.node.engine.records():
            await self.node.unprepare(uid)
        await self.node.restart()
        assert intervals(self.node.gpus) == {}
        if self.case.partition:
            await self.node.prepare("partition", f"{FIRST}-mig-1g10gb-0")
            await self.node.unprepare("partition")
        await self.prepare_beside()
        await self.nothing_is_left("at the beginning")

    async def prepare_beside(self) -> None:
        if self.case.beside:
            parameters = time_slicing(self.case.interval)
            await self.node.prepare("beside", *self.case.beside, parameters=parameters, share="one")

    async def prepare(self) -> None:
        parameters, share = time_slicing(self.case.interval), "two" if self.case.beside else None
        await self.node.prepare("claim", *self.case.devices, parameters=parameters, share=share)

    async def unprepare(self) -> None:
        await self.node.unprepare("claim")

    async def prepared(self, when: str) -> None:
        await self._left(when, "claim", *self.beside, devices={*self.case.devices, *self.case.beside})

    async def nothing_is_left(self, when: str) -> None:
        await self._left(when, *self.beside, devices=set(self.case.beside))

    @property
    def beside(self) -> list[str]:
        return ["beside"] if self.case.beside else []

    async def _left(self, when: str, *claims: str, devices: set[str]) -> None:
        """Exactly these claims are there, and GPUs have the intervals of these devices."""
        records = await self.node.engine.records()
        states = {uid: record.state for uid, record in records.items()}
        assert states == dict.fromkeys(claims, ClaimState.PREPARED), when
        assert self.node.specs.claim_uids() == set(claims), when
        assert intervals(self.node.gpus) == self.case.wanted_on(*devices), when
        noted = await self.node.store.run(lambda store: store.noted_intervals())
        assert [(str(one.interval), one.holds) for one in noted] == [
            (self.case.interval, True) for _ in devices
        ], when


def kill(step: str) -> None:
    raise Killed(step)


def command_fails(step: str) -> None:
    raise NvidiaSmiError(f"nvidia-smi ended with status 255 {step}")


def disk_is_full(step: str) -> None:
    raise StoreError("state.db: database or disk is full")


async def until_done(work: Callable[[], Awaitable[object]], steps: Steps) -> bool:
    """Do ``work`` with ``steps``; whether there was the step at which it was to fail."""
    with watched(steps):
        try:
            await work()
        except (Killed, TimeSliceError, StoreError):
            return True
    return steps.reached


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("reboot", [False, True], ids=["killed", "power lost"])
async def test_b067_b108_ended_at_each_step_of_prepare(node: EngineNode, case: str, reboot: bool) -> None:
    trial = Trial(node, CASES[case])
    for at in range(1, MOST_STEPS):
        await trial.begin()
        steps = Steps(at, fail=kill)
        if not await until_done(trial.prepare, steps):
            break
        when = f"{case}, step {at}: {steps.seen[at - 1]}"
        if reboot:
            node.gpus.reboot()
        await node.restart()
        if reboot:
            await trial.prepare_beside()
        if at % 2:
            await trial.prepare()
            await trial.prepared(when)
        await trial.unprepare()
        await trial.nothing_is_left(when)
    else:
        pytest.fail(f"there are more than {MOST_STEPS} steps")
    assert {"before set_interval", "after set_interval"} <= set(steps.seen)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("reboot", [False, True], ids=["killed", "power lost"])
async def test_b067_ended_at_each_step_of_unprepare(node: EngineNode, case: str, reboot: bool) -> None:
    trial = Trial(node, CASES[case])
    for at in range(1, MOST_STEPS):
        await trial.begin()
        await trial.prepare()
        steps = Steps(at, fail=kill)
        if not await until_done(trial.unprepare, steps):
            break
        when = f"{case}, step {at}: {steps.seen[at - 1]}"
        if reboot:
            node.gpus.reboot()
        await node.restart()
        if reboot:
            await trial.prepare_beside()
        if at % 2:
            await trial.prepare()
            await trial.prepared(when)
        await trial.unprepare()
        await trial.nothing_is_left(when)
    else:
        pytest.fail(f"there are more than {MOST_STEPS} steps")


@pytest.mark.parametrize("phase", ["before", "after"])
@pytest.mark.parametrize("case", CASES)
async def test_b105_a_command_that_fails_leaves_nothing(node: EngineNode, case: str, phase: str) -> None:
    """``after``: the command has done its work, and fails all the same."""
    trial = Trial(node, CASES[case])
    for at in range(1, MOST_STEPS):
        await trial.begin()
        steps = Steps(at, lasting=False, kinds=("smi",), phases=(phase,), fail=command_fails)
        if not await until_done(trial.prepare, steps):
            break
        await trial.nothing_is_left(f"{case}, run {at}")
        await trial.prepare()
        await trial.prepared(f"{case}, run {at}")
    else:
        pytest.fail(f"there are more than {MOST_STEPS} steps")
    assert at == len(CASES[case].alone) + 1


@pytest.mark.parametrize("phase", ["before", "after"])
@pytest.mark.parametrize("case", CASES)
async def test_b099_what_cannot_be_put_back_is_put_back_by_the_clean_up(
    node: EngineNode, case: str, phase: str
) -> None:
    trial = Trial(node, CASES[case])
    await trial.begin()
    await trial.prepare()
    with watched(Steps(1, kinds=("smi",), phases=(phase,), fail=command_fails)):
        await trial.unprepare()
        assert list(await node.engine.records()) == trial.beside
        assert len(await node.engine.put_back_intervals()) == len(CASES[case].wanted_on(*CASES[case].alone))
    await node.restart()
    assert await node.engine.put_back_intervals() == []
    await trial.nothing_is_left(case)


@pytest.mark.parametrize("case", CASES)
async def test_a_full_disk_at_each_step_leaves_nothing_that_a_retry_does_not_mend(
    node: EngineNode, case: str
) -> None:
    trial = Trial(node, CASES[case])
    for work in (trial.prepare, trial.unprepare):
        for at in range(1, MOST_STEPS):
            await trial.begin()
            if work == trial.unprepare:
                await trial.prepare()
            steps = Steps(at, kinds=("store",), phases=("before",), fail=disk_is_full)
            if not await until_done(work, steps):
                break
            when = f"{case}, step {at} of {work.__name__}: {steps.seen[at - 1]}"
            if at % 2:
                await trial.prepare()
                await trial.prepared(when)
            await trial.unprepare()
            await trial.nothing_is_left(when)
        else:
            pytest.fail(f"there are more than {MOST_STEPS} steps")


async def test_what_is_left_over_of_a_gpu_that_is_away_waits_for_it(node: EngineNode) -> None:
    trial = Trial(node, CASES["one GPU"])
    await trial.prepare()
    with watched(Steps(1, kinds=("smi",), phases=("before",), fail=command_fails)):
        await trial.unprepare()
    gone = node.gpus.gpu(0)
    node.gpus.unplug(0)
    await node.restart()
    assert await node.engine.put_back_intervals() == []
    assert len(await node.store.run(lambda store: store.noted_intervals())) == 1
    node.gpus.plug(gone.model, pci=gone.pci_bus_id, uuid=gone.uuid, minor=gone.minor)
    await node.restart()
    assert await node.engine.put_back_intervals() == []
    await trial.nothing_is_left("when it is back")


async def test_a_claim_allocated_anew_without_sharing_gives_its_interval_back(node: EngineNode) -> None:
    for first, second, then in (
        ("Long", None, {}),
        ("Long", "Short", {0: "Short"}),
        (None, "Long", {0: "Long"}),
    ):
        for interval in (first, second):
            parameters = None if interval is None else time_slicing(interval)
            await node.prepare("claim", FIRST, parameters=parameters)
        assert intervals(node.gpus) == then
        await node.unprepare("claim")
        assert intervals(node.gpus) == {}
    await node.prepare("claim", FIRST, parameters=time_slicing("Long"))
    await node.prepare("claim", SECOND, parameters=time_slicing("Long"))
    assert intervals(node.gpus) == {1: "Long"}
    await node.unprepare("claim")
    assert intervals(node.gpus) == {}
