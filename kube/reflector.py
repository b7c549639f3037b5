"""A local copy of some objects of the API server, kept true by list and watch."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping
from typing import Literal

from kube.asyncclient import AsyncKubeClient
from kube.backoff import Backoff
from kube.errors import ApiError, ApiUnavailable
from kube.resources import Object, Resource

Change = Literal["ADDED", "MODIFIED", "DELETED"]
Key = tuple[str, str]
"""Namespace (empty for cluster-scoped objects) and name."""

WATCH_SECONDS = 300.0


def key_of(item: Object) -> Key:
    metadata = item["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def without_managed_fields(item: Object) -> Object:
    """Drops the bookkeeping of server-side apply, often the largest part of an object."""
    item["metadata"].pop("managedFields", None)
    return item


class Reflector:
    """Lists and watches ``resource``, and calls ``on_change`` in the event loop for every change.

    After a gap (410, or a server that refused the watch) it lists again and reports the difference, so that
    deletions in the gap are seen. ``transform`` may cut objects down to what is needed before they are kept;
    it is called in the event loop and in the threads of the client, and lists come in pages of ``page_size``.
    With ``metadata_only`` the server sends nothing else of them.
    ``on_listed`` is called after each complete list, when ``items`` is true without a gap.
    ``on_error`` gets each failure; the next try follows after a back-off.
    """

    def __init__(
        self,
        client: AsyncKubeClient,
        resource: Resource,
        *,
        on_change: Callable[[Change, Object], None],
        on_error: Callable[[ApiError | ApiUnavailable], None],
        on_listed: Callable[[], None] = lambda: None,
        namespace: str | None = None,
        field_selector: str | None = None,
        label_selector: str | None = None,
        transform: Callable[[Object], Object] = without_managed_fields,
        page_size: int = 500,
        metadata_only: bool = False,
        backoff: Backoff | None = None,
    ) -> None:
        self._client = client
        self._resource = resource
        self._on_change = on_change
        self._on_error = on_error
        self._on_listed = on_listed
        self._namespace = namespace
        self._field_selector = field_selector
        self._label_selector = label_selector
        self._transform = transform
        self._page_size = page_size
        self._metadata_only = metadata_only
        self._backoff = backoff or Backoff()
        self._items: dict[Key, Object] = {}
        self._resource_version = ""
        self.synced = asyncio.Event()
        """Set after the first complete list."""

    @property
    def items(self) -> Mapping[Key, Object]:
        """The objects as last seen. They belong to the reflector: do not change them."""
        return self._items

    async def run(self) -> None:
        """Never returns; ends by cancellation."""
        while True:
            try:
                if not self._resource_version:
                    await self._list()
                await self._watch()
            except ApiError as error:
                self._resource_version = ""
                if error.gone:
                    # A list cures an expired version. The short wait is for a server that says so every time.
                    await asyncio.sleep(self._backoff.next_delay() / 10)
                    continue
                self._on_error(error)
                await asyncio.sleep(self._backoff.next_delay(error.retry_after))
            except ApiUnavailable as error:
                self._on_error(error)
                await asyncio.sleep(self._backoff.next_delay())

    async def _list(self) -> None:
        items, resource_version = await self._client.list(
            self._resource,
            self._namespace,
            field_selector=self._field_selector,
            label_selector=self._label_selector,
            page_size=self._page_size,
            transform=self._transform,
            metadata_only=self._metadata_only,
        )
        listed = {key_of(item): item for item in items}
        for key in self._items.keys() - listed.keys():
            self._on_change("DELETED", self._items.pop(key))
        for key, item in listed.items():
            self._store(key, item)
        self._resource_version = resource_version
        self.synced.set()
        self._on_listed()

    async def _watch(self) -> None:
        # Clients that started together must not renew their watches together.
        timeout = WATCH_SECONDS * random.uniform(1.0, 2.0)
        batches = self._client.watch(
            self._resource,
            self._namespace,
            resource_version=self._resource_version,
            field_selector=self._field_selector,
            label_selector=self._label_selector,
            timeout=timeout,
            metadata_only=self._metadata_only,
        )
        received = False
        async with contextlib.aclosing(batches):
            async for batch in batches:
                received = True
                self._backoff.reset()
                for kind, item in batch:
                    self._apply(kind, item)
        if not received:
            # A server that accepts watches and ends them without a word would be asked in a tight loop.
            await asyncio.sleep(self._backoff.next_delay())

    def _apply(self, kind: str, item: Object) -> None:
        self._resource_version = item["metadata"]["resourceVersion"]
        if kind == "BOOKMARK":
            return
        key = key_of(item)
        item = self._transform(item)
        if kind == "DELETED":
            self._items.pop(key, None)
            self._on_change("DELETED", item)
        else:
            self._store(key, item)

    def _store(self, key: Key, item: Object) -> None:
        known = self._items.get(key)
        if known is None:
            self._items[key] = item
            self._on_change("ADDED", item)
        elif known["metadata"]["resourceVersion"] != item["metadata"]["resourceVersion"]:
            self._items[key] = item
            self._on_change("MODIFIED", item)
