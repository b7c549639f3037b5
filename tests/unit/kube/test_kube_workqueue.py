"""The work queue: each key once, the earliest first, with a back-off of its own."""

from __future__ import annotations

import asyncio

from kube.backoff import Backoff
from kube.workqueue import WorkQueue


def at_once() -> Backoff:
    return Backoff(0.02, 0.02, uniform=lambda low, high: high)


async def test_a_key_that_is_asked_for_again_is_got_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for key in ("a", "b", "a"):
        queue.add(key)
    assert [await queue.get(), await queue.get()] == ["a", "b"]
    waiting = asyncio.ensure_future(queue.get())
    await asyncio.sleep(0.02)
    assert not waiting.done()
    queue.add("a")
    assert await waiting == "a"


async def test_the_sooner_of_two_times_holds() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a", 60.0)
    waiting = asyncio.ensure_future(queue.get())
    await asyncio.sleep(0)
    queue.add("a", 0.01)
    queue.add("a", 30.0)
    assert await asyncio.wait_for(waiting, 5.0) == "a"


async def test_what_failed_comes_again_and_holds_up_no_other() -> None:
    queue: WorkQueue[str] = WorkQueue(at_once)
    queue.failed("bad")
    queue.add("good")
    assert [await queue.get(), await queue.get()] == ["good", "bad"]


async def test_a_server_may_ask_for_a_longer_time() -> None:
    queue: WorkQueue[str] = WorkQueue(at_once)
    queue.failed("bad", at_least=60.0)
    waiting = asyncio.ensure_future(queue.get())
    await asyncio.sleep(0.1)
    assert not waiting.done()
    waiting.cancel()
