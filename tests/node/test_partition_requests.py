"""Partition requests: the real controller and the real plugin bring GPUs to fixed layouts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.controlplane import ControlPlane
from tests.harness.claims import create_claim, result
from tests.harness.controller import Controller, running_controller
from tests.harness.devices import gpu_name
from tests.harness.partitionrequests import (
    NODE_PARTITION,
    REQUEST,
    ask,
    conditions,
    defined,
    wait_story,
)
from tests.harness.plugin import PluginNode
from tests.node.conftest import MakeNode

EVERY = 8 * (25 + 1)
"""Devices of eight H100 with all their placements."""


@pytest.fixture(scope="module", autouse=True)
def kinds(control_plane: ControlPlane) -> Iterator[None]:
    with defined(control_plane.api):
        yield


@pytest.fixture
def controller(control_plane: ControlPlane) -> Iterator[Controller]:
    with running_controller(control_plane) as started:
        started.start()
        yield started


@pytest.fixture(autouse=True)
def no_requests(control_plane: ControlPlane) -> Iterator[None]:
    yield
    for item in control_plane.api.list(*REQUEST):
        control_plane.api.delete(*REQUEST, item["metadata"]["name"])


def dynamic(make_node: MakeNode, machine: str = "hgx-h100") -> PluginNode:
    made = make_node(machine)
    made.flags["mig"] = "dynamic"
    made.start()
    return made


def only(node: PluginNode) -> dict[str, Any]:
    """A node selector for this node alone."""
    label = {"gpudra.test/node": node.name}
    node.api.patch("v1", "Node", node.name, {"metadata": {"labels": label}})
    return label


def of_gpu(node: PluginNode, number: int) -> dict[str, dict[str, Any]]:
    """The published devices of one GPU."""
    name = gpu_name(node.gpus.gpus()[number].pci_bus_id)
    return {key: one for key, one in node.published().items() if key == name or key.startswith(f"{name}-")}


def profiles(node: PluginNode, number: int) -> list[str]:
    return sorted(one["attributes"]["profile"]["string"] for one in of_gpu(node, number).values())


def test_a_layout_is_published_and_gone_with_its_request(make_node: MakeNode, controller: Controller) -> None:
    node = dynamic(make_node)
    node.wait_published(EVERY, 30)
    layout = {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}
    ask(node.api, "mixed", {"nodeSelector": only(node), "gpus": {"indexes": [0, 1]}, "layout": layout})
    status = wait_story(node.api, "mixed", "2 of 2 GPUs on 1 nodes are as wanted")
    assert conditions(status) == {
        "Accepted": ("True", "Resolved"),
        "Progressing": ("False", "Nothing"),
        "Applied": ("True", "AsWanted"),
    }
    node.wait_published(6 * 26 + 2 * 4)
    assert profiles(node, 0) == profiles(node, 1) == ["1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"]
    partition = node.api.get(*NODE_PARTITION, node.name)
    (owner,) = partition["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Node", node.api.get("v1", "Node", node.name)["metadata"]["uid"])

    (device, *_) = of_gpu(node, 0)
    claim = create_claim(node.api, [result(device, node.name)])
    assert node.kubelet.prepare_one(claim).error == ""
    assert node.kubelet.unprepare_one(claim).error == ""

    node.api.delete(*REQUEST, "mixed")
    node.wait_published(EVERY)
    node.api.wait_gone(*NODE_PARTITION, node.name, timeout=10)
