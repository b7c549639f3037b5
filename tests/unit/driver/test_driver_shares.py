"""Shares: what is published of shareable devices is what the API server accepts and a claim can live with."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.attributes import CAPACITIES
from driver.devices import Device, offered_devices
from driver.discovery import discover
from driver.hostfiles import HostRoots
from driver.inventory import Inventory
from driver.nodepolicy import NodePolicy, PolicyEntry
from driver.nvml import Nvml
from driver.quantity import parse_quantity
from driver.resourceslices import (
    closed,
    counter_sets,
    desired,
    published,
    slice_specs,
    way_of_sharing,
)
from driver.shares import MOST_PLACES, ShareMode, Shares, request_policies
from nvmlsim.models import models
from nvmlsim.node import SimulatedNode
from tests.unit.driver.inventories import gpu, inventory, mig
from tests.unit.driver.slicevalidator import violations

MODES = [
    Shares(ShareMode.PLACES, 2),
    Shares(ShareMode.PLACES, 10),
    Shares(ShareMode.PLACES, MOST_PLACES),
    Shares(ShareMode.MEMORY),
    Shares(ShareMode.UNLIMITED),
]
MIB = 1024 * 1024

some_shares = st.one_of(
    st.builds(Shares, st.just(ShareMode.PLACES), st.integers(2, MOST_PLACES)),
    st.sampled_from([Shares(ShareMode.MEMORY), Shares(ShareMode.UNLIMITED)]),
)


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Inventory:
    """A node with a GPU of every model, in MIG mode where it has one, so that everything can be offered."""
    root = tmp_path_factory.mktemp("models")
    known = models()
    simulated = SimulatedNode.create(root, "t4x4", gpus=[{"model": key} for key in known])
    for number, model in enumerate(known.values()):
        if model["mig_profile_key"]:
            simulated.set_mig_mode(number)
    nvml = Nvml(simulated.library_path)
    found = discover(nvml, HostRoots(root / "proc", root / "sys"))
    nvml.close()
    assert len(found.gpus) == len(known)
    return found


def shared(node: Inventory, shares: Shares) -> tuple[Device, ...]:
    """All devices of a node, whole GPUs and MIG devices, shared in one way."""
    profiles = {one.profile for gpu in node.gpus for one in gpu.profiles} | {
        one.profile for gpu in node.gpus for one in gpu.mig_devices
    }
    entry = PolicyEntry(shares=shares, profile_shares=tuple((name, shares) for name in profiles))
    return offered_devices(node, NodePolicy(entries=(entry,)), {})


def specs(node: Inventory, devices: tuple[Device, ...], *, close: bool = False) -> list[dict[str, Any]]:
    counters = counter_sets(devices, {})
    every = [published(device, node) for device in devices]
    found = slice_specs(
        desired([closed(one) for one in every] if close else every, []), "n1", "n1", counters=counters
    )
    for spec in found:
        spec["pool"]["generation"] = 1
    return found


@pytest.mark.parametrize("shares", MODES, ids=str)
def test_b102_all_models_and_their_partitions_have_valid_request_policies(
    every: Inventory, shares: Shares
) -> None:
    devices = shared(every, shares)
    assert {device.profile is None for device in devices} == {True, False}
    assert all(device.shares == shares for device in devices)
    found = specs(every, devices)
    assert violations(found) == []
    for device in (device for spec in found for device in spec.get("devices", [])):
        assert device["allowMultipleAllocations"] is True
        assert device["capacity"].keys() == {one.name for one in CAPACITIES}
        taken = {name: value["requestPolicy"]["default"] for name, value in device["capacity"].items()}
        # What a pod gets that asks for nothing is one share, and not the device.
        assert taken.pop("shares") == ("1" if shares.mode is ShareMode.PLACES else "0")
        assert taken.pop("memory") == ("1Gi" if shares.mode is ShareMode.MEMORY else "0").replace(
            "1Gi", "1024Mi"
        )
        assert set(taken.values()) == {"0"}


@given(some_shares, st.integers(0, 1 << 42))
def test_request_policies_fit_whatever_the_memory_is(shares: Shares, size: int) -> None:
    node = inventory(gpu(memory_bytes=size, profiles=()))
    devices = shared(node, shares)
    found = specs(node, devices)
    assert violations(found) == []
    (device,) = found[0]["devices"]
    if shares.needs_more_than(size):
        assert "allowMultipleAllocations" not in device
        assert size < 2 * MIB
    else:
        assert device["allowMultipleAllocations"] is True
        valid = device["capacity"]["memory"]["requestPolicy"].get("validRange")
        # Only where NVML tells no memory, or less than a step, nothing of it can be asked for.
        assert (valid is None) == (size < MIB)
        if valid is not None:
            assert size - MIB < parse_quantity(valid["max"]) <= size
    assert violations(specs(node, devices, close=True)) == []


@pytest.mark.parametrize(
    ("shares", "taken"),
    [
        (Shares(ShareMode.PLACES, 5), {"shares": ("1", "5"), "memory": ("0", "81920Mi")}),
        (Shares(ShareMode.MEMORY), {"memory": ("1024Mi", "81920Mi")}),
        (Shares(ShareMode.UNLIMITED), {"memory": ("0", "81920Mi")}),
    ],
)
def test_what_a_claim_takes_by_default_and_at_most(shares: Shares, taken: dict[str, tuple[str, str]]) -> None:
    quantities = {"memory": "80Gi", "shares": str(shares.places), "encoders": "3"}
    policies = request_policies(shares, quantities)
    assert policies.keys() == quantities.keys()
    ranges = {
        name: (policy["default"], policy["validRange"]["max"])
        for name, policy in policies.items()
        if "validRange" in policy
    }
    assert ranges == taken
    assert policies["encoders"] == {"default": "0"}


def test_a_small_device_hands_out_no_more_memory_than_it_has() -> None:
    policy = request_policies(Shares(ShareMode.MEMORY), {"memory": "512Mi"})["memory"]
    assert policy == {"default": "512Mi", "validRange": {"min": "1Mi", "max": "512Mi", "step": "1Mi"}}


def test_existing_mig_devices_are_shared_by_their_profile() -> None:
    node = inventory(gpu(mig_enabled=True, resetless_mig=False, profiles=(), mig_devices=(mig(0), mig(1))))
    entry = PolicyEntry(profile_shares=(("1g.10gb", Shares(ShareMode.PLACES, 3)),))
    devices = offered_devices(node, NodePolicy(entries=(entry,)), {})
    assert [device.shares for device in devices] == [Shares(ShareMode.PLACES, 3)] * 2
    assert violations(specs(node, devices)) == []
    # A server that does not store it gets no shared device.
    alone = offered_devices(node, NodePolicy(entries=(entry,)), {}, shares=False)
    assert [device.shares for device in alone] == [None, None]


def test_what_claims_rely_on_is_the_way_of_sharing_and_nothing_else() -> None:
    node = inventory(gpu(profiles=()))
    ways = [way_of_sharing(specs(node, shared(node, shares))[0]["devices"][0]) for shares in MODES]
    exclusive = published(offered_devices(node, NodePolicy(), {})[0], node)
    ways.append(way_of_sharing(exclusive))
    assert all(one != other for number, one in enumerate(ways) for other in ways[:number])
    # An earlier version published fewer capacities; a device that it gave out alone is alone all the same.
    fewer = {**exclusive, "capacity": {"memory": exclusive["capacity"]["memory"]}}
    assert way_of_sharing(fewer) == way_of_sharing(exclusive)


def test_a_closed_device_stays_shared_and_has_no_place_left() -> None:
    node = inventory(gpu(profiles=()))
    for shares in MODES:
        (device,) = specs(node, shared(node, shares), close=True)[0]["devices"]
        assert device["allowMultipleAllocations"] is True
        places = device["capacity"]["shares"]
        assert parse_quantity(places["requestPolicy"]["default"]) > parse_quantity(places["value"])
    exclusive = published(offered_devices(node, NodePolicy(), {})[0], node)
    assert closed(exclusive) == exclusive
