from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.devices import offered_devices
from driver.inventory import Gpu, Inventory, PciAddress
from driver.migoffer import MigPolicy
from driver.nodepolicy import NodePolicy
from driver.resourceslices import desired, published, slice_specs
from tests.unit.driver.inventories import gpu, inventory, mig
from tests.unit.driver.slicevalidator import violations


def _published(node: Inventory) -> list[dict[str, Any]]:
    return [published(device, node) for device in offered_devices(node, NodePolicy(mig=MigPolicy.STATIC), {})]


def _check(specs: list[dict[str, Any]]) -> None:
    complete = [spec | {"pool": spec["pool"] | {"generation": 1}} for spec in specs]
    assert violations(complete) == []
    for spec in complete:
        kubernetes_validate.validate(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {"generateName": "node-1-"},
                "spec": spec,
            },
            "1.37",
            strict=True,
        )


def _plain(number: int) -> dict[str, Any]:
    return {"name": f"gpu-0000-{number:02x}-00-0", "attributes": {}, "capacity": {}}


def test_b003_a_gpu_of_which_only_uuid_and_address_are_known_is_published() -> None:
    node = Inventory(gpus=(Gpu("GPU-1", PciAddress(0, 1, 0, 0), 0, product_name="\ufffd"),))
    _check(slice_specs(_published(node), "node-1", "node-1"))


def test_b028_200_mig_devices_are_several_slices_of_one_pool() -> None:
    gpus = [
        gpu(bus, mig_enabled=True, mig_devices=tuple(mig(start) for start in range(7))) for bus in range(28)
    ]
    devices = _published(inventory(*gpus, gpu(0xF0), gpu(0xF1), gpu(0xF2), gpu(0xF3)))
    specs = slice_specs(devices, "node-1", "node-1")
    assert [len(spec["devices"]) for spec in specs] == [128, 72]
    assert {spec["pool"]["resourceSliceCount"] for spec in specs} == {2}
    assert [device for spec in specs for device in spec["devices"]] == devices
    _check(specs)


@pytest.mark.parametrize(
    "extra",
    [
        {"taints": [{"key": "gpu.nvidia.com/lost", "effect": "NoSchedule"}]},
        {"consumesCounters": [{"counterSet": "one", "counters": {"memory": {"value": "1"}}}]},
    ],
)
def test_b028_slices_with_taints_or_counters_hold_64(extra: dict[str, Any]) -> None:
    devices = [_plain(number) for number in range(130)]
    devices[129] |= extra
    assert [len(spec["devices"]) for spec in slice_specs(devices, "n", "n")] == [64, 64, 2]


def test_b006_a_node_without_devices_publishes_one_slice_without_devices() -> None:
    specs = slice_specs([], "node-1", "node-1")
    assert specs == [
        {
            "driver": "gpu.nvidia.com",
            "nodeName": "node-1",
            "pool": {"name": "node-1", "resourceSliceCount": 1},
        }
    ]
    _check(specs)


@given(st.permutations(list(range(8))), st.sets(st.integers(0, 7)))
def test_order_does_not_depend_on_how_nvml_counts(order: list[int], parted: set[int]) -> None:
    def node(indexes: list[int]) -> Inventory:
        return inventory(
            *(
                gpu(
                    0x10 + place,
                    index=index,
                    minor=index,
                    mig_enabled=place in parted,
                    mig_devices=(mig(4), mig(0)) if place in parted else (),
                )
                for place, index in enumerate(indexes)
            )
        )

    assert _published(node(order)) == _published(node(list(range(8))))


def test_b070_b072_a_gpu_in_mig_mode_is_offered_as_its_mig_devices_only() -> None:
    seven = gpu(0x17, mig_enabled=True, mig_devices=tuple(mig(start) for start in range(7)))
    none = gpu(0x65, mig_enabled=True)
    devices = _published(inventory(seven, none, gpu(0xCA)))
    assert [device["attributes"]["type"]["string"] for device in devices] == ["mig"] * 7 + ["gpu"]


def test_b007_a_device_in_use_that_vanished_stays_as_it_was() -> None:
    old = {**_plain(2), "attributes": {"uuid": {"string": "GPU-old"}}}
    also_current = {**_plain(1), "attributes": {"uuid": {"string": "GPU-stale"}}}
    result = desired([_plain(3), _plain(1)], [old, also_current])
    assert result == [_plain(1), old, _plain(3)]
