"""PartitionRequests on a real API server: the chart's definitions, requests, and what is told of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.cluster.api import Api, ApiError, Object, documents, wait_until
from tests.harness.chart import CHART

REQUEST = ("gpudra.io/v1alpha1", "PartitionRequest")
NODE_PARTITION = ("gpudra.io/v1alpha1", "NodePartition")
_DEFINITION = ("apiextensions.k8s.io/v1", "CustomResourceDefinition")
SECONDS = 20.0


def definitions() -> list[Object]:
    """The chart's CustomResourceDefinitions."""
    files = sorted((CHART / "crds").iterdir())
    return [item for file in files for item in documents(file.read_text())]


@contextmanager
def defined(api: Api) -> Iterator[None]:
    """The kinds are there, and gone with all their objects afterwards."""
    for definition in definitions():
        if api.find(*_DEFINITION, definition["metadata"]["name"]) is None:
            api.create(definition)
    wait_until(lambda: _is_served(api), "the kinds of gpudra.io", SECONDS)
    try:
        yield
    finally:
        for definition in definitions():
            name = definition["metadata"]["name"]
            api.delete(*_DEFINITION, name)
            api.wait_gone(*_DEFINITION, name, timeout=SECONDS)


def _is_served(api: Api) -> bool:
    try:
        for kind in (REQUEST, NODE_PARTITION):
            api.list(*kind)
    except (ApiError, LookupError):
        return False
    return True


def ask(api: Api, name: str, spec: Mapping[str, Any]) -> Object:
    """Create a PartitionRequest."""
    return api.create(
        {"apiVersion": REQUEST[0], "kind": REQUEST[1], "metadata": {"name": name}, "spec": dict(spec)}
    )


def wait_story(api: Api, name: str, text: str, timeout: float = SECONDS) -> Object:
    """Wait until the summary of a request has a text; returns its status."""

    def look() -> Object | None:
        status = api.get(*REQUEST, name).get("status") or {}
        return status if text in status.get("summary", "") else None

    try:
        return wait_until(look, f"{text!r} in the summary of {name}", timeout)
    except TimeoutError as error:
        raise TimeoutError(f"{error}; it is {api.get(*REQUEST, name).get('status')}") from None


def conditions(status: Object) -> dict[str, tuple[str, str]]:
    """Status and reason of each condition, by its type."""
    return {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}


def states(status: Object, node: str) -> dict[str, str]:
    """The state of each GPU of a node, by its PCI address."""
    (found,) = [one for one in status["nodes"] if one["name"] == node]
    return {gpu["pciBusID"]: gpu["state"] for gpu in found["gpus"]}
