"""What is left when work on partitions ends at any step: killed, refused by NVML, full disk, reboot."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Callable
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
        assert made - beside == {uuid for uuid in held if uuid.startswith("MIG-")}, when
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


def kill(step: str) -> None:
    raise Killed(step)


def nvml_fails(step: str) -> None:
    raise NvmlError(f"nvml {step}", Code.UNKNOWN)


def disk_is_full(step: str) -> None:
    if step == "before commit":
        raise StoreError("state.db: database or disk is full")
    if step == "before write":
        raise SpecFolderError(Path("/cdi"), "write", OSError(errno.ENOSPC, "No space left on device"))


async def until_done(trial: Trial, work: Callable[[], object], steps: Steps) -> bool:
    """Do ``work`` with ``steps``; whether it failed as wanted. False: there are no more steps."""
    with watched(steps):
        try:
            await work()  # type: ignore[misc]
        except (Killed, NvmlError, StoreError, SpecFolderError, migoperations.MigOperationError):
            return True
    return steps.reached


@pytest.mark.parametrize("case", CASES)
async def test_b067_killed_at_each_step_of_prepare(node: EngineNode, case: str) -> None:
    trial = Trial(node, CASES[case])
    for at in range(1, MOST_STEPS):
        await trial.begin()
        steps = Steps(at, fail=kill)
        if not await until_done(trial, trial.prepare, steps):
            break
        when = f"{case}, step {at}: {steps.seen[at - 1]}"
        await node.restart()
        if at % 2:
            await trial.prepare()
            await trial.prepared(when)
        await trial.unprepare()
        await trial.nothing_is_left(when)
    else:
        pytest.fail(f"there are more than {MOST_STEPS} steps")


@pytest.mark.parametrize("case", CASES)
async def test_b067_killed_at_each_step_of_unprepare(node: EngineNode, case: str) -> None:
    trial = Trial(node, CASES[case])
    for at in range(1, MOST_STEPS):
        await trial.begin()
        await trial.prepare()
        steps = Steps(at, fail=kill)
        if not await until_done(trial, trial.unprepare, steps):
            break
        when = f"{case}, step {at}: {steps.seen[at - 1]}"
        await node.restart()
        if at % 2:
            await trial.prepare()
            await trial.prepared(when)
        await trial.unprepare()
        await trial.nothing_is_left(when)
    else:
        pytest.fail(f"there are more than {MOST_STEPS} steps")


@pytest.mark.parametrize("fail", [nvml_fails, disk_is_full])
@pytest.mark.parametrize("case", CASES)
async def test_an_error_at_each_step_of_prepare_leaves_nothing_that_a_retry_does_not_mend(
    node: EngineNode, case: str, fail: Callable[[str], None]
) -> None:
    trial = Trial(node, CASES[case])
    lasting = fail is disk_is_full
    kinds = ("store", "cdi") if lasting else ("nvml",)
    for at in range(1, MOST_STEPS):
        await trial.begin()
        steps = Steps(at, lasting, kinds, ("before",), fail)
        if not await until_done(trial, trial.prepare, steps):
            break
        when = f"{case}, step {at}: {steps.seen[at - 1]}"
        if not lasting:
            await trial.nothing_is_left(when)
        if at % 2:
            await trial.prepare()
            await trial.prepared(when)
        await trial.unprepare()
        await trial.nothing_is_left(when)
    else:
        pytest.fail(f"there are more than {MOST_STEPS} steps")


@pytest.mark.parametrize("fail", [nvml_fails, disk_is_full])
@pytest.mark.parametrize("case", CASES)
async def test_an_error_at_each_step_of_unprepare_is_mended_by_the_next(
    node: EngineNode, case: str, fail: Callable[[str], None]
) -> None:
    trial = Trial(node, CASES[case])
    lasting = fail is disk_is_full
    kinds = ("store", "cdi") if lasting else ("nvml",)
    for at in range(1, MOST_STEPS):
        await trial.begin()
        await trial.prepare()
        steps = Steps(at, lasting, kinds, ("before",), fail)
        if not await until_done(trial, trial.unprepare, steps):
            break
        when = f"{case}, step {at}: {steps.seen[at - 1]}"
        if at % 2:
            await trial.prepare()
            await trial.prepared(when)
        await trial.unprepare()
        if trial.case.mode and fail is nvml_fails:
            # A mode that cannot be put back is told in the log, and holds up no pod.
            trial.node.gpus.set_mig_mode(0)
        await trial.nothing_is_left(when)
    else:
        pytest.fail(f"there are more than {MOST_STEPS} steps")


@pytest.mark.parametrize("case", CASES)
async def test_b088_a_reboot_at_each_step_of_prepare(node: EngineNode, case: str) -> None:
    trial = Trial(node, CASES[case])
    for at in range(1, MOST_STEPS):
        await trial.begin()
        steps = Steps(at, fail=kill)
        if not await until_done(trial, trial.prepare, steps):
            break
        when = f"{case}, step {at}: {steps.seen[at - 1]}"
        node.gpus.reboot()
        await node.restart()
        trial.beside = {}
        assert await node.modes_left_on() == set(), when
        if at % 2:
            if trial.case.before:
                await node.prepare("before", *trial.case.before)
                trial.beside = node.instances()
            await trial.prepare()
            await trial.prepared(when)
        await trial.unprepare()
        assert node.instances() == trial.beside, when
        assert "claim" not in node.specs.claim_uids() | set(await node.engine.records()), when
        assert await node.modes_left_on() == set(), when
    else:
        pytest.fail(f"there are more than {MOST_STEPS} steps")
