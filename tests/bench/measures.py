"""The measurements, each on the plugin as a process on a simulated node with eight H100s.

Client, API server, etcd and plugin share the machine's cores, so what else runs there makes figures worse.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kube.client import KubeClient, WatchStream
from kube.resources import RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.bench.apirequests import WRITES, served
from tests.bench.figures import Distribution, Figure, Target, Value
from tests.bench.load import Load, run_cycles
from tests.bench.processes import Memory, cpu_seconds, memory
from tests.cluster.api import wait_until
from tests.cluster.controlplane import ControlPlane
from tests.harness.claims import Claim, create_claim, delete_claim, result
from tests.harness.plugin import PluginNode, free_address, plugin_node
from tests.harness.probes import Probes

MACHINE = "hgx-h100"
GPUS = 8
RESCAN_SECONDS = 10
"""The plugin's own default."""

START_LIMIT_SECONDS = 30.0

PREPARE_STEPS = {
    "api-read": "API read",
    "presence": "GPU check and CDI spec",
    "intent": "durable intent",
    "cdi-write": "CDI write",
    "commit": "durable commit",
}

_MANY_CALLS_PER_GPU = frozenset(
    {
        "nvmlDeviceGetNvLinkState",
        "nvmlDeviceGetNvLinkRemoteDeviceType",
        "nvmlDeviceGetNvLinkRemotePciInfo_v2",
        "nvmlDeviceGetGpuInstanceProfileInfoV",
    }
)
"""Asked for each link or profile of a GPU; all else is asked once for a GPU, for all its devices."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured.

    ``idle_seconds`` is how long the plugin is watched doing nothing, ``instance_seconds`` what NVML takes to
    make or destroy a GPU instance when many are made at once: on hardware a second was seen. ``nodes`` is the
    size of the cluster that the controller looks after, and ``class_changes`` how often it has to act.
    """

    starts: int
    warm_up_cycles: int
    single_cycles: int
    load_cycles: int
    idle_seconds: float
    instance_seconds: float
    nodes: int
    class_changes: int


FULL = Plan(
    starts=7,
    warm_up_cycles=50,
    single_cycles=600,
    load_cycles=2000,
    idle_seconds=61.0,
    instance_seconds=1.0,
    nodes=100,
    class_changes=10,
)
QUICK = Plan(
    starts=1,
    warm_up_cycles=4,
    single_cycles=16,
    load_cycles=64,
    idle_seconds=2.0,
    instance_seconds=0.1,
    nodes=5,
    class_changes=2,
)


def measure(control_plane: ControlPlane, plan: Plan) -> Iterator[Figure]:
    """All figures, one after the other."""
    with plugin_node(control_plane, MACHINE) as node:
        address = free_address()
        node.flags = {"http-address": address, "rescan-seconds": str(RESCAN_SECONDS)}
        yield disk(node.folder)
        yield start(node, plan.starts)
        node.kubelet.register()
        probes = Probes(address)
        yield from idle(node, probes, plan.idle_seconds)
        yield from cycles(node, probes, plan)


def disk(folder: Path) -> Distribution:
    """What the disk below the store takes for a durable write of one page: for comparison, not of ours."""
    durations = []
    path = folder / "fsync-probe"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        for _ in range(100):
            os.write(descriptor, bytes(4096))
            begun = time.perf_counter()
            os.fsync(descriptor)
            durations.append(1000 * (time.perf_counter() - begun))
    finally:
        os.close(descriptor)
        path.unlink()
    return Distribution("fsync of 4 KiB on this disk", "ms", tuple(durations))


def api_read(node: PluginNode, claim: Claim, times: int) -> Distribution:
    """What the API server takes to read a claim for a client that does nothing else: for comparison."""
    durations = []
    with KubeClient.load(node.kubeconfig) as client:
        for _ in range(times):
            begun = time.perf_counter()
            client.get(RESOURCE_CLAIMS, claim.name, claim.namespace)
            durations.append(1000 * (time.perf_counter() - begun))
    return Distribution("GET of a claim from this API server", "ms", tuple(durations))


def start(node: PluginNode, times: int) -> Distribution:
    """From the start of the process until a watcher of the API server has seen all slices.

    No slice is there before. The plugin of the last start stays.
    """
    with KubeClient.load(node.kubeconfig) as client:
        seconds = []
        for turn in range(times):
            if turn:
                node.stop()
                _delete_slices(node)
            seconds.append(_start_once(node, client))
    target = Target(bar=1.2, reach=0.8, existing=1.05)
    return Distribution("start to all slices in the API server", "s", tuple(seconds), p50_target=target)


def _start_once(node: PluginNode, client: KubeClient) -> float:
    selector = f"spec.nodeName={node.name}"
    items, version = client.list(RESOURCE_SLICES, field_selector=selector)
    assert not items, "slices of an earlier start are left"
    stream = client.watch(RESOURCE_SLICES, resource_version=version, field_selector=selector)
    complete: list[float] = []
    watcher = threading.Thread(target=_watch_slices, args=(stream, complete), daemon=True)
    watcher.start()
    begun = time.perf_counter()
    node.start(wait=False)
    watcher.join(START_LIMIT_SECONDS)
    stream.stop()
    if not complete:
        raise TimeoutError(f"no slices after {START_LIMIT_SECONDS:g} s; the plugin says:\n{node.log()}")
    wait_until(lambda: node.sockets()[1].exists(), "the registration socket", START_LIMIT_SECONDS)
    return complete[0] - begun


def _watch_slices(stream: WatchStream, complete: list[float]) -> None:
    specs: dict[str, Mapping[str, Any]] = {}
    for batch in stream:
        arrived = time.perf_counter()
        specs.update((item["metadata"]["name"], item["spec"]) for kind, item in batch if kind != "BOOKMARK")
        if specs and len(specs) == next(iter(specs.values()))["pool"]["resourceSliceCount"]:
            complete.append(arrived)
            break
    stream.close()


def _delete_slices(node: PluginNode) -> None:
    for item in node.slices():
        node.api.delete("resource.k8s.io/v1", "ResourceSlice", item["metadata"]["name"])


def idle(node: PluginNode, probes: Probes, seconds: float) -> Iterator[Figure]:
    """What the plugin does when nothing changes: processor, API writes, discoveries, memory."""
    pid = pid_of(node)
    discoveries = "gpudra_discovery_seconds"
    served_before = served(node.api)
    count_before, sum_before = histogram(probes, discoveries)
    node.gpus.reset_calls()
    cpu_before, begun = cpu_seconds(pid), time.perf_counter()
    time.sleep(seconds)
    used, passed = cpu_seconds(pid) - cpu_before, time.perf_counter() - begun
    calls = node.gpus.calls()
    now = memory(pid)
    count, total = histogram(probes, discoveries)
    count, total = count - count_before, total - sum_before
    requests = served(node.api) - served_before
    yield Value("idle: CPU, percent of a core", "%", 100 * used / passed, Target(bar=1.0))
    yield Value("idle: API writes", "1", writes_of(requests), Target(bar=0))
    yield Value("idle: API requests", "1", sum(requests.values()))
    if count:
        yield Value("discovery: time, mean", "ms", 1000 * total / count)
        yield Value("discovery: NVML calls, all GPUs", "1", sum(calls.values()) / count)
        most = max(number for symbol, number in calls.items() if symbol not in _MANY_CALLS_PER_GPU)
        target = Target(bar=1.0)
        yield Value("discovery: most calls of one query per GPU", "1", most / count / GPUS, target)
    yield Value("memory: RSS, idle", "MiB", now.resident, Target(bar=68, reach=62, existing=68))
    yield Value("memory: anonymous, idle", "MiB", now.anonymous, Target(bar=40, reach=30, existing=13))


def cycles(node: PluginNode, probes: Probes, plan: Plan) -> Iterator[Figure]:
    """Claims prepared and unprepared: one at a time, by eight callers, and what is left in memory."""
    with claims_for(node, sorted(node.wait_published(GPUS))) as claims:
        run(node, [claims], plan.warm_up_cycles)
        yield api_read(node, claims[0], plan.single_cycles)
        yield from _one_at_a_time(node, probes, claims, plan.single_cycles)
        cpu_before = cpu_seconds(pid_of(node))
        load = run(node, [[claim] for claim in claims], plan.load_cycles // GPUS)
        used = cpu_seconds(pid_of(node)) - cpu_before
        yield Value("eight callers: CPU of the plugin per cycle", "ms", 1000 * used / len(load.prepares))
        yield Value(
            "eight callers: cycles per second",
            "1/s",
            load.cycles_per_second,
            Target(bar=150, reach=250, existing=93, more_is_better=True),
        )
        yield Distribution(
            "eight callers: prepare",
            "ms",
            load.prepares,
            p99_target=Target(bar=80, reach=40, existing=1009),
        )
        yield Distribution("eight callers: unprepare", "ms", load.unprepares)
        after = settled_memory(node)
        again = run(node, [[claim] for claim in claims], plan.load_cycles // GPUS)
        grown = settled_memory(node).resident - after.resident
        target = Target(bar=74, reach=62, existing=72)
        yield Value(f"memory: RSS after {plan.load_cycles} cycles", "MiB", after.resident, target)
        target = Target(bar=40, reach=30)
        yield Value(f"memory: anonymous after {plan.load_cycles} cycles", "MiB", after.anonymous, target)
        growth = 1000 * grown / len(again.prepares)
        yield Value("memory: growth per 1,000 cycles after that", "MiB", growth, Target(bar=1.0))


def _one_at_a_time(node: PluginNode, probes: Probes, claims: Sequence[Claim], count: int) -> Iterator[Figure]:
    steps = "gpudra_prepare_step_seconds"
    before = {step: histogram(probes, steps, step=step) for step in PREPARE_STEPS}
    served_before = served(node.api)
    load = run(node, [claims], count)
    requests = served(node.api) - served_before
    yield Distribution(
        "prepare, one at a time",
        "ms",
        load.prepares,
        Target(bar=6, reach=4.6, existing=4.6),
        Target(bar=12, reach=8, existing=8.4),
    )
    for step, words in PREPARE_STEPS.items():
        number, total = histogram(probes, steps, step=step)
        mean = 1000 * (total - before[step][1]) / (number - before[step][0])
        yield Value(f"prepare: of which {words}, mean", "ms", mean)
    yield Distribution("unprepare, one at a time", "ms", load.unprepares)
    per_prepare = sum(requests.values()) / count
    yield Value("prepare and unprepare: API requests", "1", per_prepare, Target(bar=1.0))


@contextmanager
def claims_for(
    node: PluginNode, names: Sequence[str], *, shares: bool = False, configs: Sequence[Mapping[str, Any]] = ()
) -> Iterator[list[Claim]]:
    """A claim for each device, or a share of it; its status is written once before anything is measured."""
    claims = []
    for name in names:
        share = {"shareID": str(uuid.uuid4())} if shares else {}
        claims.append(create_claim(node.api, [result(name, node.name, **share)], configs=configs))
    node.kubelet.prepare(*claims)

    def all_told() -> bool:
        found = node.api.list("resource.k8s.io/v1", "ResourceClaim", "default")
        told = {item["metadata"]["uid"] for item in found if item["status"].get("devices")}
        return told >= {claim.uid for claim in claims}

    wait_until(all_told, "status.devices of all claims", 10.0)
    node.kubelet.unprepare(*claims)
    try:
        yield claims
    finally:
        for claim in claims:
            delete_claim(node.api, claim)


def run(node: PluginNode, callers: Sequence[Sequence[Claim]], cycles: int) -> Load:
    """Each caller's claims round and round, as :func:`run_cycles`."""
    return run_cycles(node.sockets()[0], callers, cycles)


def settled_memory(node: PluginNode) -> Memory:
    """The plugin's memory a second later."""
    # Work that follows an answer, such as the claim's status, has its say.
    time.sleep(1.0)
    return memory(pid_of(node))


def histogram(probes: Probes, name: str, **labels: str) -> tuple[float, float]:
    """Count and sum."""
    return probes.metric(f"{name}_count", **labels), probes.metric(f"{name}_sum", **labels)


def writes_of(requests: Counter[tuple[str, str]]) -> int:
    """How many of these requests change something."""
    return sum(count for (verb, _), count in requests.items() if verb in WRITES)


def pid_of(node: PluginNode) -> int:
    """The plugin that was started last."""
    assert node.process is not None
    return node.process.pid
