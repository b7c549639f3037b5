"""The measurements of MIG partitions: eight H100s that offer all their placements, made for claims."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from driver.claim import AllocatedClaim, AllocationResult, ClaimReference
from driver.devices import known_devices
from driver.discovery import discover
from driver.hostfiles import HostRoots
from driver.nvml import Nvml
from driver.plan import plan_prepare
from nvmlsim.node import SimulatedNode
from tests.bench.apirequests import served
from tests.bench.figures import Distribution, Figure, Target, Value
from tests.bench.measures import (
    GPUS,
    MACHINE,
    RESCAN_SECONDS,
    Plan,
    claims_for,
    histogram,
    pid_of,
    run,
    settled_memory,
    start,
    writes_of,
)
from tests.bench.processes import memory
from tests.cluster.api import wait_until
from tests.cluster.controlplane import ControlPlane
from tests.harness.claims import Claim
from tests.harness.plugin import PluginNode, free_address, plugin_node
from tests.harness.probes import Probes

PROFILE = "1g.10gb"
PLACEMENTS = 7
DEVICES = GPUS * 26
"""An H100 offers itself and 25 partitions."""

_SLOW_CALLS = ("nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceDestroy")
_CHANGES = ("create-gpu-instance", "create-compute-instance", "destroy")


def measure_partitions(control_plane: ControlPlane, plan: Plan) -> Iterator[Figure]:
    """All figures of partitions, one after the other."""
    with plugin_node(control_plane, MACHINE) as node:
        address = free_address()
        node.flags = {"http-address": address, "rescan-seconds": str(RESCAN_SECONDS), "mig": "dynamic"}
        yield planning(node.gpus, 10 * plan.single_cycles)
        name, target = "partitions: start to all slices in the API server", Target(bar=1.5)
        yield Distribution(name, "s", start(node, plan.starts).sample, p50_target=target)
        node.kubelet.register()
        published = node.wait_published(DEVICES)
        yield from standing_still(node, plan.idle_seconds)
        small = {
            name: device["attributes"]["parentUUID"]["string"]
            for name, device in sorted(published.items())
            if device["attributes"]["profile"]["string"] == PROFILE
        }
        one_each = {gpu: name for name, gpu in small.items()}
        yield from making(node, Probes(address), list(one_each.values()), plan)
        yield from all_at_once(node, list(small), plan.instance_seconds)
        yield Value("partitions: RSS after all that", "MiB", settled_memory(node).resident, Target(bar=74))


def planning(gpus: SimulatedNode, times: int) -> Distribution:
    """A claim's plan, from what the API server says to what is to be done. Neither is asked."""
    nvml = Nvml(gpus.library_path)
    try:
        inventory = discover(nvml, HostRoots(gpus.root / "proc", gpus.root / "sys"))
    finally:
        nvml.close()
    devices = known_devices(inventory, {})
    chosen = [name for name, device in devices.items() if device.partition][:4]
    results = tuple(AllocationResult("gpu", "pool", name) for name in chosen)
    claim = AllocatedClaim(ClaimReference("default", "claim", "uid"), results, (), ())
    durations = []
    for _ in range(times):
        begun = time.perf_counter()
        plan_prepare(claim, devices, "pool")
        durations.append(1000 * (time.perf_counter() - begun))
    target = Target(bar=2.0)
    return Distribution("partitions: plan of a claim with four", "ms", tuple(durations), target, target)


def standing_still(node: PluginNode, seconds: float) -> Iterator[Figure]:
    """What is written and what memory is held while nothing changes."""
    before = served(node.api)
    time.sleep(seconds)
    yield Value("partitions: idle, API writes", "1", writes_of(served(node.api) - before), Target(bar=0))
    now = memory(pid_of(node))
    yield Value("partitions: RSS, idle", "MiB", now.resident, Target(bar=74))
    yield Value("partitions: anonymous, idle", "MiB", now.anonymous)


def making(node: PluginNode, probes: Probes, names: Sequence[str], plan: Plan) -> Iterator[Figure]:
    """Partitions made and destroyed, one at a time, on GPUs whose MIG mode is on since the first round."""
    with claims_for(node, names) as claims:
        run(node, [claims], plan.warm_up_cycles)
        metric = "gpudra_mig_change_seconds"
        before = {change: histogram(probes, metric, change=change) for change in _CHANGES}
        api_before = served(node.api)
        load = run(node, [claims], plan.single_cycles)
        target, slowest = Target(bar=15), Target(bar=50)
        yield Distribution("partitions: prepare, one at a time", "ms", load.prepares, target, slowest)
        for change in _CHANGES:
            number, total = histogram(probes, metric, change=change)
            mean = 1000 * (total - before[change][1]) / (number - before[change][0])
            yield Value(f"partitions: of which NVML, {change}, mean", "ms", mean)
        yield Distribution("partitions: unprepare, one at a time", "ms", load.unprepares)
        asked = served(node.api) - api_before
        of_slices = Counter({key: count for key, count in asked.items() if key[1] == "resourceslices"})
        yield Value("partitions: slice writes meanwhile", "1", writes_of(of_slices), Target(bar=0))


def all_at_once(node: PluginNode, names: Sequence[str], instance_seconds: float) -> Iterator[Figure]:
    """A claim for every small placement of every GPU at the same time.

    NVML takes ``instance_seconds`` to make or destroy a GPU instance, one after the other on one GPU.
    """
    with claims_for(node, names) as claims:
        for symbol in _SLOW_CALLS:
            node.gpus.set_delay(symbol, round(1000 * instance_seconds))
        prepared, unprepared = _together(node, claims)
        node.gpus.clear_faults()
    target = Target(bar=1.3 * PLACEMENTS * instance_seconds)
    what = f"partitions: {len(claims)} claims at once, {instance_seconds:g} s an instance"
    yield Value(f"{what}, prepare", "s", prepared, target)
    yield Value(f"{what}, unprepare", "s", unprepared, target)


def _together(node: PluginNode, claims: Sequence[Claim]) -> tuple[float, float]:
    """Seconds until all claims are prepared, and until all are unprepared."""
    with ThreadPoolExecutor(len(claims)) as pool:
        begun = time.perf_counter()
        answers = list(pool.map(node.kubelet.prepare_one, claims))
        middle = time.perf_counter()
        ended = list(pool.map(node.kubelet.unprepare_one, claims))
        seconds = middle - begun, time.perf_counter() - middle
    assert all(answer.devices for answer in answers), [answer.error for answer in answers if answer.error]
    assert not any(answer.error for answer in ended), ended
    wait_until(lambda: not any(gpu.gpu_instances for gpu in node.gpus.gpus()), "no instance to be left", 5.0)
    return seconds
