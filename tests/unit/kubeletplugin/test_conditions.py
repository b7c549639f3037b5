"""Conditions of the hardware: said when they begin and when they are over, once each."""

from __future__ import annotations

import logging

import pytest

from driver.inventory import Gpu, Inventory, MigDevice, PciAddress, Placement, UnreadableGpu
from kube.conditions import Condition, Conditions
from kubeletplugin.conditions import of_inventory

LOST = Condition("GpuUnreadable", "GPU index 2 cannot be read")
EMPTY = Condition("MigWithoutInstances", "GPU 0000:65:00.0 has no instance")


def test_a_condition_is_told_when_it_begins_and_again_when_it_comes_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    told: list[tuple[str, str]] = []
    conditions = Conditions(lambda reason, message: told.append((reason, message)))
    for standing in ([LOST], [LOST], [EMPTY, LOST, LOST], [EMPTY], [], [LOST]):
        conditions.stand(standing)
    begun = [(condition.reason, condition.message) for condition in (LOST, EMPTY, LOST)]
    assert told == begun
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", LOST.message),
        ("WARNING", EMPTY.message),
        ("INFO", f"over: {LOST.message}"),
        ("INFO", f"over: {EMPTY.message}"),
        ("WARNING", LOST.message),
    ]


def test_what_is_wrong_with_an_inventory() -> None:
    mig = MigDevice("MIG-1", "1g.10gb", 1, 0, Placement(0, 1))
    healthy = Gpu("GPU-1", PciAddress(0, 0x11, 0, 0), 0)
    divided = Gpu("GPU-2", PciAddress(0, 0x22, 0, 0), 1, mig_enabled=True, mig_devices=(mig,))
    empty = Gpu("GPU-3", PciAddress(0, 0x33, 0, 0), 2, mig_enabled=True)
    assert of_inventory(Inventory(gpus=(healthy, divided)), []) == []
    found = of_inventory(
        Inventory(
            gpus=(healthy, divided, empty),
            unreadable_gpus=(UnreadableGpu("index 3", "nvmlDeviceGetUUID: GPU_IS_LOST (15)"),),
            waiting_for_driver=2,
        ),
        [empty],
    )
    assert [condition.reason for condition in found] == [
        "GpuUnreadable",
        "MigWithoutInstances",
        "WaitingForDriver",
    ]
    for condition, words in zip(found, ("GPU_IS_LOST (15)", "GPU-3", "2 NVIDIA PCI functions"), strict=True):
        assert words in condition.message
