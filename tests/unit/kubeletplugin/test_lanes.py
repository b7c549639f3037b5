"""Lanes: a slow call holds up its own lane, a caller waits until its deadline."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from kubeletplugin.lanes import Lanes, LaneTimeout


def lanes() -> Lanes:
    return Lanes(lambda thread: "nvmlCall")


async def test_results_and_errors_come_back() -> None:
    run = lanes().run
    assert await run("gpu-0", "reading", lambda: 42, 1) == 42

    def fail() -> None:
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        await run("gpu-0", "reading", fail, 1)
    assert await run("gpu-0", "reading", lambda: 43, 1) == 43


async def test_b060_a_lane_that_is_stuck_holds_up_no_other_and_is_named() -> None:
    made, free = lanes(), threading.Event()
    with pytest.raises(LaneTimeout, match=r"reading \(gpu-0\) .* within 0.05 s, it is in nvmlCall"):
        await made.run("gpu-0", "reading", free.wait, 0.05)
    assert await made.run("gpu-1", "reading", lambda: 1, 1) == 1
    with pytest.raises(LaneTimeout, match=r"check .* waiting behind reading \(gpu-0, in nvmlCall\)"):
        await made.run("gpu-0", "check", lambda: 1, 0.05)
    (busy,) = made.busy()
    assert (busy.lane, busy.call, busy.seconds > 0.09) == ("gpu-0", "reading", True)
    free.set()
    assert await made.run("gpu-0", "check", lambda: 2, 1) == 2
    assert made.busy() == []


async def test_calls_of_a_lane_run_one_after_another_in_order() -> None:
    made, order = lanes(), list[int]()

    def note(number: int) -> None:
        time.sleep(0.001)
        order.append(number)

    await asyncio.gather(*(made.run("gpu-0", "n", lambda number=n: note(number), 5) for n in range(20)))  # type: ignore[misc]
    assert order == list(range(20))


async def test_a_caller_that_is_cancelled_leaves_the_call_to_end_by_itself() -> None:
    made, free, done = lanes(), threading.Event(), threading.Event()

    def work() -> None:
        free.wait(5)
        done.set()

    task = asyncio.create_task(made.run("gpu-0", "work", work, 5))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    free.set()
    assert await asyncio.to_thread(done.wait, 5)
