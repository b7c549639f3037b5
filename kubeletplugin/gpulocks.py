"""Locks per GPU, between the tasks of this process and between two plugin processes on the node.

Inside the process waiters queue in order, without polling; the file lock is contended only while a rolling
update has two processes alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

_FIRST_PAUSE_SECONDS = 0.002
_LONGEST_PAUSE_SECONDS = 0.05


class LockTimeout(Exception):
    """A GPU stayed locked; the text names the GPU, what holds it and the seconds waited."""


class _GpuLock:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.gate = asyncio.Lock()
        self.holder = ""
        self.descriptor = -1

    async def acquire(self, deadline: float) -> None:
        """Take the gate, then the file. Raises TimeoutError."""
        async with asyncio.timeout_at(deadline):
            await self.gate.acquire()
        try:
            pause = _FIRST_PAUSE_SECONDS
            while not self._try_file():
                if asyncio.get_running_loop().time() + pause > deadline:
                    self.holder = "another plugin process"
                    raise TimeoutError
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        except BaseException:
            self.gate.release()
            raise

    def _try_file(self) -> bool:
        if self.descriptor < 0:
            self.descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        self.holder = ""
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        self.gate.release()


class GpuLocks:
    """One lock for each GPU, as files below ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._locks: dict[str, _GpuLock] = {}

    @contextlib.asynccontextmanager
    async def hold(self, gpus: Sequence[str], holder: str, timeout: float) -> AsyncIterator[float]:
        """Hold the locks of ``gpus`` (PCI addresses); yields the seconds that were waited.

        They are taken in sorted order, so two holders of the same GPUs cannot block each other.

        Raises:
            LockTimeout: not all could be had within ``timeout`` seconds.
            OSError: the lock file cannot be made.
        """
        started = time.monotonic()
        deadline = asyncio.get_running_loop().time() + timeout
        async with contextlib.AsyncExitStack() as held:
            for gpu in sorted(set(gpus)):
                lock = self._locks.get(gpu)
                if lock is None:
                    lock = self._locks[gpu] = _GpuLock(self._folder / f"gpu-{gpu}.lock")
                try:
                    await lock.acquire(deadline)
                except TimeoutError:
                    raise LockTimeout(
                        f"GPU {gpu} is still being changed by {lock.holder or 'another call'} after "
                        f"{timeout:g} s; trying again is safe"
                    ) from None
                lock.holder = holder
                held.callback(lock.release)
            yield time.monotonic() - started

    def descriptor(self, gpu: str) -> int:
        """The open lock file of a GPU whose lock is held.

        A program that inherits it keeps the GPU locked for other processes until it ends, also when this
        process dies before.
        """
        return self._locks[gpu].descriptor
