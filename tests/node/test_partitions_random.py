"""Claims, crashes, reboots, lost GPUs and an administrator's own changes in random order: nothing leaks, and
nothing that is not ours is touched."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from driver.claim import ClaimError
from driver.nvml import NvmlError, NvmlUnavailable
from driver.presence import DevicePresenceError
from kubeletplugin import migoperations
from kubeletplugin.migoperations import CardGone, MigOperationError
from kubeletplugin.store import ClaimRecord, ClaimState
from nvmlsim.library import StateError
from tests.harness.enginenode import EngineNode, Killed, Steps, watched

T = TypeVar("T")

EXAMPLES, STEPS = 40, 50
GPUS = [{"model": "h100-sxm5-80gb", "pci": f"0000:{bus}:00.0"} for bus in (11, 12)]
NAMES = ["gpu-0000-11-00-0", "gpu-0000-12-00-0"]
PARTS = [
    ("1g.10gb", 0),
    ("1g.10gb", 1),
    ("1g.10gb", 6),
    ("2g.20gb", 0),
    ("2g.20gb", 4),
    ("3g.40gb", 0),
    ("3g.40gb", 4),
    ("7g.80gb", 0),
]
DEVICES = NAMES + [
    f"{name}-mig-{profile.replace('.', '')}-{start}" for name in NAMES for profile, start in PARTS
]
REFUSALS = (ClaimError, MigOperationError, CardGone, DevicePresenceError, NvmlError, NvmlUnavailable, Killed)
"""What a claim may be answered with; anything else is a fault of the plugin."""

Key = tuple[int, str, int]

uids = st.sampled_from(["a", "b", "c", "d"])
gpus = st.sampled_from([0, 1])
choices = st.lists(st.sampled_from(DEVICES), min_size=1, max_size=3, unique=True)


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="gpudra-random-"))
        self.loop = asyncio.new_event_loop()
        self.patience = migoperations.IN_USE_SECONDS
        migoperations.IN_USE_SECONDS = 0.0
        self.node = EngineNode(self.folder, "hgx-h100", gpus=GPUS)
        self.claims: dict[str, list[str]] = {}
        self.foreign: dict[Key, list[str]] = {}
        self.lost: set[int] = set()
        self.run(self.node.start())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(work, 60))

    def records(self) -> dict[str, ClaimRecord]:
        return self.run(self.node.engine.records())

    def teardown(self) -> None:
        try:
            for gpu in self.lost:
                self.forget(gpu)
                self.node.gpus.reset(gpu)
            self.lost.clear()
            self.begin_anew()
            for uid in self.records():
                self.run(self.node.unprepare(uid))
            assert self.node.instances() == self.foreign
            assert (self.records(), self.node.specs.claim_uids()) == ({}, set())
        finally:
            migoperations.IN_USE_SECONDS = self.patience
            self.run(self.node.stop())
            self.loop.close()
            shutil.rmtree(self.folder)

    def begin_anew(self) -> None:
        """What a new process does at its start, clean-up included."""
        self.run(self.node.restart())
        self.run(self.node.engine.sweep())
        self.run(self.node.engine.mend())

    def forget(self, gpu: int) -> None:
        """The instances of this GPU are gone."""
        self.foreign = {key: uuids for key, uuids in self.foreign.items() if key[0] != gpu}

    async def _prepare(self, uid: str) -> None:
        record = await self.node.prepare(uid, *self.claims[uid])
        made = {uuid for uuids in self.node.instances().values() for uuid in uuids}
        for held in record.devices:
            assert held.profile_id is None or held.uuid in made, held

    def attempt(self, work: Coroutine[Any, Any, None]) -> bool:
        try:
            self.run(work)
        except REFUSALS:
            return False
        return True

    def allocate(self, uid: str, devices: list[str]) -> None:
        """What a claim holds is not allocated to it anew, unless the test says so."""
        if uid not in self.records():
            self.claims[uid] = devices

    @rule(uid=uids, devices=choices)
    def prepare(self, uid: str, devices: list[str]) -> None:
        self.allocate(uid, devices)
        if self.attempt(self._prepare(uid)):
            assert self.records()[uid].state is ClaimState.PREPARED

    @rule(uid=uids, devices=choices)
    def prepare_a_claim_that_was_allocated_anew(self, uid: str, devices: list[str]) -> None:
        self.claims[uid] = devices
        self.attempt(self._prepare(uid))

    @rule(uid=uids)
    def unprepare(self, uid: str) -> None:
        self.run(self.node.unprepare(uid))
        assert uid not in self.records()

    @rule(uid=uids, devices=choices, at=st.integers(1, 25), unprepare=st.booleans())
    def die(self, uid: str, devices: list[str], at: int, unprepare: bool) -> None:
        def kill(step: str) -> None:
            raise Killed(step)

        self.allocate(uid, devices)
        with watched(Steps(at, fail=kill)):
            self.attempt(self.node.unprepare(uid) if unprepare else self._prepare(uid))
        self.begin_anew()

    @rule(uid=uids, devices=choices, turns=st.integers(1, 25))
    def cancel(self, uid: str, devices: list[str], turns: int) -> None:
        """The process ends in order, in the middle of the work."""

        async def cancelled() -> None:
            task = asyncio.create_task(self.node.prepare(uid, *self.claims[uid]))
            for _ in range(turns):
                await asyncio.sleep(0.0005)
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and task.exception() is not None:
                assert isinstance(task.exception(), REFUSALS), task.exception()

        self.allocate(uid, devices)
        self.run(cancelled())

    @rule(what=st.sampled_from(["restart", "reboot", "rescan", "lose", "reset"]), gpu=gpus)
    def misfortune(self, what: str, gpu: int) -> None:
        if what == "restart":
            self.begin_anew()
        elif what == "reboot":
            self.node.gpus.reboot()
            self.foreign.clear()
            self.lost.clear()
            self.begin_anew()
        elif what == "lose":
            self.node.gpus.lose(gpu)
            self.lost.add(gpu)
        elif what == "reset" or self.lost:
            gpu = self.lost.pop() if self.lost else gpu
            self.node.gpus.reset(gpu)
            self.forget(gpu)
        self.run(self.node.hardware.read_once())

    @rule(gpu=gpus, part=st.sampled_from(PARTS))
    def administrator_creates(self, gpu: int, part: tuple[str, int]) -> None:
        name = f"{NAMES[gpu]}-mig-{part[0].replace('.', '')}-{part[1]}"
        for record in self.records().values():
            for held in record.devices:
                # In the place of one that was begun and whose UUID is not known, nobody can tell them apart.
                if held.device == name and not held.uuid:
                    return
        if gpu in self.lost:
            return
        if not self.node.gpus.gpu(gpu).mig_mode:
            if any(
                device.footprint.gpu.bus == 0x11 + gpu
                for record in self.records().values()
                for device in record.devices
            ):
                return
            self.node.gpus.set_mig_mode(gpu)
        try:
            made = self.node.gpus.create_mig(gpu, *part)
        except StateError:
            return
        self.foreign[gpu, *part] = [one.uuid for one in made.compute_instances]

    @rule(gpu=gpus, which=st.integers(0, 6))
    def administrator_destroys(self, gpu: int, which: int) -> None:
        """His own instance, or one of ours."""
        instances = self.node.gpus.gpu(gpu).gpu_instances
        if which < len(instances) and gpu not in self.lost:
            gone = instances[which]
            self.node.gpus.destroy_mig(gpu, gone.id)
            self.foreign.pop((gpu, gone.profile, gone.start), None)

    @invariant()
    def nothing_foreign_is_touched(self) -> None:
        found = self.node.instances()
        assert {key: found.get(key) for key in self.foreign} == self.foreign

    @invariant()
    def nothing_of_ours_is_leaked(self) -> None:
        held = {
            (NAMES.index(device.device[: len(NAMES[0])]), device.device)
            for record in self.records().values()
            for device in record.devices
        }
        for gpu, profile, start in set(self.node.instances()) - set(self.foreign):
            if gpu not in self.lost:
                name = f"{NAMES[gpu]}-mig-{profile.replace('.', '')}-{start}"
                assert (gpu, name) in held, f"{name} is leaked"

    @invariant()
    def files_and_store_agree(self) -> None:
        records = self.records()
        assert self.node.specs.claim_uids() <= set(records)
        for uid, record in records.items():
            names = [device.device for device in record.devices]
            assert len(set(names)) == len(names), uid

    @invariant()
    def no_two_claims_overlap(self) -> None:
        held = [(uid, device) for uid, record in self.records().items() for device in record.devices]
        for uid, device in held:
            for other, another in held:
                assert uid == other or not device.footprint.overlaps(another.footprint)


def test_b067_random_order() -> None:
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )
