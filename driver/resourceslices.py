"""ResourceSlices: what the node publishes, as plain API values. Pure; generations are the publisher's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from driver.attributes import attributes, capacity
from driver.claim import DRIVER_NAME
from driver.counters import MAX_COUNTER_SETS, CounterLayout, counter_set, values
from driver.devices import Device, OwnInstances
from driver.inventory import Inventory, PciAddress
from driver.migoffer import engines_of, foreign_instances
from driver.names import gpu_name, gpu_of
from driver.shares import SHARES

_NOWHERE = PciAddress(0, 0, 0, 0)

MAX_DEVICES = 128
"""Devices in a slice (Kubernetes API, ResourceSliceMaxDevices)."""
MAX_DEVICES_WITH_EXTRAS = 64
"""Devices in a slice in which any has taints or consumes counters."""


def published(device: Device, inventory: Inventory) -> dict[str, Any]:
    """A device as the API has it (``resource.k8s.io/v1`` Device)."""
    entry: dict[str, Any] = {
        "name": device.name,
        "attributes": attributes(device, inventory),
        "capacity": capacity(device),
    }
    if device.shares is not None:
        entry["allowMultipleAllocations"] = True
    if device.counters:
        counter_set_name = gpu_name(device.gpu.pci)
        entry["consumesCounters"] = [
            {"counterSet": counter_set_name, "counters": values(dict(device.counters))}
        ]
    return entry


def way_of_sharing(entry: Mapping[str, Any]) -> object:
    """What claims may rely on while they share a device, of a device as the API has it; equal if the same."""
    policies = {
        name: value["requestPolicy"]
        for name, value in entry.get("capacity", {}).items()
        if "requestPolicy" in value
    }
    return entry.get("allowMultipleAllocations", False), policies


def closed(entry: dict[str, Any]) -> dict[str, Any]:
    """A device in use that is not on offer any more: whoever has a share of it keeps it, nobody gets another.

    It stays a shared one, or it could be given out as a whole. What a claim takes by default of its places is
    more than there are.
    """
    if not entry.get("allowMultipleAllocations"):
        return entry
    none_left = {"value": "0", "requestPolicy": {"default": "1"}}
    return {**entry, "capacity": {**entry["capacity"], SHARES: none_left}}


def counter_sets(
    offered: Iterable[Device], own_instances: OwnInstances, held: Sequence[dict[str, Any]] = ()
) -> list[dict[str, Any]]:
    """The counter sets that the offered devices take from, as the API has them, by PCI address.

    ``held`` are the devices in use, as published.
    """
    gpus = {device.gpu.pci: device.gpu for device in offered if device.counters}
    sets = []
    for pci, gpu in sorted(gpus.items()):
        foreign = foreign_instances(gpu, own_instances.get(pci, frozenset()))
        totals = CounterLayout.of(gpu).beside(engines_of(gpu, instance) for instance in foreign)
        sets.append(counter_set(gpu_name(pci), totals, held))
    return sets


def desired(
    current: Iterable[dict[str, Any]],
    retained: Iterable[dict[str, Any]],
    counters: Iterable[dict[str, Any]] = (),
) -> list[dict[str, Any]]:
    """The devices to publish: the ``current`` ones in their order, and those in use that are gone from them.

    ``retained`` are devices in use as they were published last. One that has vanished from ``current`` stays,
    after the others of its GPU. It takes only from counters that there are now: a device that takes from one
    that is not published makes the whole pool invalid.
    """
    known = {entry["name"]: set(entry["counters"]) for entry in counters}
    by_name = {device["name"]: _with_known_counters(device, known) for device in retained}
    offered = {device["name"]: device for device in current}
    by_name |= offered
    order = {name: number for number, name in enumerate(offered)}

    def place(name: str) -> tuple[bool, PciAddress, bool, int, str]:
        pci = gpu_of(name)
        vanished = name not in order
        return pci is None, pci or _NOWHERE, vanished, order.get(name, 0), name

    return [by_name[name] for name in sorted(by_name, key=place)]


def slice_specs(
    devices: Sequence[dict[str, Any]],
    node_name: str,
    pool_name: str,
    driver: str = DRIVER_NAME,
    counters: Sequence[dict[str, Any]] = (),
) -> list[dict[str, Any]]:
    """The specs of the pool's slices, in order; ``pool.generation`` is left to the publisher.

    Slices of counter sets come first. The size of a slice
    depends on the pool as a whole, so that devices do not move between slices when one of them gets a taint
    beside others that have it. A pool without devices is one slice without ``devices``: "no devices" is not
    "not published".
    """
    extras = any(device.get("taints") or device.get("consumesCounters") for device in devices)
    size = MAX_DEVICES_WITH_EXTRAS if extras else MAX_DEVICES
    contents = [{"sharedCounters": chunk} for chunk in _chunks(counters, MAX_COUNTER_SETS)]
    contents += [{"devices": chunk} for chunk in _chunks(devices, size)]
    return [
        {
            "driver": driver,
            "nodeName": node_name,
            "pool": {"name": pool_name, "resourceSliceCount": len(contents) or 1},
            **content,
        }
        for content in contents or [{}]
    ]


def _chunks(entries: Sequence[dict[str, Any]], size: int) -> list[list[dict[str, Any]]]:
    return [list(entries[start : start + size]) for start in range(0, len(entries), size)]


def _with_known_counters(device: dict[str, Any], known: Mapping[str, set[str]]) -> dict[str, Any]:
    if "consumesCounters" not in device:
        return device
    kept = [
        {
            "counterSet": entry["counterSet"],
            "counters": {
                name: value
                for name, value in entry["counters"].items()
                if name in known.get(entry["counterSet"], ())
            },
        }
        for entry in device["consumesCounters"]
    ]
    kept = [entry for entry in kept if entry["counters"]]
    rest = {key: value for key, value in device.items() if key != "consumesCounters"}
    return rest | ({"consumesCounters": kept} if kept else {})
