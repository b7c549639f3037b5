"""B025 on many machines: each published device, claimed alone, gives exactly that GPU or MIG device."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from nvmlsim.library import StateError
from nvmlsim.node import SimulatedNode
from tests.harness.claims import Claim, create_claim, result
from tests.harness.devices import gpu_name, value
from tests.node.conftest import MakeNode
from tests.unit.driver.slicevalidator import violations

PROFILES = {
    "dgx-a100-40": ["1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb", "1c.3g.20gb", "1g.5gb+me"],
    "hgx-h100": ["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "2c.4g.40gb", "7g.80gb"],
    "hgx-b200": ["1g.23gb", "2g.45gb", "3g.90gb", "7g.180gb"],
    "a30x4": ["1g.6gb", "2g.12gb", "4g.24gb", "1c.2g.12gb"],
    "rtx-pro-6000x8": ["1g.24gb", "2g.48gb", "4g.96gb", "1g.24gb+gfx", "1g.24gb-me"],
    "l40sx8": [],
    "a100-pcie-pair": ["1g.10gb", "3g.40gb"],
}


def partition(gpus: SimulatedNode, profiles: list[str], dice: random.Random) -> None:
    """Make what fits of a random list of instances on every second GPU, as administrators do."""
    for gpu in gpus.gpus()[::2]:
        if not profiles:
            return
        gpus.set_mig_mode(gpu.gpu)
        for _ in range(dice.randint(2, 6)):
            try:
                gpus.create_mig(gpu.gpu, dice.choice(profiles))
            except StateError:
                continue


def expected(gpus: SimulatedNode) -> dict[str, tuple[str, list[str]]]:
    """For each UUID that is offered: the name's beginning, and the device nodes that a container gets."""
    found = {}
    for gpu in gpus.gpus():
        parent = f"/dev/nvidia{gpu.minor}"
        name = gpu_name(gpu.pci_bus_id)
        if not gpu.mig_mode:
            found[gpu.uuid] = (name, [parent])
        for gi in gpu.gpu_instances:
            folder = gpus.root / f"proc/driver/nvidia/capabilities/gpu{gpu.minor}/mig/gi{gi.id}"
            for ci in gi.compute_instances:
                minors = [
                    re.findall(r"DeviceFileMinor: (\d+)", (path / "access").read_text())[0]
                    for path in (folder, folder / f"ci{ci.id}")
                ]
                capabilities = [f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in minors]
                found[ci.uuid] = (f"{name}-mig-", [parent, *capabilities])
    return found


@pytest.mark.parametrize("machine", PROFILES)
def test_b025_each_device_claimed_alone_gives_exactly_that_hardware(
    make_node: MakeNode, machine: str
) -> None:
    dice = random.Random(machine)
    node = make_node(machine)
    partition(node.gpus, PROFILES[machine], dice)
    count = len(node.gpus.gpus())
    node.gpus.permute_minors(dice.sample(range(32), count))
    node.gpus.permute_indexes(dice.sample(range(count), count))
    wanted = expected(node.gpus)
    node.start(rescan_seconds="600")
    devices = node.wait_published(len(wanted))
    assert any("-mig-" in name for name in devices) == bool(PROFILES[machine])
    assert violations([item["spec"] for item in node.slices()]) == []
    assert len({frozenset(device["attributes"]) for device in devices.values()}) == 1
    claims: dict[str, Claim] = {name: create_claim(node.api, [result(name, node.name)]) for name in devices}

    answers = node.kubelet.prepare(*claims.values())

    got: dict[str, tuple[str, list[str]]] = {}
    for name, claim in claims.items():
        answer: Any = answers[claim.uid]
        assert answer.error == ""
        assert answer.names == [name]
        assert list(node.device_nodes(claim.uid)) == [name]
        uuid = value(devices[name], "uuid")
        begin, _ = wanted[uuid]
        assert name == begin or (begin.endswith("-mig-") and name.startswith(begin))
        got[uuid] = (begin, node.device_nodes(claim.uid)[name])
    assert got == wanted
    assert {answer.error for answer in node.kubelet.unprepare(*claims.values()).values()} == {""}
    assert node.cdi_files() == []
