"""Parts: one that fails is started anew, and takes no other one along."""

from __future__ import annotations

import asyncio

from controller.metrics import Metrics
from controller.parts import Part, keep_running, run_together
from kube.backoff import Backoff


def at_once() -> Backoff:
    return Backoff(0.001, 0.001)


async def test_a_part_that_fails_or_ends_is_started_anew_and_counted() -> None:
    starts = 0
    enough = asyncio.Event()

    async def run() -> None:
        nonlocal starts
        starts += 1
        if starts == 1:
            raise ValueError("unexpected")
        if starts == 3:
            enough.set()
            await asyncio.Event().wait()

    metrics = Metrics()
    task = asyncio.ensure_future(keep_running(Part("part", run), metrics, at_once()))
    await asyncio.wait_for(enough.wait(), 5.0)
    task.cancel()
    assert metrics.registry.get_sample_value("gpudra_controller_part_failures_total", {"part": "part"}) == 2


async def test_a_part_that_fails_takes_no_other_one_along() -> None:
    async def fails() -> None:
        raise ValueError("unexpected")

    goes_on = asyncio.Event()

    async def works() -> None:
        await asyncio.sleep(0.05)
        goes_on.set()
        await asyncio.Event().wait()

    task = asyncio.ensure_future(run_together([Part("bad", fails), Part("good", works)], Metrics()))
    await asyncio.wait_for(goes_on.wait(), 5.0)
    assert not task.done()
    task.cancel()


async def test_without_parts_it_goes_on_too() -> None:
    task = asyncio.ensure_future(run_together([], Metrics()))
    await asyncio.sleep(0.02)
    assert not task.done()
    task.cancel()
