"""What the controller counts; ``docs/operations.md`` lists it for people."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class Metrics:
    """The controller's metrics, in a registry of their own."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.leading = Gauge("gpudra_controller_leading", "1 if this replica leads.", registry=registry)
        self.part_failures = Counter(
            "gpudra_controller_part_failures",
            "Times that a part of the controller failed unexpectedly and was started anew.",
            ["part"],
            registry=registry,
        )
        self.api_requests = Counter(
            "gpudra_api_requests", "Requests to the API server.", ["verb", "code"], registry=registry
        )
        self.watch_errors = Counter(
            "gpudra_controller_watch_errors",
            "Lists and watches of the API server that failed.",
            ["resource"],
            registry=registry,
        )
        self.class_writes = Counter(
            "gpudra_device_class_writes", "DeviceClasses applied and deleted.", ["verb"], registry=registry
        )
        self.class_errors = Counter(
            "gpudra_device_class_errors", "Writes of DeviceClasses that failed.", registry=registry
        )
        self.classes = Gauge(
            "gpudra_device_classes",
            "DeviceClasses that there should be.",
            registry=registry,
        )
        self.unbacked_classes = Gauge(
            "gpudra_device_classes_unbacked",
            "DeviceClasses of this controller that nothing backs any more and that are kept for now.",
            registry=registry,
        )
        self.extended_resources_supported = Gauge(
            "gpudra_extended_resources_supported",
            "Whether the API server stores the extended resource of a DeviceClass; 1 or 0.",
            registry=registry,
        )
        self.partition_requests = Gauge(
            "gpudra_partition_requests", "PartitionRequests that there are.", registry=registry
        )
        self.partition_writes = Counter(
            "gpudra_partition_writes",
            "Writes for partition requests: apply and delete (NodePartitions), status, label (of a node).",
            ["kind"],
            registry=registry,
        )
        self.partition_errors = Counter(
            "gpudra_partition_errors",
            "Times that a node or the status of a PartitionRequest could not be kept true.",
            registry=registry,
        )
        self.evictions = Counter(
            "gpudra_partition_evictions",
            "Evictions for PartitionRequests; outcome is asked (the pod goes), or kept (something holds it).",
            ["outcome"],
            registry=registry,
        )
        self.admission_reviews = Counter(
            "gpudra_admission_reviews",
            "Reviews of written objects; outcome is allowed, refused, or error (it could not be judged).",
            ["kind", "outcome"],
            registry=registry,
        )
        self.certificate_expiry = Gauge(
            "gpudra_webhook_certificate_expiry_seconds",
            "When the served certificate of the webhook ends, in seconds since 1970.",
            registry=registry,
        )
        self.certificate_errors = Counter(
            "gpudra_webhook_certificate_errors",
            "Times that the webhook's certificates could not be read or kept true.",
            registry=registry,
        )
