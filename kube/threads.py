"""Threads for blocking requests, which must never hold up the end of the process."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class DaemonThreads:
    """At most ``size`` threads, started when needed and kept.

    The threads are daemons. Those of ``ThreadPoolExecutor`` are joined when the interpreter ends, so one
    request to a server that does not answer would keep a terminating pod for its whole time limit.
    """

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._started = 0
        self._idle = 0
        self._closed = False

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Raises RuntimeError once closed."""
        future: Future[T] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        with self._lock:
            if self._closed:
                raise RuntimeError(f"the threads {self._name} are closed")
            self._calls.put(call)
            if self._idle > 0:
                self._idle -= 1
            elif self._started < self._size:
                self._started += 1
                threading.Thread(target=self._work, name=f"{self._name}-{self._started}", daemon=True).start()
        return future

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call
            with self._lock:
                self._idle += 1

    def close(self) -> None:
        """Lets the threads end when their calls are done; waits for nothing."""
        with self._lock:
            self._closed = True
            for _ in range(self._started):
                self._calls.put(None)
