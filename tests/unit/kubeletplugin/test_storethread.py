"""The store's thread: one commit for what waits together, and to each its own answer."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from kubeletplugin.store import Store, StoreError, StoreFull
from kubeletplugin.storethread import StoreThread
from tests.unit.kubeletplugin.records import record


class CountingStore(Store):
    commits = 0

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        self.commits += 1
        with super().transaction():
            yield


@pytest.fixture
def store(tmp_path: Path) -> CountingStore:
    return CountingStore(tmp_path / "state.db")


@pytest.fixture
async def thread(store: CountingStore) -> AsyncIterator[StoreThread]:
    thread = StoreThread(store)
    yield thread
    await asyncio.to_thread(thread.close)


async def test_each_gets_its_own_result_or_error_and_one_that_fails_takes_nobody_along(
    thread: StoreThread,
) -> None:
    good, bad = record(), record()

    def fail(store: Store) -> None:
        store.put(bad)
        raise LookupError("mine alone")

    results = await asyncio.gather(
        thread.run(lambda store: store.put(good)),
        thread.run(fail),
        thread.run(lambda store: len(store.claims())),
        return_exceptions=True,
    )
    assert results[0] is None
    assert repr(results[1]) == "LookupError('mine alone')"
    assert results[2] == 1
    assert await thread.run(lambda store: set(store.claims())) == {good.claim.uid}


async def test_what_waits_together_is_committed_together(thread: StoreThread, store: CountingStore) -> None:
    free = threading.Event()
    first = asyncio.create_task(thread.run(lambda store: free.wait(5)))
    await asyncio.sleep(0.05)
    before = store.commits
    rest = [asyncio.create_task(thread.run(lambda store: store.put(record()))) for _ in range(50)]
    await asyncio.sleep(0)
    free.set()
    await asyncio.gather(first, *rest)
    assert store.commits - before <= 2
    assert len(await thread.run(lambda store: dict(store.claims()))) == 50


@contextlib.contextmanager
def refused(store: Store) -> Iterator[None]:
    """A transaction whose commit the disk refuses."""
    with Store.transaction(store):
        yield
        raise sqlite3.OperationalError("disk I/O error")


async def test_a_commit_that_fails_fails_all_that_were_in_it(
    thread: StoreThread, store: CountingStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = record()
    await thread.run(lambda store: store.put(good))
    monkeypatch.setattr(store, "transaction", functools.partial(refused, store))
    results = await asyncio.gather(
        *(thread.run(lambda store: store.put(record())) for _ in range(3)), return_exceptions=True
    )
    assert [type(result) for result in results] == [StoreError] * 3
    assert all(str(tmp_path / "state.db") in str(result) for result in results)
    monkeypatch.undo()
    assert await thread.run(lambda store: set(store.claims())) == {good.claim.uid}


async def test_a_full_disk_is_told_to_each_that_was_in_the_commit(thread: StoreThread) -> None:
    kept = record()
    await thread.run(lambda store: store.put(kept))
    await thread.run(lambda store: store._connection.execute("PRAGMA max_page_count=7"))
    results = await asyncio.gather(
        *(thread.run(lambda store: store.put(record())) for _ in range(60)), return_exceptions=True
    )
    failed = [result for result in results if result is not None]
    assert failed
    assert {type(result) for result in failed} == {StoreFull}
    assert all("has space" in str(result) for result in failed)
    await thread.run(lambda store: store._connection.execute("PRAGMA max_page_count=100000"))
    held = await thread.run(lambda store: set(store.claims()))
    assert len(held) == 1 + len(results) - len(failed)


async def test_a_caller_that_gave_up_holds_up_nobody(thread: StoreThread) -> None:
    task = asyncio.create_task(thread.run(lambda store: store.put(record())))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert await thread.run(lambda store: len(store.claims())) in (0, 1)


async def test_what_is_queued_is_done_before_the_end(store: CountingStore) -> None:
    thread = StoreThread(store)
    waiting = [asyncio.create_task(thread.run(lambda store: store.put(record()))) for _ in range(20)]
    await asyncio.sleep(0)
    await asyncio.to_thread(thread.close)
    await asyncio.gather(*waiting)
    again = Store(store.path)
    with again.transaction():
        assert len(again.claims()) == 20


async def test_after_the_end_a_call_is_refused_and_waits_for_nothing(store: CountingStore) -> None:
    thread = StoreThread(store)
    await asyncio.to_thread(thread.close)
    with pytest.raises(StoreError, match=f"{store.path} is closed"):
        async with asyncio.timeout(2):
            await thread.run(lambda store: None)
    thread.close()


async def test_the_end_does_not_wait_for_a_store_that_another_process_has_locked(
    store: CountingStore,
) -> None:
    thread, other = StoreThread(store), Store(store.path)
    with other.transaction():
        waiting = asyncio.create_task(thread.run(lambda store: store.put(record())))
        await asyncio.sleep(0.05)
        began = time.monotonic()
        thread.close()
        assert time.monotonic() - began < 2
    await waiting
    await asyncio.to_thread(thread._thread.join, 5)
    assert not thread._thread.is_alive()


async def test_a_log_that_fills_the_disk_is_folded_once_and_the_commit_done_again(
    thread: StoreThread, store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    folded: list[int] = []
    monkeypatch.setattr(store, "fold_log", lambda: folded.append(1))

    def put_when_folded(store: Store) -> None:
        store.put(kept)
        if not folded:
            raise sqlite3.OperationalError("database or disk is full")

    kept, beside = record(), record()
    await asyncio.gather(thread.run(lambda store: store.put(beside)), thread.run(put_when_folded))
    assert folded == [1]
    assert await thread.run(lambda store: set(store.claims())) == {kept.claim.uid, beside.claim.uid}


async def test_an_answer_for_a_loop_that_has_ended_keeps_nobody_waiting(store: CountingStore) -> None:
    thread, free = StoreThread(store), threading.Event()

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await thread.run(lambda store: free.wait(5))

    await asyncio.to_thread(asyncio.run, give_up())
    free.set()
    assert await thread.run(lambda store: len(store.claims())) == 0
    await asyncio.to_thread(thread.close)
