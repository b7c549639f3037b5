"""ResourceSlices as node plugins would publish them, for tests that need no node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.harness.claims import DRIVER


def offering_slice(name: str, profiles: Sequence[str]) -> dict[str, Any]:
    """A slice of the node ``name``: a whole GPU, and a MIG device of each profile."""
    devices = [_device("gpu-0", "gpu", "")]
    devices += [_device(f"gpu-0-mig-{number}", "mig", profile) for number, profile in enumerate(profiles)]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": DRIVER,
            "nodeName": name,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }


def _device(name: str, kind: str, profile: str) -> dict[str, Any]:
    return {"name": name, "attributes": {"type": {"string": kind}, "profile": {"string": profile}}}
