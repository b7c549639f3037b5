"""Claims, some with shares and intervals, crashes, reboots, lost GPUs, an API server that goes away and an
administrator's own changes in any order: nothing leaks, and nothing that is not ours is touched."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import uuid
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from driver.claim import ClaimError, ClaimReference
from driver.migoffer import MigPolicy
from driver.nvml import NvmlError, NvmlUnavailable
from driver.presence import DevicePresenceError
from kube.asyncclient import AsyncKubeClient
from kube.client import KubeClient
from kube.conditions import nobody
from kube.errors import ApiError, ApiUnavailable
from kubeletplugin import migoperations
from kubeletplugin.claimsource import ClaimSource
from kubeletplugin.cleanup import Cleanup
from kubeletplugin.migoperations import CardGone, MigOperationError
from kubeletplugin.store import ClaimRecord, ClaimState, boot_seconds
from kubeletplugin.timeslices import TimeSliceError
from nvmlsim.library import StateError
from tests.cluster.controlplane import ControlPlane
from tests.harness.apiproxy import ApiProxy, Away, Refusal, api_proxy
from tests.harness.claims import (
    API_VERSION,
    Claim,
    allocate,
    create_claim,
    delete_claim,
    opaque,
    result,
)
from tests.harness.enginenode import CALL_SECONDS, POOL, EngineNode, Killed, Steps, watched
from tests.harness.timeslices import intervals, time_slicing

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
SHARED = [NAMES[0], f"{NAMES[0]}-mig-1g10gb-0", f"{NAMES[1]}-mig-2g20gb-4"]
"""Of these a claim may have a share: few, so that claims meet."""

REFUSALS = (
    ClaimError,
    MigOperationError,
    CardGone,
    DevicePresenceError,
    NvmlError,
    NvmlUnavailable,
    ApiError,
    ApiUnavailable,
    TimeSliceError,
    Killed,
)
"""What a claim may be answered with; anything else is a fault of the plugin."""

Key = tuple[int, str, int]


@dataclass(frozen=True)
class Wish:
    """What a claim has: devices, each with whether that is a share, and the interval that it asks for."""

    devices: tuple[tuple[str, bool], ...]
    interval: str | None

    def results(self) -> list[dict[str, Any]]:
        return [
            result(device, POOL, **({"shareID": str(uuid.uuid4())} if is_share else {}))
            for device, is_share in self.devices
        ]

    def configs(self) -> list[dict[str, Any]]:
        return [] if self.interval is None else [opaque(time_slicing(self.interval))]


labels = st.sampled_from(["a", "b", "c", "d"])
outages = st.sampled_from([Away(), Refusal(503, "ServiceUnavailable"), Refusal(429, "TooManyRequests")])
gpus = st.sampled_from([0, 1])
choices = st.builds(
    Wish,
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(DEVICES), st.just(False)),
            st.tuples(st.sampled_from(SHARED), st.just(True)),
        ),
        min_size=1,
        max_size=3,
        unique_by=lambda one: one[0],
    ).map(tuple),
    st.sampled_from([None, None, "Short", "Long"]),
)


class Machine(RuleBasedStateMachine):
    """``claims`` has for each label the claim that is or was called so; ``deleted`` are the UIDs of some."""

    def __init__(self, control_plane: ControlPlane, proxy: ApiProxy, client: AsyncKubeClient) -> None:
        super().__init__()
        self.api = control_plane.api
        self.proxy = proxy
        self.client = client
        self.source = ClaimSource(client)
        self.folder = Path(tempfile.mkdtemp(prefix="gpudra-random-"))
        self.loop = asyncio.new_event_loop()
        self.patience = migoperations.IN_USE_SECONDS
        migoperations.IN_USE_SECONDS = 0.0
        self.node = EngineNode(self.folder, "hgx-h100", gpus=GPUS)
        self.claims: dict[str, Claim] = {}
        self.wishes: dict[str, Wish] = {}
        self.deleted: set[str] = set()
        self.foreign: dict[Key, list[str]] = {}
        self.modes_of_administrator: set[int] = set()
        self.lost: set[int] = set()
        self.run(self.node.start())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(work, 60))

    def records(self) -> dict[str, ClaimRecord]:
        return self.run(self.node.engine.records())

    def uids(self) -> set[str]:
        return set(self.records())

    def teardown(self) -> None:
        try:
            self.proxy.intercept = None
            for gpu in self.lost:
                self.forget(gpu)
                self.node.gpus.reset(gpu)
            self.lost.clear()
            self.begin_anew()
            for record in self.records().values():
                self.run(self.node.engine.unprepare(record.claim, CALL_SECONDS))
            assert self.node.instances() == self.foreign
            assert (self.records(), self.node.specs.claim_uids()) == ({}, set())
            self.clean_up()
            assert intervals(self.node.gpus) == {}
            self.check_modes()
        finally:
            migoperations.IN_USE_SECONDS = self.patience
            self.run(self.node.stop())
            self.loop.close()
            shutil.rmtree(self.folder)
            for claim in self.claims.values():
                if claim.uid not in self.deleted:
                    delete_claim(self.api, claim)

    def check_modes(self) -> None:
        """With nothing prepared, a MIG mode that no administrator turned on is off or noted as ours.

        What is noted goes off where MIG is not dynamic.
        """
        assert self.run(self.node.modes_left_on()) <= self.modes_of_administrator
        self.run(self.node.own_modes(MigPolicy.STATIC).once())
        in_use = {gpu for gpu, _, _ in self.foreign}
        on = {gpu.gpu for gpu in self.node.gpus.gpus() if gpu.mig_mode}
        assert in_use <= on <= in_use | self.modes_of_administrator

    def begin_anew(self) -> None:
        """What a new process does at its start, clean-up included."""
        self.run(self.node.restart())
        self.run(self.node.engine.sweep())
        self.run(self.node.engine.mend())
        self.run(self.node.own_modes().once())
        self.clean_up()

    def forget(self, gpu: int) -> None:
        """The instances of this GPU are gone."""
        self.foreign = {key: uuids for key, uuids in self.foreign.items() if key[0] != gpu}

    async def _prepare(self, label: str) -> None:
        known, asked_at = self.claims[label], boot_seconds()
        reference = ClaimReference(known.namespace, known.name, known.uid)
        allocated, _ = await self.source.read(reference, CALL_SECONDS)
        record = await self.node.engine.prepare(allocated, asked_at, CALL_SECONDS)
        made = {uuid for uuids in self.node.instances().values() for uuid in uuids}
        for held in record.devices:
            assert held.profile_id is None or held.uuid in made, held
            if held.interval is not None:
                assert intervals(self.node.gpus)[NAMES.index(held.device)] == held.interval

    async def _unprepare(self, label: str) -> None:
        known = self.claims[label]
        await self.node.engine.unprepare(ClaimReference(known.namespace, known.name, known.uid), CALL_SECONDS)

    def attempt(self, work: Coroutine[Any, Any, None]) -> bool:
        try:
            self.run(work)
        except REFUSALS:
            return False
        return True

    def allocate(self, label: str, wish: Wish, *, anew: bool = False) -> None:
        """What a claim holds is not allocated to it anew, unless the test says so."""
        claim = self.claims.get(label)
        if claim is not None and claim.uid in self.uids() and not anew:
            return
        if claim is None or claim.uid in self.deleted:
            self.claims[label] = create_claim(self.api, wish.results(), configs=wish.configs())
        elif self.wishes[label] != wish:
            freed = {"status": {"allocation": None, "reservedFor": None}}
            self.api.patch(API_VERSION, "ResourceClaim", claim.name, freed, subresource="status")
            allocate(self.api, claim, wish.results(), configs=wish.configs())
        self.wishes[label] = wish

    @rule(label=labels, wish=choices)
    def prepare(self, label: str, wish: Wish) -> None:
        self.allocate(label, wish)
        before = self.uids()
        if self.attempt(self._prepare(label)):
            assert self.proxy.intercept is None
            assert self.records()[self.claims[label].uid].state is ClaimState.PREPARED
        elif self.proxy.intercept is not None:
            assert self.uids() == before

    @rule(label=labels, wish=choices)
    def prepare_a_claim_that_was_allocated_anew(self, label: str, wish: Wish) -> None:
        self.allocate(label, wish, anew=True)
        self.attempt(self._prepare(label))

    @rule(label=labels)
    def unprepare(self, label: str) -> None:
        if label in self.claims:
            self.run(self._unprepare(label))
            assert self.claims[label].uid not in self.uids()

    @rule(label=labels, wish=choices, at=st.integers(1, 25), unprepare=st.booleans())
    def die(self, label: str, wish: Wish, at: int, unprepare: bool) -> None:
        def kill(step: str) -> None:
            raise Killed(step)

        self.allocate(label, wish)
        with watched(Steps(at, fail=kill)):
            self.attempt(self._unprepare(label) if unprepare else self._prepare(label))
        self.begin_anew()

    @rule(label=labels, wish=choices, turns=st.integers(1, 25))
    def cancel(self, label: str, wish: Wish, turns: int) -> None:
        """The process ends in order, in the middle of the work."""

        async def cancelled() -> None:
            task = asyncio.create_task(self._prepare(label))
            for _ in range(turns):
                await asyncio.sleep(0.0005)
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and task.exception() is not None:
                assert isinstance(task.exception(), REFUSALS), task.exception()

        self.allocate(label, wish)
        self.run(cancelled())

    @rule(outage=st.one_of(st.none(), outages))
    def api_server(self, outage: Away | Refusal | None) -> None:
        """It goes away, or is back."""
        self.proxy.intercept = None if outage is None else lambda request: outage

    @rule(label=labels)
    def delete(self, label: str) -> None:
        """The claim and its pods are deleted, and the kubelet does not say so."""
        if label in self.claims and self.claims[label].uid not in self.deleted:
            delete_claim(self.api, self.claims[label])
            self.deleted.add(self.claims[label].uid)

    @rule()
    def clean_up(self) -> None:
        """Only an answer that a claim is gone counts."""
        before = self.uids()
        cleanup = Cleanup(
            self.node.engine,
            self.client,
            self.node.metrics,
            pool=POOL,
            period_seconds=1.0,
            grace_seconds=0.0,
            on_vanished=lambda record, devices: None,
            announce=nobody,
        )
        self.run(cleanup.once())
        assert self.uids() == (before if self.proxy.intercept else before - self.deleted)

    @rule(what=st.sampled_from(["restart", "reboot", "rescan", "lose", "reset"]), gpu=gpus)
    def misfortune(self, what: str, gpu: int) -> None:
        if what == "restart":
            self.begin_anew()
        elif what == "reboot":
            self.node.gpus.reboot()
            self.foreign.clear()
            self.modes_of_administrator.clear()
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
            self.modes_of_administrator.add(gpu)
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
                both_shares = device.device == another.device and None not in (
                    device.share_id,
                    another.share_id,
                )
                assert uid == other or both_shares or not device.footprint.overlaps(another.footprint)


def test_b067_random_order(control_plane: ControlPlane) -> None:
    with api_proxy(control_plane, "random") as proxy:
        client = AsyncKubeClient(KubeClient.load(proxy.kubeconfig))

        class MachineHere(Machine):
            def __init__(self) -> None:
                super().__init__(control_plane, proxy, client)

        run_state_machine_as_test(
            MachineHere,
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=STEPS,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                print_blob=True,
            ),
        )
