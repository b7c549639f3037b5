"""The measurements of shares: one GPU of eight that hundreds of claims have at the same time."""

from __future__ import annotations

from collections.abc import Iterator

from tests.bench.figures import Distribution, Figure, Target, Value
from tests.bench.measures import GPUS, MACHINE, Plan, claims_for, run, settled_memory
from tests.cluster.controlplane import ControlPlane
from tests.harness.claims import opaque
from tests.harness.nodepolicies import write_policy
from tests.harness.plugin import PluginNode, plugin_node
from tests.harness.timeslices import smi_runs, time_slicing

PLACES = 256
INTERVAL = "Long"


def measure_shares(control_plane: ControlPlane, plan: Plan) -> Iterator[Figure]:
    """All figures of shares, one after the other."""
    with plugin_node(control_plane, MACHINE) as node:
        policy = write_policy(node, {"shares": PLACES})
        node.flags = {"config": str(policy), "mig": "static"}
        node.start()
        node.kubelet.register()
        device = min(node.wait_published(GPUS))
        yield from of_an_open_device(node, device, plan)
        yield from many(node, device)


def of_an_open_device(node: PluginNode, device: str, plan: Plan) -> Iterator[Figure]:
    """A share where another claim has one already, and has set the interval that both ask for."""
    configs = [opaque(time_slicing(INTERVAL))]
    with claims_for(node, [device] * GPUS, shares=True, configs=configs) as (first, *others):
        node.kubelet.prepare(first)
        run(node, [others], plan.warm_up_cycles)
        smi_runs(node.gpus)
        load = run(node, [others], plan.single_cycles)
        runs = smi_runs(node.gpus)
        yield Distribution("a share of an open GPU: prepare", "ms", load.prepares, Target(bar=6))
        yield Distribution("a share of an open GPU: unprepare", "ms", load.unprepares)
        yield Value("a share of an open GPU: nvidia-smi runs", "1", runs, Target(bar=0))
        node.kubelet.unprepare(first)


def many(node: PluginNode, device: str) -> Iterator[Figure]:
    """As many shares as there are places, all prepared."""
    with claims_for(node, [device] * PLACES, shares=True) as claims:
        # What they take while they are prepared is free again, and is not counted.
        node.kubelet.prepare(*claims)
        node.kubelet.unprepare(*claims)
        before = settled_memory(node).resident
        answer = node.kubelet.prepare(*claims)
        prepared = sum(not answer[claim.uid].error for claim in claims)
        yield Value(
            f"{PLACES} shares of one GPU: prepared", "1", prepared, Target(bar=PLACES, more_is_better=True)
        )
        grown = settled_memory(node).resident - before
        yield Value(f"{PLACES} shares of one GPU: growth of RSS", "MiB", grown, Target(bar=2))
        node.kubelet.unprepare(*claims)
