"""What is left when work on partitions ends at any step: killed, refused by NVML, full disk, reboot."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import pytest

from cdi.specfolder import SpecFolderError
from driver.nvml import Code, NvmlError
from kubeletplugin import migoperations
from kubeletplugin.store import ClaimState, StoreError
from tests.harness.enginenode import EngineNode, Killed, Steps, watched

FIRST, SECOND = "gpu-0000-11-00-0", "gpu-0000-12-00-0"
GPUS = [{"model": "h100-sxm5-80gb", "pci": f"0000:{bus}:00.0"} for bus in (11, 12)]
MOST_STEPS = 60


@dataclass(frozen=True)
class Case:
    """One claim to prepare and unprepare. ``before`` is prepared then; ``unprepared`` was, in this boot."""

    devices: tuple[str, ...]
    before: tuple[str, ...] = ()
    unprepared: tuple[str, ...] = ()
    foreign: tuple[tuple[int, str, int], ...] = ()
    mode: tuple[int, ...] = ()


CASES = {
    "one partition": Case((f"{FIRST}-mig-1g10gb-2",)),
    "two on one GPU": Case((f"{FIRST}-mig-1g10gb-2", f"{FIRST}-mig-3g40gb-4")),
    "on two GPUs": Case((f"{FIRST}-mig-2g20gb-2", f"{SECOND}-mig-7g80gb-0")),
    "a whole GPU after a partition": Case((FIRST,), unprepared=(f"{FIRST}-mig-1g10gb-0",)),
    "a whole GPU in an administrator's MIG mode": Case((FIRST, SECOND), mode=(0,)),
    "beside another claim": Case((f"{FIRST}-mig-1g10gb-1",), before=(f"{FIRST}-mig-1g10gb-0",)),
    "beside an administrator's instance": Case(
        (f"{FIRST}-mig-1g10gb-1", SECOND), foreign=((0, "2g.20gb", 4),)
    ),
    "an administrator's instance": Case((f"{FIRST}-mig-2g20gb-4",), foreign=((0, "2g.20gb", 4),)),
    "a whole GPU and a partition": Case(
        (FIRST, f"{SECOND}-mig-3g40gb-4"), unprepared=(f"{FIRST}-mig-1g10gb-0",)
    ),
}


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EngineNode]:
    monkeypatch.setattr(migoperations, "IN_USE_SECONDS", 0.05)
    made = EngineNode(tmp_path, "hgx-h100", gpus=GPUS)
    await made.start()
    yield made
    await made.stop()


class Trial:
    """A case on a node, again and again from the same beginning."""

    def __init__(self, node: EngineNode, case: Case) -> None:
        self.node = node
        self.case = case
        self.beside: dict[tuple[int, str, int], list[str]] = {}

    async def begin(self) -> None:
        """Bring the node into the state before the claim, whatever it was."""
        node, case = self.node, self.case
        for uid in await node.engine.records():
            await node.unprepare(uid)
        for gpu in node.gpus.gpus():
            for instance in gpu.gpu_instances:
                node.gpus.destroy_mig(gpu.gpu, instance.id)
            node.gpus.set_mig_mode(gpu.gpu, False)
        for number in case.mode:
            node.gpus.set_mig_mode(number)
        for number, profile, start in case.foreign:
            node.gpus.set_mig_mode(number)
            node.gpus.create_mig(number, profile, start)
        await node.restart()
        if case.unprepared:
            await node.prepare("earlier", *case.unprepared)
            await node.unprepare("earlier")
        if case.before:
            await node.prepare("before", *case.before)
        self.beside = node.instances()

    async def prepared(self, when: str) -> None:
        """The claim, and what was before it, is all there is."""
        node = self.node
        records = await node.engine.records()
        assert records["claim"].state is ClaimState.PREPARED, when
        held = {device.uuid for device in records["claim"].devices}
        assert "" not in held, when
        made = {uuid for uuids in node.instances().values() for uuid in uuids}
        beside = {uuid for uuids in self.beside.values() for uuid in uuids}
        assert made - beside == {uuid for uuid in held if uuid.startswith("MIG-")} - beside, when
        assert node.instances().items() >= self.beside.items(), when
        whole = {device.device for device in records["claim"].devices} & {FIRST, SECOND}
        names = {f"gpu-{gpu.pci_bus_id.replace(':', '-').replace('.', '-')}": gpu for gpu in node.gpus.gpus()}
        assert not any(names[name].mig_mode for name in whole), when
        assert node.specs.claim_uids() == set(records), when

    async def nothing_is_left(self, when: str) -> None:
        node, case = self.node, self.case
        assert node.instances() == self.beside, when
        assert set(await node.engine.records()) == ({"before"} if case.before else set()), when
        assert node.specs.claim_uids() == ({"before"} if case.before else set()), when
        by_admin = {*case.mode, *(number for number, _, _ in case.foreign)}
        assert await node.modes_left_on() == by_admin, when

    async def prepare(self) -> None:
        await self.node.prepare("claim", *self.case.devices)

    async def unprepare(self) -> None:
        await self.node.unprepare("claim")

    async def retried(self, when: str, retry: bool) -> None:
        """What the next attempts make of it: the whole claim, if it is prepared again, and then nothing."""
        if retry:
            await self.prepare()
            await self.prepared(when)
        await self.unprepare()


@dataclass(frozen=True)
class Fault:
    """What happens at a step: ``fail`` raises it, see :class:`tests.harness.enginenode.Steps`."""

    fail: Callable[[str], None]
    lasting: bool = True
    kinds: Collection[str] = ("nvml", "store", "cdi")
    phases: Collection[str] = ("before", "after")


def kill(step: str) -> None:
    raise Killed(step)


def nvml_fails(step: str) -> None:
    raise NvmlError(f"nvml {step}", Code.UNKNOWN)


def disk_is_full(step: str) -> None:
    if step == "before commit":
        raise StoreError("state.db: database or disk is full")
    if step == "before write":
        raise SpecFolderError(Path("/cdi"), "write", OSError(errno.ENOSPC, "No space left on device"))


KILLED = Fault(kill)
NVML_FAILS = Fault(nvml_fails, lasting=False, kinds=("nvml",), phases=("before",))
DISK_IS_FULL = Fault(disk_is_full, kinds=("store", "cdi"), phases=("before",))
CAUGHT = (Killed, NvmlError, StoreError, SpecFolderError, migoperations.MigOperationError)


async def each_step(trial: Trial, work: str, fault: Fault) -> AsyncIterator[tuple[str, bool]]:
    """Begin anew for each step of ``work``, ``prepare`` or ``unprepare``, and let the fault happen at it.

    Yields what the step was, and whether to try the claim's prepare again, which every second one is for.
    """
    for at in range(1, MOST_STEPS):
        await trial.begin()
        if work == "unprepare":
            await trial.prepare()
        steps = Steps(at, fault.lasting, fault.kinds, fault.phases, fault.fail)
        with watched(steps):
            try:
                await (trial.prepare() if work == "prepare" else trial.unprepare())
            except CAUGHT:
                pass
            else:
                if not steps.reached:
                    return
        yield f"step {at} of {work}: {steps.seen[at - 1]}", at % 2 == 1
    pytest.fail(f"there are more than {MOST_STEPS} steps")


@pytest.fixture
def trial(node: EngineNode, case: str) -> Trial:
    return Trial(node, CASES[case])


both = pytest.mark.parametrize("work", ["prepare", "unprepare"])
all_cases = pytest.mark.parametrize("case", CASES)


@both
@all_cases
async def test_b067_killed_at_each_step(trial: Trial, work: str) -> None:
    async for when, retry in each_step(trial, work, KILLED):
        await trial.node.restart()
        await trial.retried(when, retry)
        await trial.nothing_is_left(when)


@all_cases
async def test_an_nvml_error_at_each_step_of_prepare_leaves_nothing(trial: Trial) -> None:
    async for when, retry in each_step(trial, "prepare", NVML_FAILS):
        await trial.nothing_is_left(when)
        await trial.retried(when, retry)
        await trial.nothing_is_left(when)


@all_cases
async def test_an_nvml_error_at_each_step_of_unprepare_is_mended_by_the_next(trial: Trial) -> None:
    async for when, retry in each_step(trial, "unprepare", NVML_FAILS):
        await trial.retried(when, retry)
        if trial.case.mode:
            # A mode that cannot be put back is told in the log, and holds up no pod.
            trial.node.gpus.set_mig_mode(0)
        await trial.nothing_is_left(when)


@both
@all_cases
async def test_a_full_disk_at_each_step_is_mended_by_the_next_attempt(trial: Trial, work: str) -> None:
    async for when, retry in each_step(trial, work, DISK_IS_FULL):
        await trial.retried(when, retry)
        await trial.nothing_is_left(when)


@both
@all_cases
async def test_b088_a_reboot_at_each_step(trial: Trial, work: str) -> None:
    node, case = trial.node, trial.case
    async for when, retry in each_step(trial, work, KILLED):
        node.gpus.reboot()
        await node.restart()
        trial.beside = {}
        assert await node.modes_left_on() == set(), when
        if retry and case.before:
            await node.prepare("before", *case.before)
            trial.beside = node.instances()
        await trial.retried(when, retry)
        assert node.instances() == trial.beside, when
        assert "claim" not in node.specs.claim_uids() | set(await node.engine.records()), when
        assert await node.modes_left_on() == set(), when
