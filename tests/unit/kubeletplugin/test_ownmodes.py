"""MIG modes that the driver turned on: which are given back, when, and which are an administrator's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from driver.migoffer import MigPolicy
from driver.nvml import Code
from kubeletplugin import ownmodes
from tests.harness.enginenode import EngineNode

FIRST, SECOND = "gpu-0000-11-00-0", "gpu-0000-12-00-0"
PARTITION = f"{FIRST}-mig-1g10gb-0"
GPUS = [{"model": "h100-sxm5-80gb", "pci": f"0000:{bus}:00.0"} for bus in (11, 12)]
NOT_DYNAMIC = [MigPolicy.STATIC, MigPolicy.OFF]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[EngineNode]:
    """A node whose first GPU has its MIG mode from a claim for a partition that is gone."""
    made = EngineNode(tmp_path, "hgx-h100", gpus=GPUS)
    await made.start()
    await made.prepare("gone", PARTITION)
    await made.unprepare("gone")
    assert modes(made) == [True, False]
    yield made
    await made.stop()


def modes(node: EngineNode) -> list[bool]:
    return [gpu.mig_mode for gpu in node.gpus.gpus()]


async def is_ours(node: EngineNode, number: int) -> bool:
    uuid, boot_id = node.gpus.gpu(number).uuid, node.hardware.boot_id()
    return await node.store.run(lambda store: store.is_mig_on_ours(uuid, boot_id))


@pytest.mark.parametrize("policy", NOT_DYNAMIC)
async def test_a_mode_that_nothing_needs_any_more_is_given_back(node: EngineNode, policy: MigPolicy) -> None:
    node.gpus.set_mig_mode(1)
    await node.own_modes(policy).once()
    assert modes(node) == [False, True]
    assert not await is_ours(node, 0)
    # From now on it is an administrator's.
    node.gpus.set_mig_mode(0)
    await node.own_modes(policy).once()
    assert modes(node) == [True, True]


async def test_with_partitions_the_mode_stays_for_the_next_one(node: EngineNode) -> None:
    await node.own_modes().once()
    assert modes(node) == [True, False]
    assert await is_ours(node, 0)


async def test_a_mode_that_an_administrator_turned_off_and_on_again_is_his(node: EngineNode) -> None:
    node.gpus.set_mig_mode(0, False)
    await node.own_modes().once()
    node.gpus.set_mig_mode(0)
    await node.own_modes(MigPolicy.STATIC).once()
    assert modes(node) == [True, False]


@pytest.mark.parametrize("device", [PARTITION, f"{FIRST}-mig-3g40gb-4"])
async def test_a_claim_keeps_the_mode_until_it_is_gone(node: EngineNode, device: str) -> None:
    await node.prepare("live", device)
    before = node.instances()
    await node.own_modes(MigPolicy.OFF).once()
    assert (modes(node), node.instances()) == ([True, False], before)
    await node.unprepare("live")
    await node.own_modes(MigPolicy.OFF).once()
    assert modes(node) == [False, False]


async def test_an_instance_of_an_administrator_keeps_the_mode(node: EngineNode) -> None:
    foreign = node.gpus.create_mig(0, "2g.20gb", 4)
    await node.own_modes(MigPolicy.STATIC).once()
    assert modes(node) == [True, False]
    node.gpus.destroy_mig(0, foreign.id)
    await node.own_modes(MigPolicy.STATIC).once()
    assert modes(node) == [False, False]


async def test_an_excluded_gpu_is_left_alone(node: EngineNode) -> None:
    await node.own_modes(MigPolicy.STATIC, excluded=["0000:11:00.0"]).once()
    assert modes(node) == [True, False]
    assert await is_ours(node, 0)


async def test_a_gpu_in_use_is_told_of_once_and_tried_again(node: EngineNode) -> None:
    told: list[str] = []
    own_modes = node.own_modes(
        MigPolicy.STATIC, announce=lambda reason, text: told.append(f"{reason}: {text}")
    )
    node.gpus.add_process(0, 4711)
    for _ in range(2):
        await own_modes.once()
        assert modes(node) == [True, False]
        assert node.metrics.registry.get_sample_value("gpudra_mig_modes_left") == 1
    (text,) = told
    assert text.startswith("MigModeLeft: MIG mode of GPU 0000:11:00.0 cannot be turned off")
    assert "4711" in text
    node.gpus.remove_process(4711)
    await own_modes.once()
    assert modes(node) == [False, False]
    assert node.metrics.registry.get_sample_value("gpudra_mig_modes_left") == 0


async def test_a_gpu_that_is_lost_or_fails_holds_up_no_other(node: EngineNode) -> None:
    await node.prepare("second", f"{SECOND}-mig-1g10gb-0")
    await node.unprepare("second")
    node.gpus.set_return("nvmlDeviceGetMigMode", Code.UNKNOWN, times=1, gpu=0)
    await node.own_modes(MigPolicy.STATIC).once()
    assert modes(node) == [True, False]
    node.gpus.lose(0)
    await node.own_modes(MigPolicy.STATIC).once()
    assert await is_ours(node, 0)
    node.gpus.restore(0)
    await node.own_modes(MigPolicy.STATIC).once()
    assert modes(node) == [False, False]


async def test_a_claim_that_works_on_the_gpu_is_not_waited_for(
    node: EngineNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownmodes, "_LOCK_SECONDS", 0.05)
    async with node.locks.hold(["0000:11:00.0"], "a claim", 1.0):
        await node.own_modes(MigPolicy.STATIC).once()
        assert modes(node) == [True, False]
    await node.own_modes(MigPolicy.STATIC).once()
    assert modes(node) == [False, False]


async def test_after_a_reboot_no_mode_is_ours(node: EngineNode) -> None:
    node.gpus.reboot()
    await node.restart()
    node.gpus.set_mig_mode(0)
    await node.own_modes(MigPolicy.STATIC).once()
    assert modes(node) == [True, False]
