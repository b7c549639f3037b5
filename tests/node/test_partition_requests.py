"""Partition requests: the real controller and the real plugin bring GPUs to fixed layouts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.api import wait_until
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
    states,
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


def hold(node: PluginNode, device: str, **more: Any) -> Any:
    """A prepared claim on a device."""
    claim = create_claim(node.api, [result(device, node.name)], **more)
    assert node.kubelet.prepare_one(claim).error == ""
    return claim


def name_of(node: PluginNode, number: int) -> str:
    return gpu_name(node.gpus.gpus()[number].pci_bus_id)


def pci_of(node: PluginNode, number: int) -> str:
    return node.gpus.gpus()[number].pci_bus_id


def test_b158_idle_gpus_are_changed_and_busy_ones_wait_for_the_claims_that_are_named(
    make_node: MakeNode, controller: Controller
) -> None:
    node = dynamic(make_node)
    node.wait_published(EVERY, 30)
    whole = hold(node, name_of(node, 0))
    part = hold(node, f"{name_of(node, 1)}-mig-1g10gb-6")
    fits = hold(node, f"{name_of(node, 2)}-mig-3g40gb-4")
    node.gpus.set_mig_mode(3)
    node.gpus.create_mig(3, "1g.10gb", 0)
    foreign = node.gpus.gpus()[3].mig_uuids
    ask(
        node.api,
        "halves",
        {"nodeSelector": only(node), "gpus": {"indexes": [0, 1, 2, 3, 4]}, "layout": {"3g.40gb": 2}},
    )
    status = wait_story(node.api, "halves", "2 of 5 GPUs on 1 nodes are as wanted; 2 wait")
    assert {states(status, node.name)[pci_of(node, number)] for number in (0, 1)} == {"Waiting"}
    assert {states(status, node.name)[pci_of(node, number)] for number in (2, 4)} == {"Applied"}
    assert states(status, node.name)[pci_of(node, 3)] == "Failed"
    for claim in (whole, part):
        assert f"default/{claim.name}" in status["summary"]
    assert fits.name not in str(status)
    assert conditions(status)["Progressing"] == ("True", "Working")
    assert conditions(status)["Applied"] == ("False", "Busy")
    assert set(of_gpu(node, 0)) == {name_of(node, 0)}
    assert set(of_gpu(node, 1)) == {f"{name_of(node, 1)}-mig-1g10gb-6", f"{name_of(node, 1)}-mig-3g40gb-0"}
    assert set(node.claims_in_store()) == {whole.uid, part.uid, fits.uid}
    assert node.gpus.gpus()[3].mig_uuids == foreign

    assert node.kubelet.unprepare_one(whole).error == ""
    assert node.kubelet.unprepare_one(part).error == ""
    status = wait_story(node.api, "halves", "4 of 5 GPUs on 1 nodes are as wanted; 1 cannot be so")
    assert "was not made by this driver" in status["summary"]
    for number in (0, 1, 2, 4):
        assert profiles(node, number) == ["3g.40gb", "3g.40gb"]
    assert node.gpus.gpus()[3].mig_uuids == foreign


@pytest.mark.parametrize(
    "layout",
    [
        {"3g.40gb": 1, "2g.20gb": 1, "1g.10gb": 2},
        {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1},
        {"2g.20gb": 1, "1g.10gb": 2, "3g.40gb": 1},
    ],
)
def test_b159_counts_in_every_order_are_placed(
    make_node: MakeNode, controller: Controller, layout: dict[str, int]
) -> None:
    node = dynamic(make_node)
    ask(node.api, "counts", {"nodeSelector": only(node), "gpus": {"count": 1}, "layout": layout})
    wait_story(node.api, "counts", "1 of 1 GPUs on 1 nodes are as wanted")
    node.wait_published(7 * 26 + 4)


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ({"3g.40gb": 2, "1g.10gb": 1}, "does not fit"),
        ({"1g.12gb": 1}, "names profile '1g.12gb'; its profiles are: 1g.10gb"),
        ("all-9g", "it has no MIG profile '9g'"),
        ("mine", "layout 'mine' is not known; allowed: all-<profile>"),
    ],
)
def test_b159_what_cannot_be_is_said_and_nothing_is_changed(
    make_node: MakeNode, controller: Controller, layout: Any, words: str
) -> None:
    node = dynamic(make_node)
    node.wait_published(EVERY, 30)
    generation = node.slices()[0]["spec"]["pool"]["generation"]
    ask(node.api, "wrong", {"nodeSelector": only(node), "layout": layout})
    status = wait_story(node.api, "wrong", "cannot be so")
    assert words in status["summary"]
    assert conditions(status)["Accepted"] == ("False", "Impossible")
    assert node.slices()[0]["spec"]["pool"]["generation"] == generation
    assert any(text.startswith("Impossible") for text in node.api.events("wrong"))


def test_b160_after_a_reboot_the_layout_is_there_before_anything_is_offered(
    make_node: MakeNode, controller: Controller
) -> None:
    node = dynamic(make_node)
    held = hold(node, f"{name_of(node, 0)}-mig-1g10gb-5")
    ask(node.api, "kept", {"nodeSelector": only(node), "layout": {"1g.10gb": 1, "3g.40gb": 1}})
    wait_story(node.api, "kept", "8 of 8 GPUs on 1 nodes are as wanted")
    published = set(node.wait_published(16))
    assert f"{name_of(node, 0)}-mig-1g10gb-5" in published
    assert node.kubelet.unprepare_one(held).error == ""
    node.stop()
    node.gpus.reboot()
    for item in node.slices():
        node.api.delete("resource.k8s.io/v1", "ResourceSlice", item["metadata"]["name"])
    seen: set[str] = set()
    node.start()

    def look() -> bool:
        published = node.published()
        seen.update(published)
        return len(published) == 16

    wait_until(look, "the layout to be published again", 15, interval=0.01)
    assert seen == published


def test_of_two_requests_the_higher_priority_holds_then_the_older_and_the_loser_says_who_won(
    make_node: MakeNode, controller: Controller
) -> None:
    node = dynamic(make_node)
    chosen = {"nodeSelector": only(node), "gpus": {"indexes": [0]}}
    ask(node.api, "older", {**chosen, "layout": {"1g.10gb": 7}})
    wait_story(node.api, "older", "1 of 1 GPUs")
    ask(node.api, "younger", {**chosen, "layout": {"2g.20gb": 3}})
    status = wait_story(node.api, "younger", "PartitionRequest older holds for it")
    assert conditions(status)["Accepted"] == ("False", "Outranked")
    ask(node.api, "higher", {**chosen, "layout": {"3g.40gb": 2}, "priority": 5})
    wait_story(node.api, "higher", "1 of 1 GPUs on 1 nodes are as wanted")
    wait_story(node.api, "older", "PartitionRequest higher holds for it")
    assert profiles(node, 0) == ["3g.40gb", "3g.40gb"]
    node.api.delete(*REQUEST, "higher")
    wait_story(node.api, "older", "1 of 1 GPUs on 1 nodes are as wanted")
    assert profiles(node, 0) == ["1g.10gb"] * 7


def test_shares_of_a_layout_and_of_whole_gpus(make_node: MakeNode, controller: Controller) -> None:
    node = dynamic(make_node)
    label = only(node)
    ask(
        node.api,
        "parts",
        {"nodeSelector": label, "gpus": {"indexes": [0]}, "layout": {"3g.40gb": 2}, "shares": 4},
    )
    ask(
        node.api,
        "wholes",
        {"nodeSelector": label, "gpus": {"indexes": [1]}, "mig": "Off", "shares": "memory"},
    )
    wait_story(node.api, "parts", "1 of 1 GPUs on 1 nodes are as wanted")
    wait_story(node.api, "wholes", "1 of 1 GPUs on 1 nodes are as wanted")
    assert [one["capacity"]["shares"]["value"] for one in of_gpu(node, 0).values()] == ["4", "4"]
    (whole,) = of_gpu(node, 1).values()
    assert whole["allowMultipleAllocations"]
    assert "requestPolicy" in whole["capacity"]["memory"]


def test_a_gpu_that_the_node_excludes_stays_excluded(make_node: MakeNode, controller: Controller) -> None:
    node = make_node("hgx-h100")
    node.flags |= {"mig": "dynamic", "exclude": pci_of(node, 0)}
    node.start()
    ask(node.api, "every", {"nodeSelector": only(node), "layout": {"3g.40gb": 2}})
    status = wait_story(node.api, "every", "7 of 8 GPUs on 1 nodes are as wanted; 1 cannot be so")
    assert "the node's policy excludes the GPU" in status["summary"]
    assert of_gpu(node, 0) == {}


def test_ampere_whose_mode_is_off_says_that_it_needs_a_reset(
    make_node: MakeNode, controller: Controller
) -> None:
    node = dynamic(make_node, "dgx-a100-80")
    node.wait_published(8)
    ask(node.api, "ampere", {"nodeSelector": only(node), "layout": "all-1g"})
    status = wait_story(node.api, "ampere", "8 cannot be so")
    assert "turning it on needs a reset of the GPU" in status["summary"]
    node.wait_published(8)


def test_what_a_person_writes_into_a_node_partition_is_undone(
    make_node: MakeNode, controller: Controller
) -> None:
    node = dynamic(make_node)
    ask(node.api, "kept", {"nodeSelector": only(node), "gpus": {"indexes": [0]}, "layout": {"3g.40gb": 2}})
    wait_story(node.api, "kept", "1 of 1 GPUs on 1 nodes are as wanted")
    wanted = node.api.get(*NODE_PARTITION, node.name)["spec"]
    specs: list[dict[str, Any]] = [
        {"gpus": []},
        {"gpus": [{**wanted["gpus"][0], "layout": {"1g.10gb": 7}}]},
        {"gpus": [{"uuid": "GPU-nowhere", "source": "me", "shares": -3}]},
    ]
    for spec in specs:
        node.api.patch(*NODE_PARTITION, node.name, {"spec": spec})
        wait_until(
            lambda: node.api.get(*NODE_PARTITION, node.name)["spec"] == wanted, "the controller's word", 10
        )
    node.api.delete(*NODE_PARTITION, node.name)
    wait_until(lambda: node.api.find(*NODE_PARTITION, node.name), "the NodePartition again", 10)
    wait_story(node.api, "kept", "1 of 1 GPUs on 1 nodes are as wanted")
    wait_until(lambda: profiles(node, 0) == ["3g.40gb", "3g.40gb"], "the layout", 10)


def test_b158_the_label_of_mig_manager_is_honoured_and_answered(
    make_node: MakeNode, controller: Controller
) -> None:
    node = dynamic(make_node)
    node.wait_published(EVERY, 30)
    name = "nvidia.com/mig.config"

    def label(value: str | None) -> None:
        node.api.patch("v1", "Node", node.name, {"metadata": {"labels": {name: value}}})

    def state() -> str | None:
        found = node.api.get("v1", "Node", node.name)["metadata"].get("labels", {}).get(f"{name}.state")
        return None if found is None else str(found)

    label("all-balanced")
    wait_until(lambda: state() == "success", f"success, it is {state()}", 15)
    assert profiles(node, 7) == ["1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"]
    label("all-7h")
    wait_until(lambda: state() == "failed", f"failed, it is {state()}", 15)
    node.wait_published(EVERY)
    held = hold(node, name_of(node, 0))
    label("all-1g.10gb")
    wait_until(lambda: state() == "pending", f"pending, it is {state()}", 15)
    ask(node.api, "first", {"nodeSelector": only(node), "gpus": {"indexes": [0]}, "layout": "whole"})
    wait_until(lambda: state() == "success", f"success, it is {state()}", 15)
    assert profiles(node, 1) == ["1g.10gb"] * 7
    assert profiles(node, 0) == [""]
    assert node.kubelet.unprepare_one(held).error == ""
    label(None)
    wait_until(lambda: state() is None, "no answer any more", 15)
    node.wait_published(7 * 26 + 1)
