"""What the API server counts: requests by verb and resource, from its own ``/metrics``."""

from __future__ import annotations

from collections import Counter

from prometheus_client.parser import text_string_to_metric_families

from tests.cluster.api import Api

WRITES = frozenset({"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"})

_RESOURCES = frozenset({"resourceclaims", "resourceslices", "nodes", "events"})
"""All that the plugin touches; the API server writes leases and the like for itself."""


def served(api: Api) -> Counter[tuple[str, str]]:
    """How often each (verb, resource) of those that the plugin touches was asked for so far."""
    counts: Counter[tuple[str, str]] = Counter()
    for family in text_string_to_metric_families(api.request("GET", "/metrics")):
        if family.name != "apiserver_request":
            continue
        for sample in family.samples:
            if sample.name == "apiserver_request_total" and sample.labels["resource"] in _RESOURCES:
                counts[sample.labels["verb"], sample.labels["resource"]] += int(sample.value)
    return counts
