"""ResourceSlices: what the node publishes, as plain API values. Pure; generations are the publisher's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from driver.attributes import attributes, capacity
from driver.claim import DRIVER_NAME
from driver.devices import Device
from driver.inventory import Inventory
from driver.names import sort_key

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
