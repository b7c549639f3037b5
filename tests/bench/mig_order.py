"""What the order of partitions in a pool is worth: random claims come and go on H100s.

The scheduler takes the first device in the pool's order that a claim selects and that the counters allow. A
claim for which there is none is rejected; nobody waits. The same claims are played for each order.

    python -m tests.bench.mig_order
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from driver.devices import Device, offered_devices
from driver.migoffer import MigPolicy
from driver.nodepolicy import NodePolicy
from tests.unit.driver.inventories import gpu, inventory

GPUS = (1, 8)
CLAIMS = 10_000
SEEDS = (1, 2, 3)
LOADS = (0.5, 0.85)
"""Memory slices that claims would hold on average if none were rejected, as a share of all."""

Selector = Callable[[Device], bool]
Order = Callable[[Sequence[Device], random.Random], list[Device]]


@dataclass(frozen=True)
class Kind:
    """One kind of claim: what it selects, how many memory slices it needs at least, how often it comes."""

    selects: Selector
    slices: int
    weight: int


def profile(text: str, slices: int, weight: int) -> Kind:
    return Kind(
        lambda device: device.partition is not None and device.partition.profile.profile == text,
        slices,
        weight,
    )


def whole_gpu(weight: int) -> Kind:
    return Kind(lambda device: device.is_whole_gpu, 8, weight)


def memory(gibibytes: int, slices: int, weight: int) -> Kind:
    """A claim that wants memory and leaves the profile open."""

    def selects(device: Device) -> bool:
        mebibytes = (
            device.gpu.memory_bytes >> 20 if device.partition is None else device.partition.profile.memory_mib
        )
        return mebibytes >= gibibytes * 1024

    return Kind(selects, slices, weight)


MIXES = {
    "by profile, small": (
        profile("1g.10gb", 1, 70),
        profile("2g.20gb", 2, 20),
        profile("3g.40gb", 4, 10),
    ),
    "by profile, halves": (
        profile("1g.10gb", 1, 60),
        profile("3g.40gb", 4, 15),
        profile("4g.40gb", 4, 25),
    ),
    "by profile, 1g and 2g": (profile("1g.10gb", 1, 60), profile("2g.20gb", 2, 40)),
    "by profile, mixed": (
        profile("1g.10gb", 1, 50),
        profile("1g.20gb", 2, 10),
        profile("2g.20gb", 2, 20),
        profile("3g.40gb", 4, 15),
        whole_gpu(5),
    ),
    "by memory": (memory(9, 1, 50), memory(19, 2, 30), memory(39, 4, 15), memory(79, 8, 5)),
}


def published(devices: Sequence[Device], choice: random.Random) -> list[Device]:
    return list(devices)


def by_name(devices: Sequence[Device], choice: random.Random) -> list[Device]:
    return sorted(devices, key=lambda device: device.name)


def at_random(devices: Sequence[Device], choice: random.Random) -> list[Device]:
    return choice.sample(devices, len(devices))


ORDERS: dict[str, Order] = {"published": published, "by name": by_name, "random": at_random}


def rejected(order: Order, kinds: Sequence[Kind], gpus: int, load: float, seed: int) -> float:
    """The share of claims that found no device."""
    choice = random.Random(seed)
    node = inventory(*(gpu(bus) for bus in range(1, gpus + 1)))
    devices = order(offered_devices(node, NodePolicy(mig=MigPolicy.DYNAMIC), {}), random.Random(seed))
    fitting = [[device for device in devices if kind.selects(device)] for kind in kinds]
    weights = [kind.weight for kind in kinds]
    mean = sum(kind.slices * kind.weight for kind in kinds) / sum(weights)
    rate = load * gpus * 8 / mean
    left = {device.gpu.pci: dict(device.counters) for device in devices if device.is_whole_gpu}
    running: list[tuple[float, int, Device]] = []
    refused, now = 0, 0.0
    for number in range(CLAIMS):
        now += choice.expovariate(rate)
        kind = choice.choices(range(len(kinds)), weights)[0]
        ends = now + choice.expovariate(1.0)
        while running and running[0][0] <= now:
            for counter, amount in running[0][2].counters:
                left[running[0][2].gpu.pci][counter] += amount
            heapq.heappop(running)
        for device in fitting[kind]:
            counters = left[device.gpu.pci]
            if all(counters[counter] >= amount for counter, amount in device.counters):
                for counter, amount in device.counters:
                    counters[counter] -= amount
                heapq.heappush(running, (ends, number, device))
                break
        else:
            refused += 1
    return refused / CLAIMS


def main() -> None:
    print(f"| claims | GPUs | load | {' | '.join(ORDERS)} |")
    print("|---|---|---|" + "---|" * len(ORDERS))
    for (name, kinds), gpus, load in itertools.product(MIXES.items(), GPUS, LOADS):
        shares = [
            sum(rejected(order, kinds, gpus, load, seed) for seed in SEEDS) / len(SEEDS)
            for order in ORDERS.values()
        ]
        print(f"| {name} | {gpus} | {load:.0%} | {' | '.join(f'{share:.1%}' for share in shares)} |")


if __name__ == "__main__":
    main()
