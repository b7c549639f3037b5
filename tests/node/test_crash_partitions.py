"""kill -9 at every step of making and destroying partitions, and what the next process makes of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.harness.claims import Claim, create_claim, delete_claim, result
from tests.harness.devices import gpu_name
from tests.harness.plugin import PluginNode
from tests.harness.steppednode import Stepped, partitioning, wait_holds

MADE = {
    "before set_mig_mode",
    "after set_mig_mode",
    "before create_gpu_instance",
    "after create_gpu_instance",
    "before create_compute_instance",
    "after create_compute_instance",
    "before COMMIT",
    "after COMMIT",
}
UNMADE = {
    "before destroy_compute_instance",
    "after destroy_compute_instance",
    "before destroy_gpu_instance",
    "after destroy_gpu_instance",
    "before COMMIT",
    "after COMMIT",
}


@pytest.fixture
def stepped(make_node: Callable[..., PluginNode]) -> Stepped:
    return partitioning(make_node("hgx-h100"), "mig_mode", "_instance", "COMMIT")


def new_claim(node: PluginNode) -> Claim:
    first = gpu_name(node.gpus.gpus()[0].pci_bus_id)
    return create_claim(node.api, [result(f"{first}-mig-1g10gb-2", node.name)])


def test_b084_killed_between_gpu_instance_and_compute_instance(stepped: Stepped) -> None:
    node = stepped.node
    claim = new_claim(node)
    stepped.dies_at("after create_gpu_instance", lambda: node.kubelet.prepare_one(claim))
    (left,) = node.gpus.gpus()[0].gpu_instances
    assert left.compute_instances == ()
    stepped.start()
    assert node.kubelet.prepare_one(claim).error == ""
    wait_holds(node, [claim], "after a retry", instances=1)
    assert node.kubelet.unprepare_one(claim).error == ""

    claim = new_claim(node)
    stepped.dies_at("after create_gpu_instance", lambda: node.kubelet.prepare_one(claim))
    delete_claim(node.api, claim)
    stepped.start()
    wait_holds(node, [], "after a start")
    claim = new_claim(node)
    assert node.kubelet.prepare_one(claim).error == ""
    assert node.kubelet.unprepare_one(claim).error == ""
    wait_holds(node, [], "at the end")


def test_b067_killed_while_a_partition_is_made(stepped: Stepped) -> None:
    node = stepped.node
    claim = new_claim(node)
    seen: set[str] = set()

    def call() -> None:
        assert node.kubelet.prepare_one(claim).error == ""

    def recover(step: str, *, asked_again: bool) -> None:
        nonlocal claim
        if asked_again:
            answer = node.kubelet.prepare_one(claim)
            assert (answer.error, len(answer.names)) == ("", 1), step
            wait_holds(node, [claim], step, instances=1)
            assert node.kubelet.unprepare_one(claim).error == "", step
        else:
            delete_claim(node.api, claim)
        seen.add(step)
        wait_holds(node, [], step)
        # With MIG mode off again, that is a step too.
        node.gpus.set_mig_mode(0, False)
        claim = new_claim(node)

    for number, step in enumerate(stepped.crashes(call)):
        recover(step, asked_again=number % 2 == 1)
    recover("at the end", asked_again=True)
    for step in stepped.crashes_at(MADE - seen, call):
        recover(step, asked_again=True)
    assert seen == MADE | {"at the end"}


def test_b067_killed_while_a_partition_is_destroyed(stepped: Stepped) -> None:
    node = stepped.node
    seen: set[str] = set()

    def prepared(when: str) -> Claim:
        made = new_claim(node)
        assert node.kubelet.prepare_one(made).error == "", when
        return made

    def call() -> None:
        assert node.kubelet.unprepare_one(claim).error == ""

    def recover(step: str) -> Claim:
        seen.add(step)
        assert node.kubelet.unprepare_one(claim).error == "", step
        wait_holds(node, [], step)
        return prepared(step)

    claim = prepared("at the start")
    for step in stepped.crashes(call):
        claim = recover(step)
    claim = prepared("after all steps")
    for step in stepped.crashes_at(UNMADE - seen, call):
        claim = recover(step)
    assert seen == UNMADE
    call()
    wait_holds(node, [], "at the end")
