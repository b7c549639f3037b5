"""Keeps the node's ResourceSlices in the API server as the driver wants them."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from kube.asyncclient import AsyncKubeClient
from kube.backoff import Backoff
from kube.errors import ApiError, ApiUnavailable
from kube.reflector import Reflector
from kube.resources import NODES, RESOURCE_SLICES, Object
from kubeletplugin.slicecomparison import comparable, dropped_fields
from kubeletplugin.slicewrites import Accepted, Plan, Pool, SliceDeletion, SliceWrite, full_spec, plan_writes

logger = logging.getLogger(__name__)

OLDEST_KUBERNETES = "1.34"
REPEAT_LOG_SECONDS = 300.0

COUNTER_FIELDS = ("sharedCounters", "devices[].consumesCounters")
"""Paths, and beginnings of paths, of the fields of a slice without which devices would be given out twice."""


@dataclass(frozen=True, slots=True)
class DroppedFields:
    """The server stored a slice without some fields that it was sent, or changed them.

    ``fields`` are paths below the spec without indexes, such as ``devices[].taints``.
    """

    slice_name: str
    index: int
    fields: tuple[str, ...]


class PublisherObserver(Protocol):
    """Told what happens, from the event loop; for metrics and events."""

    def wrote(self, verb: Literal["create", "update", "delete"]) -> None:
        """A slice was written."""

    def dropped(self, dropped: DroppedFields) -> None:
        """A slice was stored with less than was sent. Called before the next slice is written, so that
        ``update`` with other slices takes effect at once."""

    def published(self, generation: int, slices: int) -> None:
        """The server has all slices."""

    def failed_to_publish(self, message: str) -> None:
        """A try to write the slices failed; the next follows after a back-off."""


class PublishError(Exception):
    """A try failed. The message says what was tried; ``retry_after`` is in seconds."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class SlicePublisher:
    """Publishes the slices of ``driver`` on ``node_name``; the pool is named as the node.

    Slices are written when ``update`` brings other ones, and when somebody else changed or deleted one: then
    after a few seconds, because the kubelet deletes all slices of a node together, and less and less often if
    it goes on, because two publishers may disagree while one replaces the other.
    """

    def __init__(
        self,
        client: AsyncKubeClient,
        *,
        driver: str,
        node_name: str,
        observer: PublisherObserver,
        backoff: Backoff | None = None,
        repair_backoff: Backoff | None = None,
    ) -> None:
        self._client = client
        self._driver = driver
        self._node_name = node_name
        self._observer = observer
        self._backoff = backoff or Backoff(0.5, 20.0)
        self._repair_backoff = repair_backoff or Backoff(3.0, 20.0)
        self._selector = f"spec.nodeName={node_name},spec.driver={driver}"
        self._reflector = Reflector(
            client,
            RESOURCE_SLICES,
            field_selector=self._selector,
            on_change=lambda change, item: self._look(),
            on_listed=self._look,
            on_error=lambda error: self._log_once(self._explain_collection("watch ResourceSlices", error)),
            transform=_without_spec,
        )
        self._wanted: tuple[Object, ...] | None = None
        self._published: tuple[Object, ...] | None = None
        self._accepted: dict[int, Accepted] = {}
        self._known: dict[str, str] = {}
        self._repair: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()
        self._logged: dict[str, float] = {}
        self.completed = asyncio.Event()
        """Set each time that the server has accepted all slices; whoever waits for it clears it."""
        self.first_published = asyncio.Event()
        """Set once the server has accepted all slices."""

    def update(self, wanted: Sequence[Object]) -> None:
        """What is to be published from now on: specs in order, without pool, driver and node name."""
        if self._wanted != tuple(wanted):
            self._wanted = tuple(copy.deepcopy(list(wanted)))
            self._wake.set()

    @property
    def is_published(self) -> bool:
        """Whether the server has accepted what was last asked for."""
        return self._wanted is not None and self._published is self._wanted

    async def run(self) -> None:
        """Never returns; ends by cancellation and leaves the slices in place."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reflector.run(), name="watch ResourceSlices")
            try:
                await self._keep_published()
            finally:
                if self._repair is not None:
                    self._repair.cancel()

    async def delete_all(self) -> None:
        """Takes all slices of the driver on this node away, once; nothing is published until ``update``.

        Raises:
            PublishError: some may be left.
        """
        self._wanted = None
        pool = Pool(self._driver, self._node_name, node_uid="")
        for deletion in plan_writes([], await self._list(), pool).deletions:
            await self._delete(deletion)

    async def _keep_published(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._publish()
            except PublishError as error:
                self._log_once(str(error))
                self._observer.failed_to_publish(str(error))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._backoff.next_delay(error.retry_after)):
                        await self._wake.wait()
                self._wake.set()
            else:
                self._backoff.reset()

    async def _publish(self) -> None:
        wanted = self._wanted
        if wanted is None:
            return
        # Planned from a fresh list, never from the watch, which may be behind our own writes.
        node_uid, stored = await asyncio.gather(self._node_uid(), self._list())
        self._known = {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in stored}
        pool = Pool(self._driver, self._node_name, node_uid)
        plan = plan_writes(wanted, stored, pool, self._accepted)
        if not await self._carry_out(plan, wanted, pool):
            return
        if plan.deletions or plan.writes or not self.first_published.is_set():
            logger.info(
                "published pool %s, generation %d: %d slices (%d written, %d deleted)",
                self._node_name,
                plan.generation,
                len(wanted),
                len(plan.writes),
                len(plan.deletions),
            )
        self.first_published.set()
        self._published = wanted
        self.completed.set()
        self._observer.published(plan.generation, len(wanted))

    async def _carry_out(self, plan: Plan, wanted: tuple[Object, ...], pool: Pool) -> bool:
        """False when other slices were wanted meanwhile: then the rest of the plan is out of date."""
        for step in plan.steps:
            if self._wanted is not wanted:
                return False
            if isinstance(step, SliceDeletion):
                await self._delete(step)
            else:
                stored = await self._write(step)
                self._compare(step, wanted, stored, pool)
        return self._wanted is wanted

    async def _node_uid(self) -> str:
        try:
            node = await self._client.get(NODES, self._node_name)
        except (ApiError, ApiUnavailable) as error:
            message = f"cannot read Node {self._node_name}, which is to own the slices: {error}"
            raise PublishError(message, _retry_after(error)) from error
        uid: str = node["metadata"]["uid"]
        return uid

    async def _list(self) -> list[Object]:
        try:
            items, _ = await self._client.list(RESOURCE_SLICES, field_selector=self._selector)
        except (ApiError, ApiUnavailable) as error:
            message = self._explain_collection("list ResourceSlices", error)
            raise PublishError(message, _retry_after(error)) from error
        return items

    async def _write(self, write: SliceWrite) -> Object:
        try:
            if write.name is None:
                stored = await self._client.create(RESOURCE_SLICES, write.body)
            else:
                stored = await self._client.replace(RESOURCE_SLICES, write.name, write.body)
        except (ApiError, ApiUnavailable) as error:
            name = write.name or write.body["metadata"]["generateName"]
            raise PublishError(f"cannot write ResourceSlice {name}: {error}", _retry_after(error)) from error
        self._known[stored["metadata"]["name"]] = stored["metadata"]["resourceVersion"]
        self._observer.wrote("create" if write.name is None else "update")
        return stored

    async def _delete(self, deletion: SliceDeletion) -> None:
        try:
            await self._client.delete(
                RESOURCE_SLICES,
                deletion.name,
                uid=deletion.uid,
                resource_version=deletion.resource_version,
            )
        except (ApiError, ApiUnavailable) as error:
            if not (isinstance(error, ApiError) and error.not_found):
                message = f"cannot delete ResourceSlice {deletion.name}: {error}"
                raise PublishError(message, _retry_after(error)) from error
        self._known.pop(deletion.name, None)
        self._observer.wrote("delete")

    def _compare(self, write: SliceWrite, wanted: tuple[Object, ...], stored: Object, pool: Pool) -> None:
        """Learn what the server made of a slice.

        Raises:
            PublishError: counters were left out, and the same slices are still wanted. The next step could
                show devices without counters, which would be given out twice.
        """
        sent = write.body["spec"]
        self._accepted.pop(write.index, None)
        if comparable(sent) == comparable(stored["spec"]):
            return
        fields = dropped_fields(sent, stored["spec"])
        counters = [field for field in fields if field.startswith(COUNTER_FIELDS)]
        if not counters:
            spec = full_spec(wanted[write.index], pool, 0, 0)
            self._accepted[write.index] = Accepted(spec, stored["spec"])
        name = stored["metadata"]["name"]
        if fields:
            self._observer.dropped(DroppedFields(name, write.index, fields))
        if counters and self._wanted is wanted:
            raise PublishError(
                f"the API server stored ResourceSlice {name} without {', '.join(counters)}; no further "
                "slice is written, since devices without counters would be given out twice (feature gate "
                "DRAPartitionableDevices)"
            )

    def _look(self) -> None:
        if self._repair is None and self._differs():
            delay = self._repair_backoff.next_delay()
            self._repair = asyncio.get_running_loop().call_later(delay, self._on_repair)

    def _differs(self) -> bool:
        watched = {
            item["metadata"]["name"]: item["metadata"]["resourceVersion"]
            for item in self._reflector.items.values()
        }
        return watched != self._known

    def _on_repair(self) -> None:
        self._repair = None
        # The event of an own write may come before the answer, or long after it; by now both are here.
        if self._differs():
            self._wake.set()
        else:
            self._repair_backoff.reset()

    def _explain_collection(self, attempt: str, error: ApiError | ApiUnavailable) -> str:
        if isinstance(error, ApiError) and error.not_found:
            server, group_version = self._client.client.server, RESOURCE_SLICES.group_version
            return (
                f"the API server {server} does not serve {group_version}: Kubernetes {OLDEST_KUBERNETES} or "
                "newer is needed (it serves this group version unless --runtime-config turns it off)"
            )
        return f"cannot {attempt}: {error}"

    def _log_once(self, message: str) -> None:
        now = time.monotonic()
        self._logged = {text: at for text, at in self._logged.items() if now - at < REPEAT_LOG_SECONDS}
        if message not in self._logged:
            self._logged[message] = now
            logger.error("%s; will try again", message)


def _retry_after(error: ApiError | ApiUnavailable) -> float | None:
    return error.retry_after if isinstance(error, ApiError) else None


def _without_spec(item: Object) -> Object:
    # The watch only says which slices changed; to keep their devices would cost memory twice.
    return {"metadata": item["metadata"]}
