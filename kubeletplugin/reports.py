"""Reports: what happens to claims and slices, told where people look: metrics, events, claim status."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Literal

from driver.claim import ClaimReference
from kube.events import EventRecorder, ObjectReference
from kube.resources import Object
from kubeletplugin.claimstatus import StatusWriter, claim_object, vanished_message
from kubeletplugin.failures import Failure
from kubeletplugin.metrics import Metrics
from kubeletplugin.publisher import DroppedFields
from kubeletplugin.store import ClaimRecord, HeldDevice

log = logging.getLogger(__name__)


class NodeReports:
    """Tells of the node: its GPUs, its slices, its store. Observes the publisher."""

    def __init__(
        self,
        metrics: Metrics,
        events: EventRecorder,
        node_name: str,
        on_dropped: Callable[[DroppedFields], None],
    ) -> None:
        self._metrics = metrics
        self._events = events
        self._on_dropped = on_dropped
        # As the kubelet does in its own events on a Node, which is what kubectl describe looks for.
        self._node = ObjectReference("v1", "Node", node_name, uid=node_name)

    def warning(self, reason: str, message: str) -> None:
        self._events.warning(self._node, reason, message)

    def wrote(self, verb: Literal["create", "update", "delete"]) -> None:
        self._metrics.slice_writes.labels(verb).inc()

    def dropped(self, dropped: DroppedFields) -> None:
        for field in dropped.fields:
            self._metrics.dropped_fields.labels(field).inc()
        self.warning(
            "SliceFieldsDropped",
            f"the API server stored ResourceSlice {dropped.slice_name} without {', '.join(dropped.fields)}: "
            "the features behind these fields are off in this cluster",
        )
        self._on_dropped(dropped)

    def published(self, generation: int, slices: int) -> None:
        self._metrics.pool_generation.set(generation)

    def failed_to_publish(self, message: str) -> None:
        self._metrics.publish_errors.inc()
        self.warning("PublishFailed", message)


class ClaimReports:
    """Tells of claims: status and events. Observes the DRA service."""

    def __init__(self, events: EventRecorder, status: StatusWriter) -> None:
        self._events = events
        self._status = status

    def prepared(self, record: ClaimRecord, claim: Object) -> None:
        self._status.prepared(record, claim)

    def unprepared(self, reference: ClaimReference) -> None:
        self._status.unprepared(reference.uid)

    def vanished(self, record: ClaimRecord, devices: Sequence[HeldDevice]) -> None:
        """MIG devices of a prepared claim do not exist any more."""
        self._status.vanished(record, devices)
        for held in devices:
            log.warning("claim %s: %s", record.claim, vanished_message(held))
            self._events.warning(claim_object(record.claim), "MigDeviceGone", vanished_message(held))

    def failed(self, operation: str, reference: ClaimReference, reason: Failure) -> None:
        self._events.warning(
            claim_object(reference), f"{operation.capitalize()}Failed", f"{reason.cause}: {reason.message}"
        )
