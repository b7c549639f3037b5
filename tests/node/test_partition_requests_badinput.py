"""Partition requests: wrong ones, many at once, a controller that dies, a cluster without the kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.api import ApiError, wait_until
from tests.cluster.components import REPOSITORY
from tests.cluster.controlplane import ControlPlane
from tests.harness.controller import CLASS, Controller, running_controller
from tests.harness.partitionrequests import REQUEST, ask, conditions, defined, wait_story
from tests.harness.plugin import PluginNode
from tests.node.conftest import MakeNode

LAYOUT = {"layout": {"3g.40gb": 2}}
MANY = 500
EXAMPLES = sorted((REPOSITORY / "examples" / "partitions").glob("*.yaml"))


@pytest.fixture
def kinds(control_plane: ControlPlane) -> Iterator[None]:
    with defined(control_plane.api):
        yield


@pytest.fixture
def controller(control_plane: ControlPlane) -> Iterator[Controller]:
    with running_controller(control_plane) as started:
        yield started


@pytest.fixture
def node(make_node: MakeNode) -> PluginNode:
    made = make_node("hgx-h100")
    made.flags["mig"] = "dynamic"
    made.start()
    made.api.patch("v1", "Node", made.name, {"metadata": {"labels": {"gpudra.test/node": made.name}}})
    return made


def selecting(node: PluginNode) -> dict[str, Any]:
    return {"nodeSelector": {"gpudra.test/node": node.name}}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({**LAYOUT, "shares": -1}, ["spec.shares", "from 2 to 256"]),
        ({**LAYOUT, "shares": "all"}, ["spec.shares", "memory or unlimited"]),
        ({**LAYOUT, "mig": "dynamic"}, ["spec.mig", '"Dynamic", "Static", "Off"']),
        ({**LAYOUT, "whenBusy": "Kill"}, ["spec.whenBusy", '"Wait", "Evict"']),
        ({**LAYOUT, "gracePeriod": "10s"}, ["gracePeriod is for pods that are evicted"]),
        ({**LAYOUT, "whenBusy": "Evict", "gracePeriod": "soon"}, ["spec.gracePeriod"]),
        ({**LAYOUT, "gpus": {"count": 0}}, ["spec.gpus.count"]),
        ({**LAYOUT, "gpus": {"pciBusIDs": ["65"]}}, ["spec.gpus.pciBusIDs[0]"]),
        ({**LAYOUT, "gpus": {"uuids": ["MIG-1"]}}, ["spec.gpus.uuids[0]"]),
        ({**LAYOUT, "gpus": {"indexes": [-1]}}, ["spec.gpus.indexes[0]"]),
        ({**LAYOUT, "priority": 2_000_000_000}, ["spec.priority"]),
    ],
)
def test_the_api_server_refuses_what_the_schema_forbids(
    kinds: None, control_plane: ControlPlane, spec: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ApiError) as raised:
        ask(control_plane.api, "wrong", spec)
    for word in words:
        assert word in str(raised.value)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"priority": 1}, "spec wants nothing: give layout, mig or shares"),
        ({"layout": 7}, "spec.layout"),
        ({"layout": {"1g.10gb": 0}}, "spec.layout"),
        ({**LAYOUT, "mig": "Off"}, "leave one of them out"),
        ({**LAYOUT, "gpus": {"product": "H100("}}, "no regular expression"),
    ],
)
def test_what_the_schema_cannot_see_is_told_in_the_status(
    kinds: None, controller: Controller, control_plane: ControlPlane, spec: dict[str, Any], words: str
) -> None:
    controller.start()
    ask(control_plane.api, "wrong", spec)
    status = wait_story(control_plane.api, "wrong", words)
    assert conditions(status)["Accepted"] == ("False", "Invalid")


def test_a_selector_that_matches_nothing_says_so_and_a_node_that_comes_later_is_served(
    kinds: None, controller: Controller, node: PluginNode
) -> None:
    controller.start()
    ask(node.api, "later", {**LAYOUT, "nodeSelector": {"pool": node.name}})
    status = wait_story(node.api, "later", "no node with GPUs of this driver matches spec.nodeSelector")
    assert conditions(status)["Accepted"] == ("False", "NoNode")
    node.api.patch("v1", "Node", node.name, {"metadata": {"labels": {"pool": node.name}}})
    wait_story(node.api, "later", "8 of 8 GPUs on 1 nodes are as wanted")


def test_many_requests_at_once_are_all_told(kinds: None, controller: Controller, node: PluginNode) -> None:
    replica = controller.start()
    for number in range(MANY):
        layout = {"3g.40gb": 2} if number == MANY - 1 else {"1g.10gb": 1 + number % 7}
        ask(node.api, f"r{number:03}", {**selecting(node), "layout": layout, "priority": number})
    winner = f"r{MANY - 1:03}"
    wait_story(node.api, winner, "8 of 8 GPUs on 1 nodes are as wanted", 60)

    def told() -> bool:
        items = node.api.list(*REQUEST)
        losers = [item for item in items if item["metadata"]["name"] != winner]
        text = f"PartitionRequest {winner} holds for it"
        return all(text in item.get("status", {}).get("summary", "") for item in losers)

    wait_until(told, "each loser to be told who won", 60)
    node.wait_published(16)
    writes = replica.probes.metric("gpudra_partition_writes_total", kind="status")
    assert writes >= MANY


def test_a_controller_that_is_killed_loses_nothing(
    kinds: None, controller: Controller, node: PluginNode
) -> None:
    first = controller.start()
    ask(node.api, "kept", {**selecting(node), **LAYOUT})
    wait_story(node.api, "kept", "8 of 8 GPUs")
    first.process.kill()
    node.restart()
    node.wait_published(16)
    ask(node.api, "more", {**selecting(node), "gpus": {"indexes": [0]}, "layout": "all-1g", "priority": 1})
    node.api.delete(*REQUEST, "kept")
    controller.start()
    wait_story(node.api, "more", "1 of 1 GPUs on 1 nodes are as wanted", 60)
    node.wait_published(7 * 26 + 7)


def test_without_the_kind_the_controller_says_so_and_keeps_the_classes(
    controller: Controller, control_plane: ControlPlane
) -> None:
    replica = controller.start()
    wait_until(
        lambda: "partitionrequests.gpudra.io/v1alpha1 cannot be watched" in replica.log(), "a word", 20
    )
    control_plane.api.wait_for(*CLASS, "gpu.nvidia.com", lambda item: True, "there", timeout=15)
    control_plane.api.delete(*CLASS, "gpu.nvidia.com")
    control_plane.api.wait_for(*CLASS, "gpu.nvidia.com", lambda item: True, "there again", timeout=15)


@pytest.mark.parametrize("example", EXAMPLES, ids=[file.stem for file in EXAMPLES])
def test_each_example_is_applied(kinds: None, controller: Controller, node: PluginNode, example: Any) -> None:
    controller.start()
    (item,) = node.api.apply(example)
    node.api.patch("v1", "Node", node.name, {"metadata": {"labels": item["spec"]["nodeSelector"]}})
    count = item["spec"].get("gpus", {}).get("count", 8)
    name = item["metadata"]["name"]
    wait_story(node.api, name, f"{count} of {count} GPUs on 1 nodes are as wanted")
