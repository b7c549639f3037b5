"""Partitions as the running plugin publishes them: with their counters, or not at all."""

from __future__ import annotations

from typing import Any

from kube.resources import Object
from tests.cluster.api import wait_until
from tests.cluster.controlplane import ControlPlane
from tests.cluster.fixtures import require
from tests.cluster.requirements import control_plane_missing
from tests.harness.plugin import PluginNode, plugin_node
from tests.node.conftest import MakeNode
from tests.unit.driver.slicevalidator import violations

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
WITHOUT_COUNTERS = ["--feature-gates=DRAPartitionableDevices=false"]


def slices(node: PluginNode) -> list[Object]:
    answer = node.api.request("GET", f"{SLICES}?fieldSelector=spec.nodeName%3D{node.name}")
    return sorted(answer["items"], key=lambda item: str(item["metadata"]["name"]))


def names(specs: list[Object]) -> list[str]:
    return [device["name"] for spec in specs for device in spec.get("devices", [])]


def specs_when(node: PluginNode, count: int) -> list[Object]:
    """The specs of a pool that is complete and has this many devices."""

    def complete() -> list[Object]:
        specs: list[Object] = [item["spec"] for item in slices(node)]
        pools = {(spec["pool"]["generation"], spec["pool"]["resourceSliceCount"]) for spec in specs}
        whole = len(pools) == 1 and next(iter(pools))[1] == len(specs)
        return specs if whole and len(names(specs)) == count else []

    return wait_until(complete, f"{count} devices", timeout=20)


def memory(specs: list[Object], name: str) -> Any:
    return next(
        device["capacity"]["memory"]["value"]
        for spec in specs
        for device in spec.get("devices", [])
        if device["name"] == name
    )


def test_partitions_stand_with_their_counters_and_are_not_written_again(make_node: MakeNode) -> None:
    node = make_node("hgx-h100")
    node.start(mig="dynamic")
    specs = specs_when(node, 8 * (25 + 1))
    assert violations(specs) == []
    assert [len(spec.get("sharedCounters", [])) for spec in specs] == [8, 0, 0, 0, 0]
    assert "devices" not in specs[0]
    of_first = [name for name in names(specs) if name.startswith("gpu-0000-1b-00-0")]
    assert of_first[0] == "gpu-0000-1b-00-0-mig-1g10gb-6"
    assert of_first[-1] == "gpu-0000-1b-00-0"
    assert memory(specs, "gpu-0000-1b-00-0") == "81559Mi"
    before = [item["metadata"]["resourceVersion"] for item in slices(node)]
    node.gpus.set_mig_mode(3)
    node.gpus.create_mig(3, "3g.40gb", 4)
    # Every partition that overlaps it and the whole GPU go, and the instance comes.
    after = specs_when(node, 7 * 26 + 25 - 11 + 1)
    assert violations(after) == []
    assert before != [item["metadata"]["resourceVersion"] for item in slices(node)]
    assert node.stop() == 0


def test_b030_b038_without_counters_there_are_no_partitions() -> None:
    require(control_plane_missing())
    with (
        ControlPlane(api_server_arguments=WITHOUT_COUNTERS) as own,
        plugin_node(own, "hgx-h100", mig={1: ["1g.10gb", "3g.40gb"]}) as node,
    ):
        node.start(mig="dynamic")
        specs = specs_when(node, 7 + 2)
        assert all("consumesCounters" not in device for device in specs[0]["devices"])
        assert memory(specs, "gpu-0000-1b-00-0") == "81559Mi"
        events = node.api.request("GET", "/api/v1/namespaces/default/events")["items"]
        withheld = [event for event in events if event["reason"] == "PartitionsWithheld"]
        assert len(withheld) == 1
        assert "DRAPartitionableDevices" in withheld[0]["message"]
        assert node.stop() == 0
        before = slices(node)
        node.start(mig="dynamic")
        specs_when(node, 7 + 2)
        assert slices(node) == before
