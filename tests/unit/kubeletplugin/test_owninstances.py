from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from driver.claim import ClaimReference
from driver.devices import Footprint
from driver.inventory import Gpu, Placement
from kubeletplugin.owninstances import merged, own_instances
from kubeletplugin.store import ClaimRecord, ClaimState, HeldDevice
from tests.unit.driver.inventories import gpu, gpu_instance

_GPU = gpu(
    mig_enabled=True, gpu_instances=(gpu_instance(19, 0, 1, number=7), gpu_instance(19, 1, 1, number=8))
)
_PCI = _GPU.pci


def _record(one: Gpu = _GPU, boot_id: str = "boot", **fields: Any) -> ClaimRecord:
    held = HeldDevice(
        ("gpu",),
        "node-1",
        "gpu-0000-65-00-0-mig-1g10gb-0",
        "gpudra.io/claim=x",
        "",
        one.uuid,
        Footprint(one.pci, Placement(0, 1)),
        {},
        profile_id=19,
        gpu_instance_id=7,
    )
    claim = ClaimReference("default", "one", "uid-1")
    return ClaimRecord(claim, ClaimState.PREPARED, boot_id, 0.0, (replace(held, **fields),))


def test_an_instance_is_ours_when_a_claim_holds_it() -> None:
    assert own_instances([_record()], [_GPU], "boot") == {_PCI: frozenset({7})}


def test_an_instance_is_ours_also_before_its_id_is_noted() -> None:
    assert own_instances([_record(gpu_instance_id=None)], [_GPU], "boot") == {_PCI: frozenset({7})}


@pytest.mark.parametrize(
    "fields",
    [
        {"boot_id": "the one before"},
        {"gpu_uuid": "GPU-another-card"},
        {"profile_id": None},
        {"profile_id": 20},
        {"gpu_instance_id": 8},
        {"footprint": Footprint(_PCI, Placement(2, 1))},
        {"footprint": Footprint(gpu(0x17).pci, Placement(0, 1))},
    ],
)
def test_an_instance_is_not_ours(fields: dict[str, Any]) -> None:
    assert own_instances([_record(**fields)], [_GPU], "boot") == {}


def test_nothing_is_ours_where_instances_are_not_known() -> None:
    assert own_instances([_record()], [replace(_GPU, gpu_instances=None)], "boot") == {}


def test_merged_is_what_is_in_any() -> None:
    other = gpu(0x17).pci
    assert merged({_PCI: frozenset({1})}, {_PCI: frozenset({2}), other: frozenset()}, {}) == {
        _PCI: frozenset({1, 2})
    }
