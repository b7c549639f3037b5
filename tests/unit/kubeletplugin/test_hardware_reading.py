"""Readings of the hardware while claims come and go."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from kubeletplugin.store import boot_seconds
from tests.harness.enginenode import EngineNode, claim

BEFORE_MIG, AFTER_MIG = "nvmlDeviceGetArchitecture", "nvmlDeviceGetName"


async def _reached(node: EngineNode, symbol: str, calls: int) -> None:
    deadline = time.monotonic() + 10.0
    while node.gpus.calls().get(symbol, 0) <= calls:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.002)


async def test_a_claim_that_comes_and_goes_within_a_reading_leaves_no_stranger(tmp_path: Path) -> None:
    node = EngineNode(tmp_path, "hgx-h100", gpus=[{"model": "h100-sxm5-80gb", "pci": "0000:11:00.0"}])
    await node.start()
    offered = [device.name for device in node.hardware.offered]
    passing = claim("c1", "gpu-0000-11-00-0-mig-1g10gb-0")
    begun = {symbol: node.gpus.calls()[symbol] for symbol in (BEFORE_MIG, AFTER_MIG)}
    for symbol in begun:
        node.gpus.set_delay(symbol, 600, times=1)
    reading = asyncio.create_task(node.hardware.read_once())
    await _reached(node, BEFORE_MIG, begun[BEFORE_MIG])
    await node.engine.prepare(passing, boot_seconds(), 30.0)
    await _reached(node, AFTER_MIG, begun[AFTER_MIG])
    await node.engine.unprepare(passing.reference, 30.0)
    assert not reading.done()
    assert await reading
    assert [device.name for device in node.hardware.offered] == offered
    assert node.hardware.inventory.gpus[0].gpu_instances == ()
    await node.stop()


async def test_an_instance_of_an_administrator_is_believed_within_one_reading(tmp_path: Path) -> None:
    node = EngineNode(tmp_path, "hgx-h100", gpus=[{"model": "h100-sxm5-80gb", "pci": "0000:11:00.0"}])
    await node.start()
    node.gpus.set_mig_mode(0)
    node.gpus.create_mig(0, "1g.10gb", 0)
    assert await node.hardware.read_once()
    names = [device.name for device in node.hardware.offered]
    assert "gpu-0000-11-00-0" not in names
    assert "gpu-0000-11-00-0-mig-1g10gb-0" in names
    calls = node.gpus.calls()[BEFORE_MIG]
    assert await node.hardware.read_once()
    assert node.gpus.calls()[BEFORE_MIG] == calls + 1, "what is known is not read twice"
    await node.stop()
