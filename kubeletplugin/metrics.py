"""What the plugin counts and times; ``docs/operations.md`` lists it for people."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 45)


class Metrics:
    """The plugin's metrics, in a registry of their own."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.claims = Counter(
            "gpudra_claim_operations",
            "Claims prepared and unprepared; cause is empty on success.",
            ["operation", "cause"],
            registry=registry,
        )
        self.claim_seconds = Histogram(
            "gpudra_claim_operation_seconds",
            "Duration of preparing or unpreparing one claim.",
            ["operation"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.step_seconds = Histogram(
            "gpudra_prepare_step_seconds",
            "Parts of preparing a claim: api-read, lock-wait, presence, intent, devices, cdi-write, commit.",
            ["step"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.mig_change_seconds = Histogram(
            "gpudra_mig_change_seconds",
            "Duration of changes of MIG: mode, create-gpu-instance, create-compute-instance, destroy.",
            ["change"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.nvidia_smi_seconds = Histogram(
            "gpudra_nvidia_smi_seconds",
            "Duration of runs of nvidia-smi; outcome is ok, not-supported (by the GPU) or failed.",
            ["outcome"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.in_flight = Gauge(
            "gpudra_claim_operations_in_flight",
            "Claims being prepared or unprepared now.",
            ["operation"],
            registry=registry,
        )
        self.prepared_claims = Gauge("gpudra_prepared_claims", "Claims in the store.", registry=registry)
        self.devices = Gauge("gpudra_published_devices", "Devices in the desired slices.", registry=registry)
        self.unreadable_gpus = Gauge(
            "gpudra_unreadable_gpus", "GPUs that could not be read and are not offered.", registry=registry
        )
        self.unreadable_fields = Counter(
            "gpudra_unreadable_fields",
            "Fields that could not be read, counted once for each GPU and answer.",
            ["field"],
            registry=registry,
        )
        self.mig_without_instances = Gauge(
            "gpudra_mig_gpus_without_instances",
            "GPUs in MIG mode that have no instance and so offer nothing.",
            registry=registry,
        )
        self.mig_modes_left = Gauge(
            "gpudra_mig_modes_left",
            "GPUs whose MIG mode the driver turned on, needs no more, and cannot turn off now.",
            registry=registry,
        )
        self.policy_valid = Gauge(
            "gpudra_node_policy_valid",
            "1 if what the file of the node policy says holds, 0 if what it said before does: it is wrong.",
            registry=registry,
        )
        self.gpu_mig = Gauge(
            "gpudra_gpu_mig",
            "1 for the way that each GPU goes: what of it is offered.",
            ["gpu", "way"],
            registry=registry,
        )
        self.counters_supported = Gauge(
            "gpudra_counters_supported",
            "Whether the API server stores shared counters, without which no partition is offered; 1 or 0.",
            registry=registry,
        )
        self.shared_devices_supported = Gauge(
            "gpudra_shared_devices_supported",
            "Whether the API server stores devices that claims share, without which none is offered; 1 or 0.",
            registry=registry,
        )
        self.taints_supported = Gauge(
            "gpudra_device_taints_supported",
            "Whether the API server stores taints of devices; 1 or 0, asked when a partition request evicts.",
            registry=registry,
        )
        self.requested_gpus = Gauge(
            "gpudra_requested_gpus",
            "GPUs of which a partition request wants something, by how far they are.",
            ["state"],
            registry=registry,
        )
        self.partition_report_errors = Counter(
            "gpudra_partition_report_errors",
            "Times that the status of the node's NodePartition could not be written.",
            registry=registry,
        )
        self.waiting_for_driver = Gauge(
            "gpudra_gpus_waiting_for_driver",
            "NVIDIA PCI functions that NVML does not list.",
            registry=registry,
        )
        self.discovery_errors = Counter(
            "gpudra_discovery_errors", "Readings of the hardware that failed.", registry=registry
        )
        self.discovery_seconds = Histogram(
            "gpudra_discovery_seconds",
            "Duration of reading the hardware.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.publish_errors = Counter(
            "gpudra_publish_errors", "Publishing attempts that failed.", registry=registry
        )
        self.slice_writes = Counter(
            "gpudra_slice_writes", "Writes of ResourceSlices.", ["verb"], registry=registry
        )
        self.pool_generation = Gauge(
            "gpudra_pool_generation", "Generation of the pool as published last.", registry=registry
        )
        self.dropped_fields = Counter(
            "gpudra_dropped_slice_fields",
            "Fields of our slices that the API server did not store.",
            ["field"],
            registry=registry,
        )
        self.api_requests = Counter(
            "gpudra_api_requests", "Requests to the API server.", ["verb", "code"], registry=registry
        )
        self.status_errors = Counter(
            "gpudra_claim_status_errors", "Writes of claim.status.devices that failed.", registry=registry
        )
        self.claims_cleaned = Counter(
            "gpudra_claims_cleaned", "Claims unprepared without the kubelet.", registry=registry
        )
        self.store_rebuilt = Counter(
            "gpudra_store_rebuilt", "Times a damaged store was set aside and rebuilt.", registry=registry
        )
