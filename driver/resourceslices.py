"""ResourceSlices: what the node publishes, as plain API values. Pure; generations are the publisher's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from driver.attributes import attributes, capacity
from driver.claim import DRIVER_NAME
from driver.devices import Device
from driver.inventory import Inventory
from driver.names import sort_key
from driver.quantity import parse_quantity

MAX_DEVICES = 128
"""Devices in a slice (Kubernetes API, ResourceSliceMaxDevices)."""
MAX_DEVICES_WITH_EXTRAS = 64
"""Devices in a slice in which any has taints or consumes counters."""


def published(device: Device, inventory: Inventory) -> dict[str, Any]:
    """A device as the API has it (``resource.k8s.io/v1`` Device)."""
    return {
        "name": device.name,
        "attributes": attributes(device, inventory),
        "capacity": capacity(device),
    }


def desired(current: Iterable[dict[str, Any]], retained: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The devices to publish, in the order of a pool: PCI address, then placement.

    ``retained`` are devices in use as they were published last: one that has vanished from ``current`` stays.
    """
    by_name = {device["name"]: device for device in retained}
    by_name.update({device["name"]: device for device in current})
    return sorted(by_name.values(), key=lambda device: sort_key(device["name"]))


def slice_specs(
    devices: Sequence[dict[str, Any]], node_name: str, pool_name: str, driver: str = DRIVER_NAME
) -> list[dict[str, Any]]:
    """The specs of the pool's slices, in order; ``pool.generation`` is left to the publisher.

    The size of a slice depends on the pool as a whole, so that devices do not move between slices when one of
    them gets a taint beside others that have it. A pool without devices is one slice without ``devices``: "no
    devices" is not "not published".
    """
    extras = any(device.get("taints") or device.get("consumesCounters") for device in devices)
    size = MAX_DEVICES_WITH_EXTRAS if extras else MAX_DEVICES
    chunks = [devices[start : start + size] for start in range(0, len(devices), size)] or [[]]
    specs = []
    for chunk in chunks:
        spec: dict[str, Any] = {
            "driver": driver,
            "nodeName": node_name,
            "pool": {"name": pool_name, "resourceSliceCount": len(chunks)},
        }
        if chunk:
            spec["devices"] = list(chunk)
        specs.append(spec)
    return specs


def differences(sent: Any, stored: Any, path: str = "") -> list[str]:
    """Where the stored form of a value differs in meaning from what was sent (``devices[0].taints``).

    Quantities compare by value; an absent key, ``null``, ``[]`` and ``{}`` are the same; a taint's
    ``timeAdded`` that the server filled in does not count. No difference: an empty list.
    """
    if _is_empty(sent) and _is_empty(stored):
        return []
    if isinstance(sent, Mapping) and isinstance(stored, Mapping):
        found = []
        for key in sorted(sent.keys() | stored.keys()):
            if key == "timeAdded" and key not in sent:
                continue
            found += differences(sent.get(key), stored.get(key), f"{path}.{key}" if path else key)
        return found
    if isinstance(sent, list | tuple) and isinstance(stored, list | tuple) and len(sent) == len(stored):
        return [
            difference
            for index, (one, other) in enumerate(zip(sent, stored, strict=True))
            for difference in differences(one, other, f"{path}[{index}]")
        ]
    if type(sent) is type(stored) and sent == stored:
        return []
    if _is_quantity(path) and isinstance(sent, str) and isinstance(stored, str):
        try:
            return [] if parse_quantity(sent) == parse_quantity(stored) else [path]
        except ValueError:
            return [path]
    return [path]


def semantically_equal(sent: Any, stored: Any) -> bool:
    """Whether the server stored what was sent."""
    return not differences(sent, stored)


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, Mapping | list | tuple) and not value)


def _is_quantity(path: str) -> bool:
    """Whether the value at this path of a slice's spec is a quantity: of a capacity or a counter."""
    keys = path.split(".")
    return any(key in ("capacity", "counters") for key in keys[:-1])
