"""What a running plugin tells over HTTP: metrics, readiness, liveness."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from tests.cluster.api import wait_until
from tests.harness.plugin import get


@dataclass(frozen=True)
class Probes:
    """The plugin that serves ``address`` (HOST:PORT, its ``--http-address``)."""

    address: str

    def metric(self, name: str, **labels: str) -> float:
        """The value of one sample; 0 when there is none, as for a counter that never counted."""
        for family in text_string_to_metric_families(get(f"http://{self.address}/metrics")[1]):
            for sample in family.samples:
                if sample.name == name and sample.labels == labels:
                    return float(sample.value)
        return 0.0

    def ready(self) -> tuple[int, str]:
        """Status and text of ``/readyz``."""
        return get(f"http://{self.address}/readyz")

    def alive(self) -> tuple[int, str]:
        """Status and text of ``/healthz``."""
        return get(f"http://{self.address}/healthz")

    def wait_ready(self, timeout: float = 15.0) -> None:
        wait_until(lambda: self.ready()[0] == 200, f"ready; it says {self.ready()[1]}", timeout)
