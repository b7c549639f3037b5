"""What the nodes offer, of which only the MIG profiles matter here: a digest of each ResourceSlice."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from driver.claim import DRIVER_NAME
from kube.resources import Object

_PROFILES = "profiles"


def digest(resource_slice: Object) -> Object:
    """The slice's name, its version and the MIG profiles of its devices, in some hundred bytes.

    A cluster of a thousand nodes has gigabytes of slices.
    """
    metadata = resource_slice["metadata"]
    devices = (resource_slice.get("spec") or {}).get("devices") or ()
    profiles = {profile for device in devices if (profile := _profile(device))}
    return {
        "metadata": {"name": metadata["name"], "resourceVersion": metadata["resourceVersion"]},
        _PROFILES: tuple(sorted(map(sys.intern, profiles))),
    }


def profiles_on_offer(digests: Iterable[Object]) -> frozenset[str]:
    """The MIG profiles of all slices together."""
    return frozenset(profile for each in digests for profile in each[_PROFILES])


def _profile(device: Object) -> str:
    """The MIG profile of a device; empty for a whole GPU."""
    return _text(device, "profile") if _text(device, "type") == "mig" else ""


def _text(device: Object, name: str) -> str:
    attributes = device.get("attributes") or {}
    # A name without a domain is in the driver's, which may also be written out.
    value = attributes.get(name) or attributes.get(f"{DRIVER_NAME}/{name}") or {}
    return str(value.get("string", ""))
