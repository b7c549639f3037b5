"""The kubelet's part in the bench: cycles of NodePrepareResources and NodeUnprepareResources.

The client is one process with a thread for each caller. It sends bytes that were made before and looks into
the answers afterwards, since what it computes is taken from the plugin on a small machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Barrier

import grpc

from kubeletplugin.api import dra_v1_pb2
from tests.harness.claims import Claim
from tests.harness.kubelet import CALL_SECONDS

_SERVICE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"

_Call = Callable[..., bytes]


@dataclass(frozen=True, slots=True)
class Load:
    """Durations of each call in milliseconds, and of everything in seconds."""

    prepares: tuple[float, ...]
    unprepares: tuple[float, ...]
    seconds: float

    @property
    def cycles_per_second(self) -> float:
        return len(self.prepares) / self.seconds


def run_cycles(socket: Path, callers: Sequence[Sequence[Claim]], cycles: int) -> Load:
    """Each caller goes round its claims for ``cycles`` cycles, all callers at the same time.

    Raises:
        grpc.RpcError: a call failed.
        AssertionError: a claim was answered with an error, or not at all.
    """
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        prepare: _Call = channel.unary_unary(f"{_SERVICE}/NodePrepareResources")
        unprepare: _Call = channel.unary_unary(f"{_SERVICE}/NodeUnprepareResources")
        start = Barrier(len(callers) + 1)
        with ThreadPoolExecutor(len(callers)) as pool:
            running = [pool.submit(_caller, prepare, unprepare, claims, cycles, start) for claims in callers]
            start.wait()
            started = time.perf_counter()
            done = [future.result() for future in running]
            seconds = time.perf_counter() - started
    prepares = tuple(duration for one, _ in done for duration in one)
    unprepares = tuple(duration for _, one in done for duration in one)
    return Load(prepares, unprepares, seconds)


def _caller(
    prepare: _Call, unprepare: _Call, claims: Sequence[Claim], cycles: int, start: Barrier
) -> tuple[list[float], list[float]]:
    requests = [_requests(claim) for claim in claims]
    prepares, unprepares = [], []
    answers: list[tuple[bytes, bytes]] = []
    start.wait()
    for cycle in range(cycles):
        prepare_request, unprepare_request = requests[cycle % len(requests)]
        begun = time.perf_counter()
        prepared = prepare(prepare_request, timeout=CALL_SECONDS)
        middle = time.perf_counter()
        unprepared = unprepare(unprepare_request, timeout=CALL_SECONDS)
        ended = time.perf_counter()
        prepares.append(1000 * (middle - begun))
        unprepares.append(1000 * (ended - middle))
        answers.append((prepared, unprepared))
    for cycle, (prepared, unprepared) in enumerate(answers):
        _check(claims[cycle % len(claims)], prepared, unprepared)
    return prepares, unprepares


def _requests(claim: Claim) -> tuple[bytes, bytes]:
    message = dra_v1_pb2.Claim(namespace=claim.namespace, name=claim.name, uid=claim.uid)
    return (
        dra_v1_pb2.NodePrepareResourcesRequest(claims=[message]).SerializeToString(),
        dra_v1_pb2.NodeUnprepareResourcesRequest(claims=[message]).SerializeToString(),
    )


def _check(claim: Claim, prepared: bytes, unprepared: bytes) -> None:
    entry = dra_v1_pb2.NodePrepareResourcesResponse.FromString(prepared).claims[claim.uid]
    assert not entry.error, entry.error
    assert entry.devices, f"{claim} was answered without a device"
    ended = dra_v1_pb2.NodeUnprepareResourcesResponse.FromString(unprepared).claims[claim.uid]
    assert not ended.error, ended.error
