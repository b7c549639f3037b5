"""The Helm chart, rendered by the real template engine without a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from helm_python import Chart

from tests.cluster.api import Object, documents
from tests.cluster.components import REPOSITORY

CHART = REPOSITORY / "charts" / "gpu-dra-driver"
RELEASE = "gpu-dra-driver"


def rendered(
    template: str, namespace: str, values: Mapping[str, Any] | None = None, *, release: str = RELEASE
) -> Sequence[Object]:
    """The objects that one template of the chart, such as `webhook.yaml`, makes."""
    texts = Chart.load(CHART).render(dict(values or {}), name=release, namespace=namespace)
    return list(documents(texts[f"{CHART.name}/templates/{template}"]))
