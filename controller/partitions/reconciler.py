"""Keeps NodePartitions, and the status of PartitionRequests, as they should be, while this replica leads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple

from controller.partitions import layoutsfile, miglabel, progress
from controller.partitions.holders import Holder, evict, holders
from controller.partitions.layouts import Layouts
from controller.partitions.layoutsfile import LayoutsError
from controller.partitions.progress import NodeProgress
from controller.partitions.request import PartitionRequest, RequestError, read, source_of
from controller.partitions.resolution import NodeGpus, Resolution, ranked, resolve
from controller.parts import Surroundings
from driver.claim import DRIVER_NAME
from driver.nodepartition import API_VERSION, KIND, GpuReport, GpuState, reports_of
from kube.conditions import Condition, Conditions, nobody
from kube.errors import ApiError, ApiUnavailable
from kube.events import ObjectReference
from kube.reflector import Change, Reflector
from kube.resources import NODE_PARTITIONS, NODES, PARTITION_REQUESTS, RESOURCE_SLICES, Object
from kube.workqueue import WorkQueue

MANAGER = "gpu-dra-controller"

_SETTLE_SECONDS = 0.3
"""Requests, nodes and reports come in bursts."""
_RESYNC_SECONDS = 300.0
_LAYOUTS_SECONDS = 10.0
_WORKERS = 8
_BUSY_SECONDS = 10.0
"""How often the pods in the way of a node are looked at again."""

log = logging.getLogger(__name__)


class _Key(NamedTuple):
    """What is worked on: ``all`` requests against all nodes, one node, or the status of one request."""

    kind: Literal["all", "node", "request"]
    name: str = ""


_ALL = _Key("all")


@dataclass(frozen=True, slots=True)
class NodeResult:
    """What became of a node: who gets what, what its plugin reported, and who is in the way.

    ``is_current``: the plugin has seen what is wanted. ``pods`` hold a claim, by its UID.
    """

    resolution: Resolution
    reports: tuple[GpuReport, ...]
    is_current: bool
    pods: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def progress(self, node: str, source: str) -> NodeProgress:
        """What one request is told of the node."""
        share = self.resolution.shares[source]
        return NodeProgress(node, share, self.resolution.wanted, self.reports, self.is_current, self.pods)


class Partitions:
    """Works on nodes and requests; what fails for one holds up no other."""

    def __init__(self, surroundings: Surroundings, layouts_file: Path | None) -> None:
        self._client = surroundings.client
        self._events = surroundings.events
        self._metrics = surroundings.metrics
        self._layouts_file = layouts_file
        self._layouts: Layouts = {}
        self._layouts_trouble = Conditions(nobody)
        self._queue: WorkQueue[_Key] = WorkQueue()
        self._busy: set[_Key] = set()
        self._requests = Reflector(
            self._client,
            PARTITION_REQUESTS,
            on_change=self._request_changed,
            on_error=surroundings.watch_trouble(PARTITION_REQUESTS),
        )
        self._partitions = Reflector(
            self._client,
            NODE_PARTITIONS,
            on_change=self._node_changed,
            on_error=surroundings.watch_trouble(NODE_PARTITIONS),
        )
        self._nodes = Reflector(
            self._client,
            NODES,
            on_change=self._node_changed,
            on_error=surroundings.watch_trouble(NODES),
            transform=_label_digest,
            metadata_only=True,
        )
        self._slices = Reflector(
            self._client,
            RESOURCE_SLICES,
            on_change=self._slice_changed,
            on_error=surroundings.watch_trouble(RESOURCE_SLICES),
            field_selector=f"spec.driver={DRIVER_NAME}",
            transform=_owner_digest,
            metadata_only=True,
        )
        self._slices_of: dict[str, set[str]] = {}
        self._ranked: Sequence[PartitionRequest] = ()
        self._invalid: Mapping[str, str] = {}
        self._resolved: dict[str, NodeResult] = {}
        self._nodes_of: dict[str, set[str]] = {}
        self._told: dict[str, Conditions] = {}

    async def run(self) -> None:
        """Never returns; ends by cancellation."""
        async with asyncio.TaskGroup() as group:
            reflectors = (self._requests, self._partitions, self._nodes, self._slices)
            for reflector in reflectors:
                group.create_task(reflector.run())
            for reflector in reflectors:
                await reflector.synced.wait()
            await self._read_layouts()
            self._rank()
            # Before any request is told of: without its nodes it would seem to have none.
            for name in self._node_names():
                await self._work(_Key("node", name))
            group.create_task(self._resync())
            group.create_task(self._follow_layouts())
            for _ in range(_WORKERS):
                group.create_task(self._keep_working())

    def _request_changed(self, change: Change, item: Object) -> None:
        self._queue.add(_ALL, _SETTLE_SECONDS)

    def _node_changed(self, change: Change, item: Object) -> None:
        self._queue.add(_Key("node", item["metadata"]["name"]))

    def _slice_changed(self, change: Change, item: Object) -> None:
        node, name = item[_NODE], item["metadata"]["name"]
        known = self._slices_of.setdefault(node, set())
        if not known:
            self._queue.add(_Key("node", node), _SETTLE_SECONDS)
        if change == "DELETED":
            known.discard(name)
        else:
            known.add(name)

    async def _resync(self) -> None:
        while True:
            self._queue.add(_ALL)
            await asyncio.sleep(_RESYNC_SECONDS)

    async def _follow_layouts(self) -> None:
        while True:
            await asyncio.sleep(_LAYOUTS_SECONDS)
            before = self._layouts
            await self._read_layouts()
            if self._layouts != before:
                self._queue.add(_ALL)

    async def _read_layouts(self) -> None:
        """Read the layouts that an administrator named; what was wrong leaves the last ones in force."""
        if self._layouts_file is None:
            return
        try:
            self._layouts = await asyncio.to_thread(layoutsfile.read, self._layouts_file)
        except LayoutsError as error:
            text = f"what the file of layouts said before stays in force: {error}"
            self._layouts_trouble.stand([Condition("LayoutsInvalid", text)])
        else:
            self._layouts_trouble.stand([])

    async def _keep_working(self) -> None:
        while True:
            key = await self._queue.get()
            if key in self._busy:
                self._queue.add(key, _SETTLE_SECONDS)
                continue
            self._busy.add(key)
            try:
                await self._work(key)
            finally:
                self._busy.discard(key)

    async def _work(self, key: _Key) -> None:
        """Bring one node, or the status of one request, to what it should be; or look at all requests."""
        try:
            if key.kind == "node":
                await self._reconcile_node(key.name)
            elif key.kind == "request":
                await self._tell(key.name)
            else:
                self._look_at_requests()
        except (ApiError, ApiUnavailable) as error:
            self._metrics.partition_errors.inc()
            conflict = isinstance(error, ApiError) and (error.conflict or error.not_found)
            log.log(logging.DEBUG if conflict else logging.WARNING, "%s %s: %s", key.kind, key.name, error)
            self._queue.failed(key, error.retry_after if isinstance(error, ApiError) else None)
        else:
            self._queue.succeeded(key)

    def _node_names(self) -> list[str]:
        """The nodes for which there may be something to do."""
        return sorted({name for _, name in self._partitions.items} | {*self._slices_of} | {*self._resolved})

    def _look_at_requests(self) -> None:
        self._rank()
        for name in self._node_names():
            self._queue.add(_Key("node", name))
        for _, name in self._requests.items:
            # After the nodes, so that there is one write for what became of all of them.
            self._queue.add(_Key("request", name), _SETTLE_SECONDS)

    def _rank(self) -> None:
        found, invalid = [], {}
        for (_, name), item in self._requests.items.items():
            if item["metadata"].get("deletionTimestamp"):
                continue
            try:
                found.append(read(item))
            except RequestError as error:
                invalid[name] = str(error)
        self._ranked, self._invalid = ranked(found), invalid
        self._metrics.partition_requests.set(len(self._requests.items))

    async def _reconcile_node(self, name: str) -> None:
        """Write what is wanted of a node, evict what is to be evicted, and note how far it is.

        Raises:
            ApiError, ApiUnavailable: it could not be done.
        """
        node = self._nodes.items.get(("", name))
        partition = self._partitions.items.get(("", name))
        requests = self._requests_for(name, node, partition)
        if not requests or node is None:
            if partition is not None:
                metadata = partition["metadata"]
                await self._client.delete(NODE_PARTITIONS, name, uid=metadata["uid"])
                self._metrics.partition_writes.labels("delete").inc()
                log.info("NodePartition %s is deleted: no request wants anything of the node", name)
            if node is not None:
                await self._answer_label(name, node, None)
            self._note(name, None)
            return
        status = (partition or {}).get("status")
        reports = reports_of(status) if status else None
        resolution = resolve(NodeGpus(name, _labels(node), reports), requests, self._layouts)
        if partition is None or _differs(partition, resolution, node):
            partition = await self._apply(name, node, resolution)
        is_current = (status or {}).get("observedGeneration") == partition["metadata"].get("generation")
        result = NodeResult(resolution, reports or (), is_current)
        await self._answer_label(name, node, result)
        self._note(name, result)
        await self._look_at_holders(name, result, requests)

    def _requests_for(
        self, name: str, node: Object | None, partition: Object | None
    ) -> Sequence[PartitionRequest]:
        """The requests that select a node, ranked; of a node without GPUs of this driver nobody wants any."""
        if node is None or (partition is None and not self._slices_of.get(name)):
            return ()
        labels = _labels(node)
        found = [request for request in self._ranked if request.selects(labels)]
        labelled = miglabel.request_of(labels)
        return [*found, labelled] if labelled is not None else found

    async def _apply(self, name: str, node: Object, resolution: Resolution) -> Object:
        body = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": name, "ownerReferences": [_owner(node)]},
            "spec": {"gpus": [gpu.document() for gpu in resolution.wanted]},
        }
        stored = await self._client.apply(NODE_PARTITIONS, name, body, field_manager=MANAGER)
        self._metrics.partition_writes.labels("apply").inc()
        log.info("NodePartition %s is applied: %d GPUs", name, len(resolution.wanted))
        return stored

    def _note(self, name: str, result: NodeResult | None) -> None:
        """Keep what became of a node, and have those requests told of it that are concerned."""
        before = self._resolved.get(name)
        if result == before:
            return
        sources = set(before.resolution.shares if before else ())
        for source in sources:
            self._nodes_of.get(source, set()).discard(name)
        if result is None:
            del self._resolved[name]
        else:
            self._resolved[name] = result
            for source in result.resolution.shares:
                self._nodes_of.setdefault(source, set()).add(name)
                sources.add(source)
        for _, request in self._requests.items:
            if source_of(request) in sources:
                self._queue.add(_Key("request", request), _SETTLE_SECONDS)

    async def _answer_label(self, name: str, node: Object, result: NodeResult | None) -> None:
        """Tell those who wrote the label of MIG manager how far the node is, and nothing without it."""
        before = self._resolved.get(name)
        state = None
        if result is not None:
            share = result.resolution.shares.get(miglabel.SOURCE)
            state = miglabel.state(share, result.reports, is_current=result.is_current)
        was_asked = before is not None and miglabel.SOURCE in before.resolution.shares
        if (state or was_asked) and _labels(node).get(miglabel.STATE_LABEL) != state:
            await self._client.patch(NODES, name, {"metadata": {"labels": {miglabel.STATE_LABEL: state}}})
            self._metrics.partition_writes.labels("label").inc()

    async def _look_at_holders(
        self, name: str, result: NodeResult, requests: Sequence[PartitionRequest]
    ) -> None:
        """Name the pods in the way, and evict them where that is wanted and nobody new can come."""
        by_source = {request.source: request for request in requests}
        pods: dict[str, tuple[str, ...]] = {}
        waiting = [one for one in result.reports if one.state is GpuState.WAITING]
        for report in waiting:
            request = by_source.get(report.source)
            for claim in report.claims:
                found = await holders(self._client, claim)
                kept: Mapping[Holder, str] = {}
                if request is not None and request.evict and report.closed and result.is_current:
                    kept = await evict(self._client, found, request.grace_seconds)
                    self._metrics.evictions.labels("kept").inc(len(kept))
                    self._metrics.evictions.labels("asked").inc(len(found) - len(kept))
                pods[claim.uid] = tuple(f"{pod} ({kept[pod]})" if pod in kept else str(pod) for pod in found)
        if waiting:
            self._queue.add(_Key("node", name), _BUSY_SECONDS)
        self._note(name, replace(result, pods=pods))

    async def _tell(self, name: str) -> None:
        """Write the status of a request.

        Raises:
            ApiError, ApiUnavailable: it could not be written.
        """
        item = self._requests.items.get(("", name))
        if item is None:
            self._told.pop(name, None)
            return
        before, generation = item.get("status"), item["metadata"]["generation"]
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if name in self._invalid:
            status = progress.refused(generation, self._invalid[name], before, now)
        else:
            source = source_of(name)
            nodes = [self._resolved[node].progress(node, source) for node in self._nodes_of.get(source, ())]
            status = progress.status(source, generation, nodes, before, now)
        if status != before:
            await self._client.patch(PARTITION_REQUESTS, name, {"status": status}, subresource="status")
            self._metrics.partition_writes.labels("status").inc()
        accepted = status["conditions"][0]
        trouble = [] if accepted["status"] == "True" else [Condition(accepted["reason"], accepted["message"])]
        about = ObjectReference(
            PARTITION_REQUESTS.group_version, "PartitionRequest", name, uid=item["metadata"]["uid"]
        )
        self._told.setdefault(
            name, Conditions(lambda reason, message: self._events.warning(about, reason, message))
        ).stand(trouble)


def _labels(node: Object) -> Mapping[str, str]:
    return node["metadata"].get("labels") or {}


def _owner(node: Object) -> Object:
    metadata = node["metadata"]
    return {"apiVersion": "v1", "kind": "Node", "name": metadata["name"], "uid": metadata["uid"]}


def _differs(partition: Object, resolution: Resolution, node: Object) -> bool:
    """Whether a NodePartition says something else than it should, or belongs to an earlier node."""
    wanted = [gpu.document() for gpu in resolution.wanted]
    owners = {owner["uid"] for owner in partition["metadata"].get("ownerReferences") or ()}
    stored = (partition.get("spec") or {}).get("gpus") or []
    return stored != wanted or owners != {node["metadata"]["uid"]}


def _label_digest(item: Object) -> Object:
    metadata = item["metadata"]
    kept = ("name", "uid", "resourceVersion", "labels")
    return {"metadata": {key: metadata[key] for key in kept if key in metadata}}


_NODE = "node"


def _owner_digest(item: Object) -> Object:
    """Of a slice its name, and the node that owns it; empty if none does."""
    metadata = item["metadata"]
    owners = [owner["name"] for owner in metadata.get("ownerReferences") or () if owner["kind"] == "Node"]
    return {
        "metadata": {"name": metadata["name"], "resourceVersion": metadata["resourceVersion"]},
        _NODE: owners[0] if owners else "",
    }
