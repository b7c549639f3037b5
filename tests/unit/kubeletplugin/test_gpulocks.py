"""Locks per GPU: in order, without deadlock, also between processes."""

from __future__ import annotations

import asyncio
import fcntl
import random
from pathlib import Path

import pytest

from kubeletplugin.gpulocks import GpuLocks, LockTimeout


async def test_b061_holders_of_the_same_gpus_in_any_order_never_block_each_other(tmp_path: Path) -> None:
    # Two objects stand for two processes: their locks meet in the files alone.
    processes = [GpuLocks(tmp_path), GpuLocks(tmp_path)]
    held: set[str] = set()
    choose = random.Random(61)

    async def work(number: int) -> None:
        gpus = choose.sample(["a", "b", "c", "d"], choose.randrange(1, 5))
        async with processes[number % 2].hold(gpus, f"claim {number}", 20):
            assert held.isdisjoint(gpus)
            held.update(gpus)
            await asyncio.sleep(0)
            held.difference_update(gpus)

    await asyncio.gather(*(work(number) for number in range(60)))


async def test_holders_of_different_gpus_do_not_wait(tmp_path: Path) -> None:
    locks = GpuLocks(tmp_path)
    async with locks.hold(["a"], "claim 1", 1), locks.hold(["b"], "claim 2", 0.05) as waited:
        assert waited < 0.05


async def test_a_wait_that_is_too_long_names_gpu_and_holder(tmp_path: Path) -> None:
    locks = GpuLocks(tmp_path)
    async with locks.hold(["0000:65:00.0"], "claim ns/one", 1):
        with pytest.raises(LockTimeout, match=r"GPU 0000:65:00.0 is still .* by claim ns/one after"):
            async with locks.hold(["0000:65:00.0"], "claim ns/two", 0.05):
                pass
    with (tmp_path / "gpu-0000:65:00.0.lock").open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(LockTimeout, match="another plugin process"):
            async with locks.hold(["0000:65:00.0"], "claim ns/two", 0.05):
                pass
    async with locks.hold(["0000:65:00.0"], "claim ns/two", 1):
        pass


async def test_one_lock_that_cannot_be_had_lets_go_of_the_others(tmp_path: Path) -> None:
    locks = GpuLocks(tmp_path)
    async with locks.hold(["b"], "claim 1", 1):
        with pytest.raises(LockTimeout):
            async with locks.hold(["a", "b", "c"], "claim 2", 0.05):
                pass
        async with locks.hold(["a", "c"], "claim 3", 0.05):
            pass


async def test_a_waiter_that_gives_up_is_passed_over(tmp_path: Path) -> None:
    locks = GpuLocks(tmp_path)

    async def wait() -> None:
        async with locks.hold(["a"], "claim 2", 5):
            pass

    async with locks.hold(["a"], "claim 1", 1):
        waiter = asyncio.create_task(wait())
        await asyncio.sleep(0.01)
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
    async with locks.hold(["a"], "claim 3", 0.1):
        pass
