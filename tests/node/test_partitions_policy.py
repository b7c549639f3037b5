"""``--mig`` changed from dynamic to something else: MIG modes that the driver turned on do not stay."""

from __future__ import annotations

import pytest

from tests.cluster.api import wait_until
from tests.harness.claims import create_claim, result
from tests.harness.devices import gpu_name
from tests.harness.plugin import PluginNode
from tests.node.conftest import MakeNode

DEVICES = 8 * (25 + 1)
FREED, HELD, ADMINISTRATORS, BUSY = range(4)


def modes(node: PluginNode) -> list[bool]:
    """Of the first four GPUs; of no other the mode was ever changed."""
    gpus = node.gpus.gpus()
    assert not any(gpu.mig_mode for gpu in gpus[4:])
    return [gpu.mig_mode for gpu in gpus[:4]]


def wait_modes(node: PluginNode, *wanted: bool) -> None:
    wait_until(lambda: modes(node) == list(wanted), f"MIG modes {wanted}, they are {modes(node)}", 10)


def wait_whole(node: PluginNode, numbers: set[int]) -> None:
    """Wait until exactly these GPUs are published as a whole."""
    names = {gpu_name(gpu.pci_bus_id): number for number, gpu in enumerate(node.gpus.gpus())}

    def published() -> set[int]:
        return {number for name, number in names.items() if name in node.published()}

    wait_until(lambda: published() == numbers, f"GPUs {numbers}, there are {published()}", 15)


@pytest.mark.parametrize("policies", [("static", "off"), ("off", "static")])
def test_b078_what_a_dynamic_plugin_left_on_is_turned_off_by_one_that_is_not(
    make_node: MakeNode, policies: tuple[str, str]
) -> None:
    node = make_node("hgx-h100")
    node.gpus.set_mig_mode(ADMINISTRATORS)
    node.flags["mig"] = "dynamic"
    node.start()
    node.wait_published(DEVICES, 30)
    names = [gpu_name(gpu.pci_bus_id) for gpu in node.gpus.gpus()]
    claims = [
        create_claim(node.api, [result(f"{names[number]}-mig-1g10gb-0", node.name)])
        for number in (FREED, HELD, ADMINISTRATORS, BUSY)
    ]
    assert {answer.error for answer in node.kubelet.prepare(*claims).values()} == {""}
    live = claims.pop(HELD)
    assert {answer.error for answer in node.kubelet.unprepare(*claims).values()} == {""}
    assert modes(node) == [True] * 4
    uuids = node.gpus.gpus()[HELD].mig_uuids

    node.stop()
    node.gpus.add_process(BUSY, 4711)
    node.flags["mig"] = policies[0]
    node.start()
    wait_modes(node, False, True, True, True)
    wait_whole(node, {FREED, 4, 5, 6, 7})
    wait_until(lambda: any("4711" in text for text in node.api.events(node.name)), "an event on the Node", 10)
    (text,) = [text for text in node.api.events(node.name) if text.startswith("MigModeLeft")]
    assert node.gpus.gpus()[BUSY].pci_bus_id in text

    node.gpus.remove_process(4711)
    node.flags["mig"] = policies[1]
    node.restart()
    wait_modes(node, False, True, True, False)
    assert node.gpus.gpus()[HELD].mig_uuids == uuids
    assert node.kubelet.unprepare_one(live).error == ""
    wait_modes(node, False, False, True, False)
    wait_whole(node, {FREED, HELD, BUSY, 4, 5, 6, 7})

    whole = create_claim(node.api, [result(names[FREED], node.name)])
    assert node.kubelet.prepare_one(whole).error == ""
    assert node.kubelet.unprepare_one(whole).error == ""
    assert (node.claims_in_store(), node.cdi_files()) == ({}, [])
