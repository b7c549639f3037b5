"""kill -9 at every step of making and destroying partitions, and what the next process makes of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cluster.api import wait_until
from tests.harness.claims import Claim, create_claim, delete_claim, result
from tests.harness.devices import gpu_name
from tests.harness.plugin import PluginNode
from tests.harness.steppednode import Stepped

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
    stepped = Stepped(make_node("hgx-h100"), "mig_mode", "_instance", "COMMIT")
    stepped.node.flags["mig"] = "dynamic"
    stepped.node.start()
    wait_until(stepped.node.published, "devices", 30)
    return stepped


def new_claim(node: PluginNode) -> Claim:
    first = gpu_name(node.gpus.gpus()[0].pci_bus_id)
    return create_claim(node.api, [result(f"{first}-mig-1g10gb-2", node.name)])


def wait_left(node: PluginNode, claims: list[Claim], when: str) -> None:
    """Wait until exactly ``claims`` have a record, a CDI file and an instance each, and nothing else is."""
    wanted = sorted(claim.uid for claim in claims)

    def found() -> tuple[list[str], list[str], int]:
        files = [name.removeprefix("gpudra.io-claim_").removesuffix(".json") for name in node.cdi_files()]
        instances = sum(len(gpu.mig_uuids) or len(gpu.gpu_instances) for gpu in node.gpus.gpus())
        return sorted(node.claims_in_store()), files, instances

    wait_until(
        lambda: found() == (wanted, wanted, len(wanted)), f"only {wanted} to be left {when}: {found()}", 10
    )


def test_b067_b084_killed_while_a_partition_is_made(stepped: Stepped) -> None:
    node = stepped.node
    claim = new_claim(node)
    seen: set[str] = set()

    def call() -> None:
        node.kubelet.prepare_one(claim)

    for step in stepped.crashes(call):
        if len(seen) % 2:
            answer = node.kubelet.prepare_one(claim)
            assert (answer.error, len(answer.names)) == ("", 1), step
            wait_left(node, [claim], step)
            assert node.kubelet.unprepare_one(claim).error == "", step
        else:
            delete_claim(node.api, claim)
        seen.add(step)
        wait_left(node, [], step)
        # With MIG mode off again, that is a step too.
        node.gpus.set_mig_mode(0, False)
        claim = new_claim(node)
    assert seen == MADE


def test_b067_killed_while_a_partition_is_destroyed(stepped: Stepped) -> None:
    node = stepped.node
    claim = new_claim(node)
    assert node.kubelet.prepare_one(claim).error == ""
    seen: set[str] = set()

    def call() -> None:
        node.kubelet.unprepare_one(claim)

    for step in stepped.crashes(call):
        seen.add(step)
        assert node.kubelet.unprepare_one(claim).error == "", step
        wait_left(node, [], step)
        claim = new_claim(node)
        assert node.kubelet.prepare_one(claim).error == "", step
    assert seen == UNMADE
    wait_left(node, [], "at the end")
