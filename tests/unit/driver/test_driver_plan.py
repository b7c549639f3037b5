"""Claims and plans as tables: what is read, chosen, refused."""

from __future__ import annotations

from typing import Any

import pytest

from driver.claim import AllocatedClaim, ClaimError, ClaimReference, read_claim
from driver.configuration import GpuConfig, MigDeviceConfig
from driver.devices import Device
from driver.inventory import Gpu, MigDevice, PciAddress, Placement
from driver.plan import (
    Holding,
    PreparePlan,
    asked_interval,
    check_conflicts,
    check_intervals,
    plan_prepare,
)
from driver.timeslicing import Interval

REFERENCE = ClaimReference("team", "training", "uid-1")
VERSION = "resource.nvidia.com/v1beta1"
PCI = [PciAddress(0, bus, 0, 0) for bus in (0x1B, 0x43)]
ONE, OTHER = (f"0b2d3a44-1c56-4f0e-9d5a-00000000000{number}" for number in (1, 2))
GPUS = [Gpu(uuid=f"GPU-{number}", pci=pci, index=number) for number, pci in enumerate(PCI)]


def mig(gpu: int, start: int, size: int, compute: Placement | None = None, ci: int = 0) -> Device:
    partition = MigDevice(
        uuid=f"MIG-{gpu}-{start}-{ci}",
        profile="3g.40gb",
        gpu_instance_id=1 + start // 4,
        compute_instance_id=ci,
        placement=Placement(start, size),
        compute_placement=compute,
    )
    return Device(f"mig-{gpu}-{start}-{ci}", GPUS[gpu], partition)


WHOLE = [Device(f"gpu-{number}", gpu) for number, gpu in enumerate(GPUS)]
LOW, HIGH = mig(0, 0, 4), mig(0, 4, 4)
FIRST, SECOND = mig(1, 0, 4, Placement(0, 1), 0), mig(1, 0, 4, Placement(1, 1), 1)
DEVICES = {device.name: device for device in (*WHOLE, LOW, HIGH, FIRST, SECOND)}


def entry(device: str, request: str = "gpu", **more: Any) -> dict[str, Any]:
    return {"request": request, "driver": "gpu.nvidia.com", "pool": "node-1", "device": device, **more}


def config(
    kind: str = "GpuConfig", requests: tuple[str, ...] = (), driver: str = "gpu.nvidia.com", **fields: Any
) -> Any:
    return {
        "source": "FromClaim",
        "requests": list(requests),
        "opaque": {"driver": driver, "parameters": {"apiVersion": VERSION, "kind": kind, **fields}},
    }


def claim(*results: dict[str, Any], configs: Any = (), uid: str = "uid-1") -> AllocatedClaim:
    return read_claim(REFERENCE, stored(*results, configs=configs, uid=uid))


def stored(*results: dict[str, Any], configs: Any = (), uid: str = "uid-1") -> dict[str, Any]:
    return {
        "metadata": {"namespace": "team", "name": "training", "uid": uid},
        "status": {
            "allocation": {"devices": {"results": list(results), "config": list(configs)}},
            "reservedFor": [{"resource": "pods", "name": "a", "uid": "p"}],
        },
    }


def plan(*results: dict[str, Any], configs: Any = ()) -> PreparePlan:
    return plan_prepare(claim(*results, configs=configs), DEVICES, "node-1")


@pytest.mark.parametrize("uid", ["", "../x"])
def test_a_claim_whose_uid_names_no_file_is_refused(uid: str) -> None:
    reference = ClaimReference("team", "training", uid)
    with pytest.raises(ClaimError, match="allowed are 1 to 128 letters") as raised:
        read_claim(reference, stored(entry("gpu-0"), uid=uid))
    assert raised.value.cause == "BadUid"
    assert repr(uid) in str(raised.value)


@pytest.mark.parametrize(
    ("change", "cause", "words"),
    [
        ({"metadata": {"uid": "uid-2"}}, "Replaced", ["uid-1", "uid-2"]),
        ({"status": {}}, "NotAllocated", ["team/training", "uid-1"]),
        ({"status": None}, "NotAllocated", ["team/training"]),
        ({"status": {"allocation": {}, "reservedFor": []}}, "NotAllocated", []),
        ({"status": {"allocation": {"devices": {"results": []}}}}, "NotReserved", ["reservedFor"]),
    ],
)
def test_b049_a_claim_that_is_not_ready_is_refused(
    change: dict[str, Any], cause: str, words: list[str]
) -> None:
    with pytest.raises(ClaimError) as raised:
        read_claim(REFERENCE, {**stored(entry("gpu-0")), **change})
    assert raised.value.cause == cause
    for word in words:
        assert word in str(raised.value)


def test_results_and_configs_of_other_drivers_are_not_looked_at() -> None:
    foreign = {"request": "nic", "driver": "nic.example.com", "pool": "x", "device": "y"}
    broken = {"opaque": {"driver": "nic.example.com", "parameters": "not even an object"}}
    read = claim(foreign, entry("gpu-0"), configs=[broken])
    assert [result.device for result in read.results] == ["gpu-0"]
    assert read.configs == ()


def test_b045_no_config_means_defaults_and_a_foreign_one_is_not_parsed() -> None:
    planned = plan(entry("gpu-0"), configs=[config("Nonsense", driver="nic.example.com")])
    assert [item.config for item in planned.devices] == [None]


def test_requests_are_base_names_and_one_device_is_listed_once() -> None:
    planned = plan(
        entry("gpu-0", "main/large"), entry("gpu-1", "aux"), entry("gpu-0", "watch", adminAccess=True)
    )
    assert [(item.device.name, item.requests, item.admin_access) for item in planned.devices] == [
        ("gpu-0", ("main", "watch"), False),
        ("gpu-1", ("aux",), False),
    ]


def test_shares_of_one_device_stay_apart() -> None:
    planned = plan(
        entry("gpu-0", shareID=ONE, consumedCapacity={"memory": "2Gi", "places": "1"}),
        entry("gpu-0", shareID=OTHER),
    )
    assert [(item.share_id, item.memory_bytes) for item in planned.devices] == [(ONE, 2 << 30), (OTHER, None)]
    check_conflicts(planned, [])


@pytest.mark.parametrize(
    ("more", "granted"),
    [
        ({"shareID": ONE}, None),
        ({"shareID": ONE, "consumedCapacity": None}, None),
        ({"shareID": ONE, "consumedCapacity": {"places": "1"}}, None),
        ({"shareID": ONE, "consumedCapacity": {"memory": "0"}}, None),
        ({"shareID": ONE, "consumedCapacity": {"memory": "40Gi"}}, 40 << 30),
        ({"shareID": ONE, "consumedCapacity": {"memory": "5e9"}}, 5_000_000_000),
        ({"shareID": ONE, "consumedCapacity": {"memory": "1Gi"}, "adminAccess": True}, None),
        ({"consumedCapacity": {"memory": "40Gi"}}, None),
    ],
)
def test_the_memory_that_a_share_is_granted(more: dict[str, Any], granted: int | None) -> None:
    assert [result.memory_bytes for result in claim(entry("gpu-0", **more)).results] == [granted]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"shareID": "../x"}, "shareID of device gpu-0 .*'../x' is no UUID"),
        ({"shareID": ONE.upper()}, "shareID of device gpu-0 .*is no UUID in lower case"),
        ({"shareID": 7}, "shareID of device gpu-0 .*7 is no UUID"),
        ({"shareID": ONE, "consumedCapacity": ["memory"]}, r"consumedCapacity of .*is no map"),
        ({"shareID": ONE, "consumedCapacity": {"memory": "much"}}, "consumedCapacity.memory of .*'much'"),
        ({"shareID": ONE, "consumedCapacity": {"memory": -1}}, "consumedCapacity.memory of .*below 0"),
    ],
)
def test_b049_a_share_that_no_scheduler_would_write_is_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ClaimError, match=f"claim team/training .*{words}") as raised:
        claim(entry("gpu-0", **more))
    assert raised.value.cause == "BadAllocation"


def test_gpus_to_lock_are_sorted_and_without_admin_access() -> None:
    assert plan(entry("gpu-1", "a"), entry("gpu-0", "b"), entry("mig-0-0-0", "c")).gpus == (PCI[0], PCI[1])
    assert plan(entry("gpu-0", adminAccess=True)).gpus == ()


@pytest.mark.parametrize(
    ("result", "cause", "words"),
    [
        ({**entry("gpu-0"), "pool": "node-2"}, "OtherNode", ["node-2", "node-1", "gpu"]),
        (entry("gpu-7"), "UnknownDevice", ["gpu-7", "team/training", "not on this node"]),
    ],
)
def test_a_result_that_is_not_of_this_node_is_refused(
    result: dict[str, Any], cause: str, words: list[str]
) -> None:
    with pytest.raises(ClaimError) as raised:
        plan(result)
    assert raised.value.cause == cause
    for word in words:
        assert word in str(raised.value)


GPU, MIG = config(), config("MigDeviceConfig")


@pytest.mark.parametrize(
    ("configs", "device", "chosen"),
    [
        ([], "gpu-0", None),
        ([GPU], "gpu-0", GpuConfig),
        ([MIG], "gpu-0", None),
        ([GPU], "mig-0-0-0", None),
        ([GPU, MIG], "mig-0-0-0", MigDeviceConfig),
        ([config(requests=("other",))], "gpu-0", None),
        ([config(requests=("gpu",))], "gpu-0", GpuConfig),
        ([config(requests=("gpu/small",))], "gpu-0", None),
    ],
)
def test_the_last_config_that_is_meant_for_a_device_is_chosen(configs: Any, device: str, chosen: Any) -> None:
    found = plan(entry(device), configs=configs).devices[0].config
    assert found is None if chosen is None else isinstance(found, chosen)


@pytest.mark.parametrize("requests", [("gpu",), ("gpu/small",)])
def test_a_config_may_name_the_request_or_the_chosen_sub_request(requests: tuple[str, ...]) -> None:
    planned = plan(entry("gpu-0", "gpu/small"), configs=[config(requests=requests)])
    assert isinstance(planned.devices[0].config, GpuConfig)


@pytest.mark.parametrize(
    ("kind", "device", "right"),
    [("MigDeviceConfig", "gpu-0", "GpuConfig"), ("GpuConfig", "mig-0-0-0", "MigDeviceConfig")],
)
def test_a_config_for_a_request_must_be_of_its_devices_kind(kind: str, device: str, right: str) -> None:
    with pytest.raises(
        ClaimError, match=f"{kind} cannot be applied to device {device}.*use {right}"
    ) as raised:
        plan(entry(device), configs=[config(kind, requests=("gpu",))])
    assert raised.value.cause == "BadConfig"


def test_b042_a_bad_config_is_named_by_its_place_in_the_claim() -> None:
    sharing = {"strategy": "TimeSlicing", "timeSlicingConfig": {"intervall": "Short"}}
    with pytest.raises(ClaimError, match=r"config\[1\]\.opaque\.parameters.*timeSlicingConfig\.intervall"):
        plan(entry("gpu-0"), configs=[GPU, config(sharing=sharing)])


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        (WHOLE[0], WHOLE[0], True),
        (WHOLE[0], WHOLE[1], False),
        (WHOLE[0], LOW, True),
        (WHOLE[0], FIRST, False),
        (LOW, HIGH, False),
        (LOW, LOW, True),
        (LOW, mig(0, 2, 2), True),
        (FIRST, SECOND, False),
        (FIRST, FIRST, True),
        (FIRST, mig(1, 0, 4), True),
        (FIRST, mig(1, 0, 2), True),
    ],
)
def test_overlap_is_geometry_and_symmetric(one: Device, other: Device, overlap: bool) -> None:
    assert one.footprint.overlaps(other.footprint) is overlap
    assert other.footprint.overlaps(one.footprint) is overlap


def holding(device: Device, uid: str = "uid-9", *, admin: bool = False, share: bool = False) -> Holding:
    reference = ClaimReference("other", "inference", uid)
    return Holding(reference, device.name, device.footprint, admin, is_share=share)


@pytest.mark.parametrize(
    ("wanted", "share_id", "held", "is_share", "words"),
    [
        (WHOLE[0], ONE, WHOLE[0], True, ""),
        (LOW, ONE, LOW, True, ""),
        (LOW, ONE, HIGH, False, ""),
        (WHOLE[0], ONE, WHOLE[0], False, "device gpu-0, which it has a share of, is in use as a whole by"),
        (WHOLE[0], None, WHOLE[0], True, "device gpu-0, which it has as a whole, is in use in shares by"),
        (LOW, ONE, LOW, False, "mig-0-0-0, which it has a share of, is in use as a whole by"),
        (LOW, ONE, WHOLE[0], True, "device mig-0-0-0 overlaps gpu-0, which is in use by"),
        (WHOLE[0], ONE, LOW, True, "device gpu-0 overlaps mig-0-0-0, which is in use by"),
        (WHOLE[0], None, WHOLE[0], False, "device gpu-0 is in use by"),
    ],
)
def test_b104_only_shares_of_one_device_go_together(
    wanted: Device, share_id: str | None, held: Device, is_share: bool, words: str
) -> None:
    planned = plan(entry(wanted.name, shareID=share_id))
    holdings = [holding(held, share=is_share)]
    if not words:
        check_conflicts(planned, holdings)
        return
    with pytest.raises(ClaimError, match=f"claim team/training .*{words} claim other/inference") as raised:
        check_conflicts(planned, holdings)
    assert raised.value.cause == "InUse"


@pytest.mark.parametrize("share_id", [None, ONE])
def test_a_claim_cannot_have_a_share_of_what_it_has_otherwise(share_id: str | None) -> None:
    other = entry("gpu-0" if share_id is None else "mig-0-0-0", "a", shareID=share_id)
    with pytest.raises(ClaimError, match=r"its devices .* overlap"):
        check_conflicts(plan(other, entry("gpu-0", "b", shareID=OTHER)), [])


def test_b050_a_held_device_is_refused_naming_its_holder() -> None:
    with pytest.raises(ClaimError) as raised:
        check_conflicts(plan(entry("gpu-0")), [holding(LOW)])
    assert raised.value.cause == "InUse"
    for word in ("gpu-0", LOW.name, "other/inference", "uid-9", "team/training"):
        assert word in str(raised.value)


@pytest.mark.parametrize(
    "holdings",
    [[], [holding(WHOLE[1])], [holding(WHOLE[0], "uid-1")], [holding(WHOLE[0], admin=True)]],
    ids=["nothing held", "another GPU", "the claim itself", "admin access"],
)
def test_what_is_not_in_the_way_is_no_conflict(holdings: list[Holding]) -> None:
    check_conflicts(plan(entry("gpu-0")), holdings)


def test_b151_admin_access_never_conflicts() -> None:
    check_conflicts(plan(entry("gpu-0", adminAccess=True)), [holding(WHOLE[0])])


def test_a_claim_cannot_hold_overlapping_devices() -> None:
    with pytest.raises(ClaimError, match="gpu-0 and mig-0-0-0 overlap"):
        check_conflicts(plan(entry("gpu-0", "a"), entry("mig-0-0-0", "b")), [])


def test_b151_admin_access_to_all_devices_gets_those_that_are_there() -> None:
    planned = plan(entry("gpu-0", adminAccess=True), entry("gpu-7", adminAccess=True))
    assert [item.device.name for item in planned.devices] == ["gpu-0"]
    with pytest.raises(ClaimError, match="none of its devices"):
        plan(entry("gpu-7", adminAccess=True))


def test_a_claim_without_devices_of_this_driver_is_refused() -> None:
    with pytest.raises(ClaimError, match="no device of this driver"):
        plan({"request": "nic", "driver": "nic.example.com", "pool": "x", "device": "y"})


def slicing(interval: str | None, *requests: str, source: str = "FromClaim") -> Any:
    """An entry that asks for an interval; without one, an entry that has no sharing."""
    fields: dict[str, Any] = {"sharing": {"timeSlicingConfig": {"interval": interval}}} if interval else {}
    return {**config(requests=requests, **fields), "source": source}


@pytest.mark.parametrize(
    ("configs", "interval"),
    [
        ([], None),
        ([slicing(None)], None),
        ([config(sharing={})], "Default"),
        ([slicing("Short", source="FromClass")], "Short"),
        ([slicing("Short", source="FromClass"), slicing("Long")], "Long"),
        ([slicing("Short"), slicing(None)], None),
        ([slicing("Long", "gpu"), slicing("Short", "gpu/small")], "Short"),
        ([slicing("Short", "gpu/small"), slicing("Long", "gpu/other")], "Short"),
        ([slicing("Medium", "other")], None),
    ],
)
def test_the_interval_of_the_last_config_for_a_device_is_planned(
    configs: list[Any], interval: str | None
) -> None:
    result = entry("gpu-0", "gpu/small")
    assert plan(result, configs=configs).devices[0].interval == interval
    allocated = claim(result, configs=configs)
    assert asked_interval(allocated, allocated.results[0], WHOLE[0]) == interval


def test_each_gpu_has_the_interval_of_its_own_request() -> None:
    planned = plan(entry("gpu-0", "a"), entry("gpu-1", "b"), configs=[slicing("Short", "a")])
    assert [item.interval for item in planned.devices] == ["Short", None]


def test_b100_admin_access_plans_no_interval() -> None:
    watching = entry("gpu-0", "watch", adminAccess=True)
    assert plan(watching, configs=[slicing("Long")]).devices[0].interval is None
    for results in ([entry("gpu-0"), watching], [watching, entry("gpu-0")]):
        both = plan(*results, configs=[slicing("Long", "gpu"), slicing("Short", "watch")])
        assert [item.interval for item in both.devices] == ["Long"]


def test_b044_a_mig_device_plans_no_interval() -> None:
    time_slicing = config("MigDeviceConfig", sharing={"strategy": "TimeSlicing"})
    assert plan(entry(LOW.name), configs=[time_slicing]).devices[0].interval is None


def slice_held(device: Device, interval: str | None, uid: str = "uid-9", *, admin: bool = False) -> Holding:
    reference = ClaimReference("other", "inference", uid)
    asked = Interval(interval) if interval else None
    return Holding(reference, device.name, device.footprint, admin, asked)


@pytest.mark.parametrize(
    ("interval", "held"),
    [
        ("Long", []),
        ("Long", [slice_held(WHOLE[0], "Long")]),
        ("Long", [slice_held(WHOLE[0], None)]),
        (None, [slice_held(WHOLE[0], "Long")]),
        ("Long", [slice_held(WHOLE[1], "Short")]),
        ("Long", [slice_held(WHOLE[0], "Short", "uid-1")]),
        ("Long", [slice_held(WHOLE[0], "Short", admin=True)]),
    ],
    ids=[
        "alone",
        "the same",
        "asks for none",
        "who asks for none",
        "another GPU",
        "the claim itself",
        "admin",
    ],
)
def test_intervals_that_go_together(interval: str | None, held: list[Holding]) -> None:
    check_intervals(plan(entry("gpu-0", shareID=ONE), configs=[slicing(interval)]), held)


@pytest.mark.parametrize(
    ("first", "second"), [("Short", "Long"), ("Default", "Short"), ("Medium", "Default")]
)
def test_b101_another_interval_than_the_first_claims_is_refused_naming_both(first: str, second: str) -> None:
    planned = plan(entry("gpu-0", shareID=OTHER), configs=[slicing(second)])
    held = [slice_held(WHOLE[0], None, "uid-8"), slice_held(WHOLE[0], first)]
    with pytest.raises(ClaimError) as raised:
        check_intervals(planned, held)
    assert raised.value.cause == "IntervalInUse"
    for word in ("team/training", f"interval {second}", str(PCI[0]), f"interval {first}", "other/inference"):
        assert word in str(raised.value)


def test_b101_a_claim_cannot_ask_for_two_intervals_of_one_gpu() -> None:
    shares = [entry("gpu-0", "a", shareID=ONE), entry("gpu-0", "b", shareID=OTHER)]
    with pytest.raises(ClaimError, match=r"intervals Short and Long on GPU 0000:1b:00\.0"):
        check_intervals(plan(*shares, configs=[slicing("Short", "a"), slicing("Long", "b")]), [])
    check_intervals(plan(*shares, configs=[slicing("Short", "a")]), [])
