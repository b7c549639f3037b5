"""kill -9 at every step of preparing and unpreparing a claim, and what the next process makes of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.harness.claims import Claim, create_claim, delete_claim, result
from tests.harness.plugin import PluginNode
from tests.harness.steppednode import Stepped, wait_holds

PREPARE_STEPS = {
    "before INSERT OR REPLACE INTO",
    "after INSERT OR REPLACE INTO",
    "before COMMIT",
    "after COMMIT",
    "before rename of the CDI spec",
    "after rename of the CDI spec",
}
UNPREPARE_STEPS = {
    "before removal of the CDI spec",
    "after removal of the CDI spec",
    "before DELETE FROM claims WHERE",
    "after DELETE FROM claims WHERE",
    "before COMMIT",
    "after COMMIT",
}


@pytest.fixture
def stepped(make_node: Callable[..., PluginNode]) -> Stepped:
    stepped = Stepped(make_node())
    stepped.node.start()
    stepped.node.wait_published(8)
    return stepped


def new_claim(node: PluginNode) -> Claim:
    return create_claim(node.api, [result(name, node.name) for name in sorted(node.published())[:2]])


def test_b067_killed_in_prepare_the_same_claim_prepares_and_unprepares(stepped: Stepped) -> None:
    node = stepped.node
    claim = new_claim(node)
    seen = set()
    for step in stepped.crashes(lambda: node.kubelet.prepare_one(claim)):
        seen.add(step)
        answer = node.kubelet.prepare_one(claim)
        assert (answer.error, len(answer.names)) == ("", 2), step
        assert node.claims_in_store() == {claim.uid: "prepared"}, step
        wait_holds(node, [claim], step)
        assert node.kubelet.unprepare_one(claim).error == "", step
        wait_holds(node, [], step)
    assert seen >= PREPARE_STEPS
    node.kubelet.unprepare_one(claim)


def test_b067_b058_killed_in_prepare_and_the_claim_deleted_nothing_is_left(stepped: Stepped) -> None:
    node = stepped.node
    claim = new_claim(node)
    seen = set()

    def call() -> None:
        node.kubelet.prepare_one(claim)

    for step in stepped.crashes(call):
        seen.add(step)
        delete_claim(node.api, claim)
        wait_holds(node, [], step)
        claim = new_claim(node)
    assert seen >= PREPARE_STEPS


def test_b067_killed_in_unprepare_the_claim_unprepares_and_its_devices_are_free(stepped: Stepped) -> None:
    node = stepped.node
    claim = new_claim(node)
    seen = set()
    assert node.kubelet.prepare_one(claim).error == ""

    def call() -> None:
        node.kubelet.unprepare_one(claim)

    for step in stepped.crashes(call):
        seen.add(step)
        assert node.kubelet.unprepare_one(claim).error == "", step
        wait_holds(node, [], step)
        claim = new_claim(node)
        assert node.kubelet.prepare_one(claim).error == "", step
        wait_holds(node, [claim], step)
    assert seen >= UNPREPARE_STEPS
    wait_holds(node, [], "at the end")


def test_b067_killed_while_a_lost_cdi_file_is_made_again(stepped: Stepped) -> None:
    node = stepped.node
    claim = new_claim(node)
    first = node.kubelet.prepare_one(claim)

    def again() -> None:
        (node.cdi_root / f"gpudra.io-claim_{claim.uid}.json").unlink(missing_ok=True)
        node.kubelet.prepare_one(claim)

    seen = set()
    for step in stepped.crashes(again):
        seen.add(step)
        assert node.claims_in_store() == {claim.uid: "prepared"}, step
        assert node.kubelet.prepare_one(claim) == first, step
        wait_holds(node, [claim], step)
    assert seen == {"before rename of the CDI spec", "after rename of the CDI spec"}
    node.kubelet.unprepare_one(claim)
