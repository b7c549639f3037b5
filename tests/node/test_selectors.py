"""Selectors, as the real scheduler evaluates them on every device of a node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.api import wait_until
from tests.cluster.controlplane import ControlPlane
from tests.cluster.fixtures import require
from tests.cluster.requirements import control_plane_missing
from tests.harness.plugin import plugin_node

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NOT_SUPPORTED, UNKNOWN = 3, 999
BROKEN = 'device.attributes["gpu.nvidia.com"].noSuchAttribute == "x"'


def expressions(value: Any) -> Iterator[str]:
    """Every CEL expression in a manifest."""
    if isinstance(value, dict):
        if "expression" in value:
            yield value["expression"]
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from expressions(item)


def shipped() -> list[str]:
    """The selectors of all examples and classes."""
    found = [
        expression
        for path in sorted(EXAMPLES.rglob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
        for expression in expressions(document)
    ]
    return list(dict.fromkeys(found))


@pytest.fixture(scope="module")
def scheduling() -> Iterator[ControlPlane]:
    require(control_plane_missing())
    with ControlPlane(scheduler=True) as started:
        yield started


def verdict(plane: ControlPlane, number: int, expression: str) -> str:
    """What the scheduler says of a pod that wants every device for which the expression is true."""
    name = f"selects-{number}"
    request = {
        "deviceClassName": "everything",
        "allocationMode": "All",
        "selectors": [{"cel": {"expression": expression}}],
    }
    spec = {"devices": {"requests": [{"name": "all", "exactly": request}]}}
    plane.api.create(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name},
            "spec": spec,
        }
    )
    container = {"name": "main", "image": "none", "resources": {"claims": [{"name": "all"}]}}
    plane.api.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "containers": [container],
                "resourceClaims": [{"name": "all", "resourceClaimName": name}],
            },
        }
    )

    def said() -> str:
        pod = plane.api.get("v1", "Pod", name)
        conditions = {one["type"]: one for one in pod.get("status", {}).get("conditions") or []}
        condition = conditions.get("PodScheduled")
        return f"{condition['status']}: {condition.get('message', '')}" if condition else ""

    answer = wait_until(said, f"a verdict on {expression}", 20)
    plane.api.delete("v1", "Pod", name, grace_seconds=0)
    plane.api.patch("resource.k8s.io/v1", "ResourceClaim", name, {"metadata": {"finalizers": None}})
    plane.api.delete("resource.k8s.io/v1", "ResourceClaim", name)
    return answer


def test_b021_every_shipped_selector_is_true_or_false_on_every_device(scheduling: ControlPlane) -> None:
    with plugin_node(scheduling, "hgx-h100", mig={0: ["1g.10gb", "1c.3g.40gb"]}) as node:
        scheduling.api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}})
        scheduling.api.create(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "DeviceClass",
                "metadata": {"name": "everything"},
                "spec": {},
            }
        )
        foreign = {
            "driver": "nic.example.com",
            "nodeName": node.name,
            "pool": {"name": node.name, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "nic-0", "attributes": {"speed": {"int": 100}}}],
        }
        scheduling.api.create(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {"name": "nic"},
                "spec": foreign,
            }
        )
        for symbol in ("nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetNvLinkState"):
            node.gpus.set_return(symbol, NOT_SUPPORTED if "Memory" in symbol else UNKNOWN, gpu=1)
        node.start(mig="dynamic")
        wait_until(lambda: len(node.published()) > 7 * 26, "all devices and partitions", 20)

        assert "no such key: noSuchAttribute" in verdict(scheduling, 0, BROKEN)
        selectors = shipped()
        assert len(selectors) > 10
        for number, expression in enumerate(selectors, start=1):
            assert "CEL" not in verdict(scheduling, number, expression), expression
