"""The node's NodePartition: what partition requests want of its GPUs, read, and what became of it, written.

A cluster without the kind, or a plugin that may not read it, is one in which nothing is wanted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from driver.nodepartition import reports_of, wanted_gpus
from driver.nodepolicy import RequestedPolicy
from kube.asyncclient import AsyncKubeClient
from kube.backoff import Backoff
from kube.conditions import Announce, Condition, Conditions
from kube.errors import ApiError, ApiUnavailable
from kube.reflector import Change, Reflector
from kube.resources import NODE_PARTITIONS, Object
from kubeletplugin.gpureports import gpu_reports, held_partitions, with_kept
from kubeletplugin.hardware import GpuHardware
from kubeletplugin.metrics import Metrics
from kubeletplugin.publisher import SlicePublisher
from kubeletplugin.publishing import Publishing
from kubeletplugin.store import ClaimRecord, StoreError, StoreReplaced

_PAUSE_SECONDS = 1.0
_SETTLE_SECONDS = 0.1
_LONGEST_WATCH_PAUSE_SECONDS = 60.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wish:
    """What one generation of the NodePartition wants, by the GPU's UUID, and what is wrong with it."""

    generation: int
    requested: Mapping[str, RequestedPolicy]
    wrong: Mapping[str, str]


class PartitionSource:
    """Watches the NodePartition of the node and has the hardware offered as it wants."""

    def __init__(
        self,
        client: AsyncKubeClient,
        hardware: GpuHardware,
        records: Callable[[], Awaitable[Collection[ClaimRecord]]],
        announce: Announce,
        *,
        node_name: str,
    ) -> None:
        self._hardware = hardware
        self._records = records
        self._conditions = Conditions(announce)
        self._node_name = node_name
        self._reflector = Reflector(
            client,
            NODE_PARTITIONS,
            field_selector=f"metadata.name={node_name}",
            on_change=self._on_change,
            on_listed=self._on_listed,
            on_error=self._on_error,
            backoff=Backoff(0.5, _LONGEST_WATCH_PAUSE_SECONDS),
        )
        self._changed = asyncio.Event()
        self._answered = False
        self.changed = asyncio.Event()
        """Set with each change of the object; whoever reports clears it."""
        self.wish: Wish | None = None
        """What is wanted, as it was handed to the hardware; ``None`` where there is no NodePartition."""

    @property
    def object(self) -> Object | None:
        """The NodePartition as last seen, or ``None`` if there is none."""
        return self._reflector.items.get(("", self._node_name))

    async def run(self) -> None:
        """Never returns."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reflector.run(), name="watch NodePartition")
            await self._hardware.ready.wait()
            while True:
                await self._changed.wait()
                self._changed.clear()
                try:
                    await self._apply()
                except StoreReplaced:
                    raise
                except StoreError as error:
                    log.warning("what partition requests want is not looked at for now: %s", error)
                    await asyncio.sleep(_PAUSE_SECONDS)
                    self._changed.set()

    async def _apply(self) -> None:
        held = held_partitions(await self._records(), self._hardware.inventory)
        item = self.object
        requested, wrong = wanted_gpus((item or {}).get("spec") or {})
        known = self._hardware.policy.requested
        kept = with_kept(requested, known, reports_of((item or {}).get("status")), held)
        self._hardware.apply_requested(kept)
        self.wish = None if item is None else Wish(item["metadata"]["generation"], kept, wrong)
        self.changed.set()
        self._conditions.stand(
            Condition("NodePartitionInvalid", f"NodePartition {self._node_name}: {text}")
            for text in wrong.values()
        )

    def _on_change(self, change: Change, item: Object) -> None:
        self._changed.set()

    def _on_listed(self) -> None:
        self._answered = True
        self._changed.set()

    def _on_error(self, error: ApiError | ApiUnavailable) -> None:
        """Only an answer that there is nothing to read is one; every other failure passes."""
        if not isinstance(error, ApiError) or not (error.not_found or error.forbidden) or self._answered:
            return
        if error.forbidden:
            log.warning("the NodePartition of this node may not be read, so none is followed: %s", error)
        else:
            log.info("this cluster has no NodePartitions, so GPUs are offered as the node policy says")
        self._answered = True
        self._changed.set()


class PartitionReports:
    """Writes into the NodePartition's status what the node's GPUs are, and how far they are."""

    def __init__(
        self,
        client: AsyncKubeClient,
        source: PartitionSource,
        publishing: Publishing,
        publisher: SlicePublisher,
        metrics: Metrics,
        *,
        node_name: str,
    ) -> None:
        self._client = client
        self._source = source
        self._publishing = publishing
        self._publisher = publisher
        self._errors = metrics.partition_report_errors
        self._states = metrics.requested_gpus
        self._node_name = node_name
        self._backoff = Backoff(0.5, 30.0)

    async def run(self) -> None:
        """Never returns."""
        while True:
            try:
                await self._report()
            except (ApiError, ApiUnavailable) as error:
                if not (isinstance(error, ApiError) and error.not_found):
                    self._errors.inc()
                    log.warning("the status of NodePartition %s: %s", self._node_name, error)
                await asyncio.sleep(self._backoff.next_delay())
                continue
            self._backoff.reset()
            await self._news()
            # What comes together is told together.
            await asyncio.sleep(_SETTLE_SECONDS)

    async def _news(self) -> None:
        events = (self._source.changed, self._publishing.computed, self._publisher.completed)
        waits = [asyncio.create_task(event.wait()) for event in events]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _report(self) -> None:
        for event in (self._source.changed, self._publishing.computed, self._publisher.completed):
            event.clear()
        item, wish, offer = self._source.object, self._source.wish, self._publishing.offer
        wrong = {} if wish is None else wish.wrong
        reports = gpu_reports(offer.view, offer.policy, wrong, offer.in_the_way, offer.closed)
        self._states.clear()
        for report in reports:
            if report.source:
                self._states.labels(report.state).inc()
        # What is not published yet is not yet so.
        is_offered = wish is not None and wish.requested == offer.policy.requested
        if item is None or wish is None or not is_offered or not self._publisher.is_published:
            return
        status: dict[str, Any] = {
            "observedGeneration": wish.generation,
            "gpus": [report.document() for report in reports],
        }
        if (item.get("status") or {}) != status:
            await self._client.patch(
                NODE_PARTITIONS, self._node_name, {"status": status}, subresource="status"
            )
