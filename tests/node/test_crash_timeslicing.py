"""kill -9 at every step of setting an interval and putting it back, and what the next process makes of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cluster.api import wait_until
from tests.harness.claims import Claim, create_claim, delete_claim, opaque, result
from tests.harness.devices import gpu_name
from tests.harness.plugin import PluginNode
from tests.harness.steppednode import Stepped
from tests.harness.timeslices import intervals, time_slicing

STEPS = {"before set_interval", "after set_interval", "before COMMIT", "after COMMIT"}


@pytest.fixture
def stepped(make_node: Callable[..., PluginNode]) -> Stepped:
    stepped = Stepped(make_node("t4x4"), "set_interval", "COMMIT")
    stepped.node.start()
    stepped.node.wait_published(4)
    return stepped


def new_claim(node: PluginNode) -> Claim:
    name = gpu_name(node.gpus.gpus()[0].pci_bus_id)
    return create_claim(node.api, [result(name, node.name)], configs=[opaque(time_slicing("Long"))])


def wait_left(node: PluginNode, claims: list[Claim], when: str) -> None:
    """Wait until exactly ``claims`` have a record and a CDI file, and GPUs the interval that they ask for."""
    wanted = sorted(claim.uid for claim in claims)

    def found() -> tuple[list[str], list[str], dict[int, str]]:
        files = [name.removeprefix("gpudra.io-claim_").removesuffix(".json") for name in node.cdi_files()]
        return sorted(node.claims_in_store()), files, intervals(node.gpus)

    expected = (wanted, wanted, {0: "Long"} if claims else {})
    wait_until(lambda: found() == expected, f"only {wanted} to be left {when}: {found()}", 10)


def test_b067_killed_while_an_interval_is_set(stepped: Stepped) -> None:
    node = stepped.node
    claim = new_claim(node)
    seen: list[str] = []

    def call() -> None:
        assert node.kubelet.prepare_one(claim).error == ""

    for step in stepped.crashes(call):
        if len(seen) % 2:
            assert node.kubelet.prepare_one(claim).error == "", step
            wait_left(node, [claim], step)
            assert node.kubelet.unprepare_one(claim).error == "", step
        else:
            delete_claim(node.api, claim)
        seen.append(step)
        wait_left(node, [], step)
        claim = new_claim(node)
    assert set(seen) == STEPS


def test_b067_killed_while_an_interval_is_put_back(stepped: Stepped) -> None:
    node = stepped.node
    claim = new_claim(node)
    assert node.kubelet.prepare_one(claim).error == ""
    seen: set[str] = set()

    def call() -> None:
        assert node.kubelet.unprepare_one(claim).error == ""

    for step in stepped.crashes(call):
        seen.add(step)
        assert node.kubelet.unprepare_one(claim).error == "", step
        wait_left(node, [], step)
        claim = new_claim(node)
        assert node.kubelet.prepare_one(claim).error == "", step
        wait_left(node, [claim], step)
    assert seen == STEPS
    wait_left(node, [], "at the end")
