"""Devices as ResourceSlices have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Device = Mapping[str, Any]


def value(device: Device, attribute: str) -> Any:
    """An attribute's value, whatever its type. Raises KeyError."""
    return next(iter(device["attributes"][attribute].values()))


def by_uuid(devices: Mapping[str, Device]) -> dict[str, Device]:
    """Devices by the UUID of their GPU or MIG device."""
    return {str(value(device, "uuid")): device for device in devices.values()}


def gpu_name(pci_bus_id: str) -> str:
    """The name of the device that is the whole GPU at this address."""
    return f"gpu-{pci_bus_id.replace(':', '-').replace('.', '-')}"
