"""What the log says at INFO when the hardware is read again."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from kubeletplugin.store import boot_seconds
from tests.harness.enginenode import EngineNode, claim

FOUND = "devices to offer"


async def test_a_change_of_mig_for_a_claim_is_no_news(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    def told() -> list[int]:
        levels = [one.levelno for one in caplog.records if FOUND in one.getMessage()]
        caplog.clear()
        return levels

    node = EngineNode(tmp_path, "hgx-h100")
    await node.start()
    assert told() == [logging.INFO]
    partition = next(device.name for device in node.hardware.offered if device.partition is not None)
    prepared = claim("c1", partition)
    await node.engine.prepare(prepared, boot_seconds(), 30.0)
    assert await node.hardware.read_once()
    assert told() == [logging.DEBUG]
    await node.engine.unprepare(prepared.reference, 30.0)
    assert await node.hardware.read_once()
    assert told() == [logging.DEBUG]
    node.gpus.create_mig(0, "1g.10gb")
    assert await node.hardware.read_once()
    assert told() == [logging.INFO]
    node.gpus.unplug(7)
    assert await node.hardware.read_once()
    assert told() == [logging.INFO]
    await node.stop()
