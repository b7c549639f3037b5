"""kill -9 again and again: in the work that mends what the last kill left, until there is nothing to mend."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.harness.claims import Claim, create_claim, delete_claim, result
from tests.harness.plugin import PluginNode
from tests.harness.steppednode import Stepped, modes_noted, wait_holds
from tests.node.conftest import MakeNode

GPUS = [{"model": "h100-sxm5-80gb", "pci": f"0000:{bus}:00.0"} for bus in (11, 12)]
FIRST, SECOND = "gpu-0000-11-00-0", "gpu-0000-12-00-0"
BEGIN = ("before INSERT OR REPLACE INTO", "after COMMIT")
MODE = ("before set_mig_mode", "after set_mig_mode")
MAKE = (
    "before create_gpu_instance",
    "after create_gpu_instance",
    "before create_compute_instance",
    "after create_compute_instance",
)
WRITE = ("before rename of the CDI spec", "after rename of the CDI spec")
DESTROY = (
    "before destroy_compute_instance",
    "after destroy_compute_instance",
    "before destroy_gpu_instance",
    "after destroy_gpu_instance",
)
FORGET = (
    "before removal of the CDI spec",
    "after removal of the CDI spec",
    "before DELETE FROM claims WHERE",
    "after DELETE FROM claims WHERE",
)


@pytest.fixture
def stepped(make_node: MakeNode) -> Stepped:
    stepped = Stepped(make_node("hgx-h100", gpus=GPUS))
    stepped.node.flags["mig"] = "dynamic"
    stepped.node.start()
    stepped.node.wait_published(2 * 26)
    return stepped


def new_claim(node: PluginNode, *devices: str) -> Claim:
    results = [result(name, node.name, f"r{number}") for number, name in enumerate(devices)]
    return create_claim(node.api, results)


def killed_at_each(stepped: Stepped, names: tuple[str, ...], call: Callable[[], object]) -> None:
    """The call is repeated by a kubelet, and ends at one step after the other."""
    for name in names:
        stepped.dies_at(name, call)
        stepped.start()


def modes(node: PluginNode) -> list[bool]:
    return [gpu.mig_mode for gpu in node.gpus.gpus()]


def test_b067_killed_in_the_clean_up_after_a_kill_in_prepare(stepped: Stepped) -> None:
    node = stepped.node
    claim = new_claim(node, f"{FIRST}-mig-1g10gb-2")
    stepped.dies_at("after create_compute_instance", lambda: node.kubelet.prepare_one(claim))
    delete_claim(node.api, claim)
    for name in ("before COMMIT", *DESTROY, *FORGET):
        stepped.dies_starting(name)
    stepped.start()
    wait_holds(node, [], "at the end")
    assert (modes(node), modes_noted(node)) == ([True, False], [0])


def test_b067_killed_in_the_clean_up_after_a_kill_in_unprepare(stepped: Stepped) -> None:
    """Also where it is a plugin that makes no partitions any more: it turns MIG mode off."""
    node = stepped.node
    claim = new_claim(node, f"{FIRST}-mig-1g10gb-2")
    assert node.kubelet.prepare_one(claim).error == ""
    stepped.dies_at("before destroy_compute_instance", lambda: node.kubelet.unprepare_one(claim))
    delete_claim(node.api, claim)
    node.flags["mig"] = "static"
    for name in (*DESTROY, *FORGET, *MODE, "before DELETE FROM meta WHERE", "after DELETE FROM meta WHERE"):
        stepped.dies_starting(name)
    stepped.start()
    node.wait_published(2)
    wait_holds(node, [], "at the end")
    assert (modes(node), modes_noted(node)) == ([False, False], [])


def test_b067_killed_in_each_retry_of_a_claim_for_a_gpu_and_a_partition(stepped: Stepped) -> None:
    node = stepped.node
    earlier = new_claim(node, f"{FIRST}-mig-1g10gb-0")
    assert node.kubelet.prepare_one(earlier).error == ""
    assert node.kubelet.unprepare_one(earlier).error == ""
    assert modes(node) == [True, False]

    devices = [FIRST, f"{SECOND}-mig-3g40gb-4"]
    claim = new_claim(node, *devices)
    killed_at_each(stepped, (*BEGIN, *MODE, *MAKE, *WRITE), lambda: node.kubelet.prepare_one(claim))
    answer = node.kubelet.prepare_one(claim)
    assert (answer.error, answer.names) == ("", devices)
    wait_holds(node, [claim], "prepared", instances=1)
    assert (modes(node), modes_noted(node)) == ([False, True], [1])

    killed_at_each(stepped, (*DESTROY, *FORGET), lambda: node.kubelet.unprepare_one(claim))
    assert node.kubelet.unprepare_one(claim).error == ""
    wait_holds(node, [], "unprepared")
    assert (modes(node), modes_noted(node)) == ([False, True], [1])


def test_b067_killed_in_each_retry_of_two_claims_on_one_gpu_beside_a_third(stepped: Stepped) -> None:
    node = stepped.node
    first, second, third = (
        new_claim(node, f"{FIRST}-mig-{part}") for part in ("3g40gb-4", "2g20gb-0", "1g10gb-3")
    )
    answer = node.kubelet.prepare_one(first)
    assert answer.error == ""
    uuids = node.gpus.gpus()[0].mig_uuids
    killed_at_each(stepped, (*BEGIN, *MAKE, *WRITE), lambda: node.kubelet.prepare(first, second, third))
    answers = node.kubelet.prepare(first, second, third)
    assert {one.error for one in answers.values()} == {""}
    assert answers[first.uid] == answer
    wait_holds(node, [first, second, third], "prepared", instances=3)

    killed_at_each(stepped, (*DESTROY, *FORGET), lambda: node.kubelet.unprepare(second, third))
    assert {one.error for one in node.kubelet.unprepare(second, third).values()} == {""}
    wait_holds(node, [first], "unprepared", instances=1)
    assert node.gpus.gpus()[0].mig_uuids == uuids
    assert node.kubelet.unprepare_one(first).error == ""
    wait_holds(node, [], "at the end")
    assert (modes(node), modes_noted(node)) == ([True, False], [0])
