"""Health: whether the process is alive, and whether it is of use, as the kubelet's probes ask."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path

import grpc

from kubeletplugin.api import dra_v1_pb2, pluginregistration_v1_pb2
from kubeletplugin.api.dra_v1_pb2_grpc import DRAPluginStub
from kubeletplugin.api.pluginregistration_v1_pb2_grpc import RegistrationStub
from kubeletplugin.engine import ClaimEngine
from kubeletplugin.hardware import GpuHardware
from kubeletplugin.lanes import Lanes
from kubeletplugin.publisher import SlicePublisher
from kubeletplugin.registration import Registration
from kubeletplugin.storethread import StoreThread

_ANSWER_SECONDS = 5.0
_STARTING_SECONDS = 900.0
"""Eight GPUs without persistence mode take minutes to initialise."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Health:
    """Looks at the parts of one process. ``liveness_seconds``: how long a hardware call may hang."""

    hardware: GpuHardware
    lanes: Lanes
    store: StoreThread
    engine: ClaimEngine
    registration: Registration
    publisher: SlicePublisher
    dra_socket: Path
    registration_socket: Path
    liveness_seconds: float

    async def not_alive(self) -> list[str]:
        """Ask the process's own threads and sockets, as the kubelet would; returns what does not answer."""
        problems: list[str] = []
        limit = self.liveness_seconds
        if not self.hardware.ready.is_set():
            limit = max(limit, _STARTING_SECONDS)
        for busy in self.lanes.busy():
            if busy.seconds > limit:
                problems.append(f"{busy} hangs for {busy.seconds:.0f} s, the limit is {limit:.0f} s")
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self._ask()
        except TimeoutError:
            problems.append(
                f"the plugin's own sockets or store did not answer within {_ANSWER_SECONDS:.0f} s"
            )
        except Exception as error:
            problems.append(f"the plugin's own sockets or store failed: {error}")
        for problem in problems:
            log.error("not alive: %s", problem)
        return problems

    async def _ask(self) -> None:
        await self.store.run(lambda store: None)
        async with grpc.aio.insecure_channel(f"unix:{self.registration_socket}") as channel:
            await RegistrationStub(channel).GetInfo(pluginregistration_v1_pb2.InfoRequest())
        async with grpc.aio.insecure_channel(f"unix:{self.dra_socket}") as channel:
            await DRAPluginStub(channel).NodePrepareResources(dra_v1_pb2.NodePrepareResourcesRequest())

    async def not_ready(self) -> list[str]:
        """What is still missing before the node's devices can be claimed."""
        problems = []
        if self.hardware.unavailable:
            problems.append(f"the GPUs cannot be read: {self.hardware.unavailable}")
        if self.engine.obstacle:
            problems.append(f"what is prepared on this node is not known: {self.engine.obstacle}")
        if not self.registration.registered.is_set():
            refusal = self.registration.refusal
            problems.append(f"the kubelet refused the plugin: {refusal}" if refusal else "not registered yet")
        if not self.publisher.first_published.is_set():
            problems.append("the API server has not accepted the ResourceSlices yet")
        return problems
