"""Which way each GPU goes, and the partitions that it offers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from driver.attributes import ATTRIBUTES, attributes, capacity
from driver.devices import Device, known_devices, offered_devices
from driver.inventory import Gpu, Inventory, MigProfile, Placement
from driver.migoffer import MigPolicy, MigWay, mig_offer
from driver.nodepolicy import NodePolicy
from driver.resourceslices import counter_sets, desired, published, slice_specs
from tests.unit.driver.inventories import H100_PROFILES, gpu, gpu_instance, inventory, mig
from tests.unit.driver.slicevalidator import violations

_PCI = gpu().pci
_FOREIGN: dict[str, Any] = {
    "mig_enabled": True,
    "nvlink": None,
    "gpu_instances": (gpu_instance(9, 0, 4),),
    "mig_devices": (mig(0, 4, "3g.40gb", gpu_instance_id=1),),
}
_ALL = 25


def _offered(*gpus: Gpu, own: frozenset[int] = frozenset(), **options: Any) -> tuple[Device, ...]:
    policy = options.pop("policy", MigPolicy.DYNAMIC)
    return offered_devices(inventory(*gpus), NodePolicy(mig=policy), {_PCI: own}, **options)


@pytest.mark.parametrize(
    ("fields", "policy", "with_counters", "without"),
    [
        ({}, "dynamic", MigWay.WHOLE_GPU_AND_PARTITIONS, MigWay.WHOLE_GPU),
        ({"mig_enabled": True}, "dynamic", MigWay.WHOLE_GPU_AND_PARTITIONS, MigWay.WHOLE_GPU),
        ({"resetless_mig": False}, "dynamic", MigWay.WHOLE_GPU, MigWay.WHOLE_GPU),
        ({"resetless_mig": False, "mig_pending": True}, "dynamic", MigWay.WHOLE_GPU, MigWay.WHOLE_GPU),
        ({"resetless_mig": False, "mig_enabled": True}, "dynamic", MigWay.PARTITIONS, MigWay.NOTHING),
        (_FOREIGN, "dynamic", MigWay.INSTANCES_AND_PARTITIONS, MigWay.INSTANCES),
        ({**_FOREIGN, "resetless_mig": False}, "dynamic", MigWay.INSTANCES_AND_PARTITIONS, MigWay.INSTANCES),
        ({"mig_capable": False, "profiles": ()}, "dynamic", MigWay.WHOLE_GPU, MigWay.WHOLE_GPU),
        ({**_FOREIGN, "mig_capable": False}, "dynamic", MigWay.INSTANCES, MigWay.INSTANCES),
        ({"profiles": ()}, "dynamic", MigWay.WHOLE_GPU, MigWay.WHOLE_GPU),
        ({"profiles": (), "mig_enabled": True}, "dynamic", MigWay.NOTHING, MigWay.NOTHING),
        ({"mig_enabled": True, "gpu_instances": None}, "dynamic", MigWay.NOTHING, MigWay.NOTHING),
        ({**_FOREIGN, "gpu_instances": None}, "dynamic", MigWay.INSTANCES, MigWay.INSTANCES),
        ({}, "static", MigWay.WHOLE_GPU, MigWay.WHOLE_GPU),
        (_FOREIGN, "static", MigWay.INSTANCES, MigWay.INSTANCES),
        ({"mig_enabled": True}, "static", MigWay.NOTHING, MigWay.NOTHING),
        ({}, "off", MigWay.WHOLE_GPU, MigWay.WHOLE_GPU),
        (_FOREIGN, "off", MigWay.NOTHING, MigWay.NOTHING),
    ],
)
def test_b077_b010_which_way_a_gpu_goes(
    fields: dict[str, Any], policy: str, with_counters: MigWay, without: MigWay
) -> None:
    one = gpu(**fields)
    for counters, way in ((True, with_counters), (False, without)):
        offer = mig_offer(one, frozenset(), MigPolicy(policy), counters=counters)
        assert offer.way is way
        assert offer.reason
        devices = _offered(one, policy=MigPolicy(policy), counters=counters)
        assert any(device.is_whole_gpu for device in devices) is way.offers_whole_gpu
        assert any(device.partition for device in devices) is way.offers_partitions
        assert any(device.mig for device in devices) is way.offers_instances
        assert all(bool(device.counters) is (way.offers_partitions and not device.mig) for device in devices)


def test_a_grid_that_needs_too_many_counters_is_not_published() -> None:
    huge = replace(H100_PROFILES[0], placements=tuple(Placement(start, 1) for start in range(33)))
    assert mig_offer(gpu(profiles=(huge,)), frozenset(), MigPolicy.DYNAMIC, counters=True).way is (
        MigWay.WHOLE_GPU
    )


def test_the_order_in_a_gpu_is_what_spoils_least_first() -> None:
    names = [device.name.removeprefix("gpu-0000-65-00-0-mig-") for device in _offered(gpu())]
    assert names == [
        *(f"1g10gb-{start}" for start in (6, 4, 5, 0, 1, 2, 3)),
        *(f"1g10gb-me-{start}" for start in (6, 4, 5, 0, 1, 2, 3)),
        *(f"1g20gb-{start}" for start in (6, 4, 0, 2)),
        *(f"2g20gb-{start}" for start in (4, 0, 2)),
        *("3g40gb-4", "3g40gb-0", "4g40gb-0", "7g80gb-0"),
        "gpu-0000-65-00-0",
    ]


def test_gpus_are_by_address_and_a_foreign_instance_comes_first() -> None:
    devices = _offered(gpu(0x65, **_FOREIGN), gpu(0x17), gpu(0xCA, mig_capable=False))
    buses = [device.gpu.pci.bus for device in devices]
    assert buses == sorted(buses)
    of_parted = [device for device in devices if device.gpu.pci == _PCI]
    assert [of_parted[0].name, of_parted[0].mig is None] == ["gpu-0000-65-00-0-mig-3g40gb-0", False]
    assert len(of_parted) == 1 + 10


def test_b086_what_overlaps_a_foreign_instance_is_not_offered_also_without_compute_instance() -> None:
    devices = _offered(gpu(**{**_FOREIGN, "mig_devices": ()}))
    assert len(devices) == 10
    assert all(device.partition and device.partition.placement.start >= 4 for device in devices)


def test_an_instance_that_we_made_is_still_a_partition() -> None:
    ours = gpu(**_FOREIGN)
    devices = _offered(ours, own=frozenset({1}))
    assert len(devices) == _ALL + 1
    assert not any(device.mig for device in devices)
    assert [device.name for device in devices] == [device.name for device in _offered(gpu())]


@pytest.mark.parametrize(("own", "kind"), [(frozenset({1}), "partition"), (frozenset[int](), "mig")])
def test_a_name_stands_for_the_instance_of_others_or_for_the_partition(
    own: frozenset[int], kind: str
) -> None:
    devices = known_devices(inventory(gpu(**_FOREIGN)), {_PCI: own})
    assert len(devices) == 1 + _ALL
    assert getattr(devices["gpu-0000-65-00-0-mig-3g40gb-0"], kind)


def _partition(text: str = "1g.10gb", start: int = 0, **fields: Any) -> Device:
    return next(
        device
        for device in _offered(gpu(**fields))
        if device.partition
        and (device.partition.profile.profile, device.partition.placement.start) == (text, start)
    )


def test_b026_a_partition_tells_of_its_profile_and_has_no_uuid() -> None:
    device = _partition("1g.10gb+me", 3, fabric_clique="cluster.1")
    node = inventory(device.gpu)
    found = attributes(device, node)
    assert {*found} == {one.name for one in ATTRIBUTES}
    expected = {
        "type": {"string": "mig"},
        "uuid": {"string": ""},
        "parentUUID": {"string": device.gpu.uuid},
        "profile": {"string": "1g.10gb+me"},
        "mediaExtensions": {"bool": True},
        "allMediaExtensions": {"bool": False},
        "graphics": {"bool": False},
        "nvlinkLinks": {"int": 0},
        "nvlinkPeers": {"int": 0},
        "nvlinkVersion": {"version": "0.0.0"},
        "migCapable": {"bool": True},
    }
    assert {name: found[name] for name in expected} == expected
    sizes = {name: entry["value"] for name, entry in capacity(device).items()}
    assert sizes == {
        "memory": "9984Mi",
        "multiprocessors": "16",
        "copyEngines": "1",
        "decoders": "1",
        "encoders": "0",
        "jpegEngines": "1",
        "ofaEngines": "1",
        "shares": "0",
    }


def test_no_two_partitions_match_by_an_attribute_that_means_a_connection() -> None:
    node = inventory(gpu(fabric_clique="cluster.1"))
    devices = offered_devices(node, NodePolicy(mig=MigPolicy.DYNAMIC), {})
    for name in ("nvlinkDomain", "fabricClique"):
        values = {attributes(device, node)[name]["string"] for device in devices}
        assert len(values) == len(devices)


def test_b038_the_memory_of_a_whole_gpu_does_not_depend_on_partitions() -> None:
    with_partitions, without = (_offered(gpu(), counters=counters)[-1] for counters in (True, False))
    assert capacity(with_partitions) == capacity(without)


@pytest.mark.parametrize(
    "text", ["1g.24gb", "1g.24gb+me", "1g.24gb-me", "1g.24gb+me.all", "9g.1tb*future", "é"]
)
def test_b027_profiles_that_nobody_knows_are_published(text: str) -> None:
    other = replace(H100_PROFILES[0], id=99, profile=text)
    node = inventory(gpu(profiles=(other, *H100_PROFILES[1:])))
    specs = _specs(node)
    assert violations(specs) == []
    texts = [
        device["attributes"]["profile"]["string"] for spec in specs for device in spec.get("devices", [])
    ]
    assert texts.count(text) == 7


def _specs(node: Inventory) -> list[dict[str, Any]]:
    offered = offered_devices(node, NodePolicy(mig=MigPolicy.DYNAMIC), {})
    counters = counter_sets(offered, {})
    devices = desired([published(device, node) for device in offered], [], counters)
    specs = slice_specs(devices, "node-1", "node-1", counters=counters)
    return [spec | {"pool": spec["pool"] | {"generation": 1}} for spec in specs]


def test_b029_sixteen_gpus_with_partitions_are_a_valid_pool() -> None:
    specs = _specs(inventory(*(gpu(bus) for bus in range(1, 17))))
    assert violations(specs) == []
    assert [len(spec.get("sharedCounters", ())) for spec in specs] == [8, 8, *[0] * 7]
    assert [len(spec.get("devices", ())) for spec in specs] == [0, 0, *[64] * 6, 32]
    assert not any("devices" in spec for spec in specs[:2])


def test_a_board_with_a_hundred_partitions_is_a_valid_pool() -> None:
    places = tuple(Placement(start, 1) for start in range(24))
    many: tuple[MigProfile, ...] = tuple(
        replace(H100_PROFILES[0], id=number, profile=f"1g.{number}gb", placements=places)
        for number in range(5)
    )
    specs = _specs(inventory(gpu(profiles=many)))
    assert violations(specs) == []
    assert [len(spec.get("devices", ())) for spec in specs] == [0, 64, 57]


def test_a_vanished_device_in_use_stands_last_of_its_gpu_and_takes_from_known_counters_only() -> None:
    first, second = gpu(0x17), gpu(0x65)
    node = inventory(first, second)
    before = offered_devices(node, NodePolicy(mig=MigPolicy.DYNAMIC), {})
    held = [published(device, node) for device in before if device.name.endswith(("17-00-0", "1g10gb-me-2"))]
    assert [device["name"] for device in held] == [
        "gpu-0000-17-00-0-mig-1g10gb-me-2",
        "gpu-0000-17-00-0",
        "gpu-0000-65-00-0-mig-1g10gb-me-2",
    ]
    after = inventory(replace(first, profiles=()), second)
    offered = offered_devices(after, NodePolicy(mig=MigPolicy.DYNAMIC), {})
    counters = counter_sets(offered, {}, held)
    devices = desired([published(device, after) for device in offered], held, counters)
    assert [device["name"] for device in devices][:3] == [
        "gpu-0000-17-00-0",
        "gpu-0000-17-00-0-mig-1g10gb-me-2",
        "gpu-0000-65-00-0-mig-1g10gb-6",
    ]
    assert not any("consumesCounters" in device for device in devices[:2])
    specs = slice_specs(devices, "n", "n", counters=counters)
    assert violations([spec | {"pool": spec["pool"] | {"generation": 1}} for spec in specs]) == []
