"""kill -9 at every step of giving out and taking back a share, beside another share of the same partition."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from tests.harness.claims import Claim, create_claim, delete_claim, result
from tests.harness.devices import gpu_name
from tests.harness.plugin import PluginNode
from tests.harness.steppednode import Stepped, partitioning, wait_holds

COMMITS = {"before COMMIT", "after COMMIT"}
WRITTEN = {"before rename of the CDI spec", "after rename of the CDI spec"}
REMOVED = {"before removal of the CDI spec", "after removal of the CDI spec"}
DESTROYED = {f"{when} destroy_{kind}_instance" for when in ("before", "after") for kind in ("compute", "gpu")}


@pytest.fixture
def stepped(make_node: Callable[..., PluginNode]) -> Stepped:
    return partitioning(make_node("hgx-h100"), "_instance", "COMMIT", "CDI spec")


def new_share(node: PluginNode) -> Claim:
    first = gpu_name(node.gpus.gpus()[0].pci_bus_id)
    return create_claim(node.api, [result(f"{first}-mig-1g10gb-2", node.name, shareID=str(uuid.uuid4()))])


def mig_uuid(node: PluginNode) -> str:
    """The UUID of the only MIG device."""
    ((uuid,),) = [
        [one.uuid for one in instance.compute_instances]
        for gpu in node.gpus.gpus()
        for instance in gpu.gpu_instances
    ]
    return uuid


def test_b067_killed_while_a_second_share_is_given_out(stepped: Stepped) -> None:
    node = stepped.node
    first, second = new_share(node), new_share(node)
    assert node.kubelet.prepare_one(first).error == ""
    made = mig_uuid(node)
    seen: list[str] = []

    def call() -> None:
        assert node.kubelet.prepare_one(second).error == ""

    for step in stepped.crashes(call):
        if len(seen) % 2:
            assert node.kubelet.prepare_one(second).error == "", step
            wait_holds(node, [first, second], step, instances=1)
            assert node.kubelet.unprepare_one(second).error == "", step
        else:
            delete_claim(node.api, second)
        seen.append(step)
        wait_holds(node, [first], step, instances=1)
        assert mig_uuid(node) == made, step
        second = new_share(node)
    assert set(seen) == COMMITS | WRITTEN
    assert node.kubelet.unprepare_one(second).error == ""
    assert node.kubelet.unprepare_one(first).error == ""
    wait_holds(node, [], "at the end")


@pytest.mark.parametrize("is_last", [False, True])
def test_b067_killed_while_a_share_is_taken_back(stepped: Stepped, is_last: bool) -> None:
    node = stepped.node
    kept = [] if is_last else [new_share(node)]
    for one in kept:
        assert node.kubelet.prepare_one(one).error == ""
    wanted = COMMITS | REMOVED | (DESTROYED if is_last else set())
    seen: set[str] = set()

    def prepared(when: str) -> Claim:
        made = new_share(node)
        assert node.kubelet.prepare_one(made).error == "", when
        wait_holds(node, [*kept, made], when, instances=1)
        return made

    def call() -> None:
        assert node.kubelet.unprepare_one(claim).error == ""

    def recover(step: str) -> Claim:
        seen.add(step)
        assert node.kubelet.unprepare_one(claim).error == "", step
        wait_holds(node, kept, step, instances=len(kept))
        return prepared(step)

    claim = prepared("at the start")
    for step in stepped.crashes(call):
        claim = recover(step)
    claim = prepared("after all steps")
    for step in stepped.crashes_at(wanted - seen, call):
        claim = recover(step)
    assert seen == wanted
    call()
    wait_holds(node, kept, "at the end", instances=len(kept))
