"""The API server for asyncio: the blocking client, called in threads of its own."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from concurrent.futures import CancelledError as FutureCancelledError
from concurrent.futures import Future
from typing import Any, Concatenate, ParamSpec, TypeVar

from kube.client import KubeClient, WatchEvent, WatchStream
from kube.errors import ApiError, ApiUnavailable
from kube.resources import Resource
from kube.threads import DaemonThreads

P = ParamSpec("P")
T = TypeVar("T")


def _in_thread(
    method: Callable[Concatenate[KubeClient, P], T],
) -> Callable[Concatenate[AsyncKubeClient, P], Coroutine[Any, Any, T]]:
    @functools.wraps(method)
    async def call(self: AsyncKubeClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.wrap_future(self.threads.submit(method, self.client, *args, **kwargs))

    return call


class AsyncKubeClient:
    """:class:`KubeClient` for asyncio: at most ``max_threads`` requests at once; a thread for each watch."""

    def __init__(self, client: KubeClient, max_threads: int = 16) -> None:
        self.client = client
        self.threads = DaemonThreads(max_threads, "kube")

    version = _in_thread(KubeClient.version)
    get = _in_thread(KubeClient.get)
    list = _in_thread(KubeClient.list)
    create = _in_thread(KubeClient.create)
    replace = _in_thread(KubeClient.replace)
    patch = _in_thread(KubeClient.patch)
    apply = _in_thread(KubeClient.apply)
    delete = _in_thread(KubeClient.delete)

    async def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        resource_version: str,
        field_selector: str | None = None,
        label_selector: str | None = None,
        timeout: float = 300.0,
        metadata_only: bool = False,
    ) -> AsyncGenerator[Sequence[WatchEvent], None]:
        """Yields batches of events until the server ends the watch.

        Use it with ``contextlib.aclosing``: closing or cancelling it stops the thread at once, also when that
        thread waits for the server.
        """
        thread = DaemonThreads(1, f"watch-{resource.plural}")
        opening = thread.submit(
            self.client.watch,
            resource,
            namespace,
            resource_version=resource_version,
            field_selector=field_selector,
            label_selector=label_selector,
            timeout=timeout,
            metadata_only=metadata_only,
        )
        try:
            stream = await asyncio.wrap_future(opening)
            batches = iter(stream)
            while (batch := await asyncio.wrap_future(thread.submit(next, batches, None))) is not None:
                yield batch
        finally:
            opening.add_done_callback(functools.partial(_abandon, thread))

    def close(self) -> None:
        """Waits for nothing: requests under way end on their own or with the process."""
        self.threads.close()
        self.client.close()


def _abandon(thread: DaemonThreads, opening: Future[WatchStream]) -> None:
    with contextlib.suppress(ApiError, ApiUnavailable, FutureCancelledError):
        stream = opening.result()
        stream.stop()
        thread.submit(stream.close)
    thread.close()
