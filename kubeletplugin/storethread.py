"""The one thread that uses the store: what waits together is committed together.

Under load, claims that are prepared at the same time share one ``fsync``; a lone one has it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from kubeletplugin.store import Store, StoreError, StoreFull

T = TypeVar("T")

_MOST_IN_ONE_COMMIT = 64
_CLOSE_SECONDS = 0.5


@dataclass(slots=True)
class _Operation:
    function: Callable[[Store], Any]
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    result: Any = None
    error: BaseException | None = None

    def deliver(self) -> None:
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class StoreThread:
    """Runs functions of the store, each atomic and durable when its answer arrives."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._queue: queue.SimpleQueue[_Operation | None] = queue.SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="store", daemon=True)
        self._thread.start()

    async def run(self, function: Callable[[Store], T]) -> T:
        """Run ``function`` in a transaction; when this returns, what it wrote is on disk.

        Raises:
            StoreError: the store is locked, full, broken or closed; nothing was written.
            BaseException: whatever ``function`` raised; nothing of it was written.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        with self._closing:
            if self._closed:
                raise StoreError(f"{self._store.path} is closed: the plugin ends")
            self._queue.put(_Operation(function, future, loop))
        return await future

    def close(self) -> None:
        """End after what is queued, and close the store.

        Does not wait longer than a moment for a store that another process has locked: what nobody was told
        of need not be written, and the thread ends with the process.
        """
        with self._closing:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join(_CLOSE_SECONDS)

    def _work(self) -> None:
        ending = False
        while not ending:
            batch: list[_Operation] = []
            item = self._queue.get()
            while True:
                if item is None:
                    ending = True
                    break
                batch.append(item)
                if len(batch) == _MOST_IN_ONE_COMMIT:
                    break
                try:
                    item = self._queue.get_nowait()
                except queue.Empty:
                    break
            if batch:
                self._commit(batch)
        self._store.close()

    def _commit(self, batch: list[_Operation]) -> None:
        try:
            try:
                self._run_all(batch)
            except StoreFull:
                self._store.fold_log()
                self._run_all(batch)
        except Exception as error:
            for operation in batch:
                operation.error = operation.error or error
        for operation in batch:
            # A loop that has ended waits for nothing any more.
            with contextlib.suppress(RuntimeError):
                operation.loop.call_soon_threadsafe(operation.deliver)

    def _run_all(self, batch: list[_Operation]) -> None:
        with self._store.transaction():
            for operation in batch:
                operation.result = operation.error = None
                try:
                    with self._store.savepoint():
                        operation.result = operation.function(self._store)
                except StoreError:
                    raise
                except Exception as error:
                    operation.error = error
