"""The claim engine in this process, with a real store, CDI folder and locks, on simulated GPUs through NVML.

What a plugin process has in memory can be dropped and made anew, as if the process had been killed, and what
it does to the world can be made to fail at any step.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cdi.specfolder import SpecFolder
from driver.claim import AllocatedClaim, AllocationResult, ClaimReference, ConfigEntry
from driver.gpuselection import GpuSelection
from driver.migoffer import MigPolicy
from driver.nodepolicy import NodePolicy
from driver.nvml import Nvml, call_of_thread
from kube.conditions import Announce, nobody
from kubeletplugin import settings
from kubeletplugin.engine import ClaimEngine
from kubeletplugin.gpulocks import GpuLocks
from kubeletplugin.hardware import GpuHardware
from kubeletplugin.lanes import Lanes
from kubeletplugin.metrics import Metrics
from kubeletplugin.nvidiasmi import NvidiaSmi
from kubeletplugin.ownmodes import OwnModes
from kubeletplugin.store import ClaimRecord, Store, boot_seconds
from kubeletplugin.storethread import StoreThread
from nvmlsim.node import SimulatedNode
from tests.harness.steppedplugin import NVML_CHANGES, SMI_CHANGES

POOL = "n1"
CALL_SECONDS = 30.0


def claim(
    uid: str, *devices: str, admin: bool = False, parameters: object = None, share: str | None = None
) -> AllocatedClaim:
    """A claim that has these devices of the node, or shares of them, with ``parameters`` as configuration."""
    results = tuple(AllocationResult("gpu", POOL, device, admin, share) for device in devices)
    configs = () if parameters is None else (ConfigEntry(0, "FromClaim", (), parameters),)
    return AllocatedClaim(ClaimReference("default", f"claim-{uid}", uid), results, configs, ())


class EngineNode:
    """A node whose plugin has an engine and nothing else. ``start`` is a new process."""

    def __init__(self, folder: Path, machine: str, **overrides: Any) -> None:
        self.gpus = SimulatedNode.create(folder / "gpu", machine, **overrides)
        parser = argparse.ArgumentParser()
        settings.add_arguments(parser, {})
        flags = [*self.gpus.plugin_flags(), "--node-name", POOL, "--driver-root", str(self.gpus.root)]
        self._settings = settings.read(parser.parse_args(flags))
        self._folder = folder
        (folder / "locks").mkdir()
        self.specs = SpecFolder(folder / "cdi")
        self.metrics = Metrics()
        self._lanes = Lanes(call_of_thread)

    async def start(self) -> None:
        """Begin as a new process in the boot that is now: nothing is known but what is on disk."""
        self.store = StoreThread(Store(self._folder / "state.db"))

        async def records() -> Collection[ClaimRecord]:
            return (await self.engine.records()).values()

        self.locks = GpuLocks(self._folder / "locks")
        self.hardware = GpuHardware(self._settings, self._lanes, self.metrics, records=records)
        self.hardware.apply_requested({})
        boot_id = self.hardware.boot_id()
        self.engine = ClaimEngine(
            hardware=self.hardware,
            store=self.store,
            locks=self.locks,
            specs=self.specs,
            lanes=self._lanes,
            metrics=self.metrics,
            pool=POOL,
            boot_id=boot_id,
        )
        await self.store.run(lambda store: store.enter_boot(boot_id))
        self.engine.restored.set()
        assert await self.hardware.read_once(), self.hardware.unavailable

    def own_modes(
        self,
        policy: MigPolicy = MigPolicy.DYNAMIC,
        excluded: Sequence[str] = (),
        announce: Announce = nobody,
    ) -> OwnModes:
        """What looks after the MIG modes that are noted as ours, as under ``--mig`` and ``--exclude``."""
        return OwnModes(
            self.hardware,
            self.store,
            self.locks,
            self.metrics,
            announce,
            policy=lambda: NodePolicy(GpuSelection.parse(excluded), policy),
            boot_id=self.hardware.boot_id(),
        )

    async def stop(self) -> None:
        await asyncio.to_thread(self.store.close)

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def prepare(
        self, uid: str, *devices: str, parameters: object = None, share: str | None = None
    ) -> ClaimRecord:
        wanted = claim(uid, *devices, parameters=parameters, share=share)
        return await self.engine.prepare(wanted, boot_seconds(), CALL_SECONDS)

    async def unprepare(self, uid: str) -> None:
        await self.engine.unprepare(claim(uid).reference, CALL_SECONDS)

    def instances(self) -> dict[tuple[int, str, int], list[str]]:
        """UUIDs of the MIG devices of each GPU instance, by GPU, profile and start."""
        return {
            (gpu.gpu, instance.profile, instance.start): [one.uuid for one in instance.compute_instances]
            for gpu in self.gpus.gpus()
            for instance in gpu.gpu_instances
        }

    async def modes_left_on(self) -> set[int]:
        """The GPUs in MIG mode that are not so because of us."""
        boot_id = self.hardware.boot_id()
        noted = await self.store.run(
            lambda store: {gpu.gpu for gpu in self.gpus.gpus() if store.is_mig_on_ours(gpu.uuid, boot_id)}
        )
        return {gpu.gpu for gpu in self.gpus.gpus() if gpu.mig_mode} - noted


class Killed(Exception):
    """The process was killed: nothing that it would do after this happens."""


@dataclass
class Steps:
    """Counts what the plugin does to the world, each a step before and one after it, in any thread.

    At step ``at``, ``fail`` is called with the step's name, and may raise; if ``lasting``, at each step from
    there on, which is how a process ends.
    """

    at: int = 0
    lasting: bool = True
    kinds: Collection[str] = ("nvml", "smi", "store", "cdi")
    phases: Collection[str] = ("before", "after")
    fail: Callable[[str], None] = lambda step: None
    seen: list[str] = field(default_factory=list)

    @property
    def reached(self) -> bool:
        return len(self.seen) >= self.at

    def step(self, kind: str, what: str) -> None:
        if kind not in self.kinds or what.split()[0] not in self.phases:
            return
        self.seen.append(what)
        if self.at and (len(self.seen) == self.at or (self.lasting and len(self.seen) > self.at)):
            self.fail(what)

    @contextlib.contextmanager
    def around(self, kind: str, what: str) -> Iterator[None]:
        self.step(kind, f"before {what}")
        yield
        self.step(kind, f"after {what}")


@contextlib.contextmanager
def watched(steps: Steps) -> Iterator[Steps]:
    """Put steps around every change through NVML and nvidia-smi, every commit that writes, every CDI file."""
    originals: list[tuple[Any, str, Any]] = []

    def wrap(owner: Any, name: str, kind: str) -> None:
        original = getattr(owner, name)

        def stepped(self: Any, *args: Any, **kwargs: Any) -> Any:
            with steps.around(kind, name):
                return original(self, *args, **kwargs)

        originals.append((owner, name, original))
        setattr(owner, name, stepped)

    for name in NVML_CHANGES:
        wrap(Nvml, name, "nvml")
    for name in SMI_CHANGES:
        wrap(NvidiaSmi, name, "smi")
    wrap(SpecFolder, "write", "cdi")
    wrap(SpecFolder, "remove", "cdi")
    transaction = Store.transaction

    @contextlib.contextmanager
    def stepped_transaction(self: Store) -> Iterator[None]:
        written = self._connection.total_changes
        wrote = False
        with transaction(self):
            yield
            wrote = self._connection.total_changes != written
            if wrote:
                steps.step("store", "before commit")
        if wrote:
            steps.step("store", "after commit")

    originals.append((Store, "transaction", transaction))
    Store.transaction = stepped_transaction  # type: ignore[method-assign]
    try:
        yield steps
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)
