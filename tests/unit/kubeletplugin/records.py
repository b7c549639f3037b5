"""Claims as the store holds them, for tests."""

from __future__ import annotations

import uuid
from typing import Any

from driver.claim import ClaimReference
from driver.devices import Footprint
from driver.inventory import PciAddress
from kubeletplugin.store import ClaimRecord, ClaimState, HeldDevice


def held(name: str = "gpu-0000-65-00-0", pci: str = "0000:65:00.0", **more: Any) -> HeldDevice:
    values: dict[str, Any] = {
        "requests": ("gpu",),
        "pool": "node-1",
        "device": name,
        "cdi_device": f"gpudra.io/claim=x-{name}",
        "uuid": f"GPU-of-{pci}",
        "gpu_uuid": f"GPU-of-{pci}",
        "footprint": Footprint(PciAddress.parse(pci)),
        "published": {"name": name, "attributes": {"type": {"string": "gpu"}}},
        **more,
    }
    return HeldDevice(**values)


def record(
    *devices: HeldDevice,
    uid: str | None = None,
    state: ClaimState = ClaimState.PREPARED,
    name: str = "claim",
    boot_id: str = "boot-1",
) -> ClaimRecord:
    reference = ClaimReference("default" if name else "", name, uid or str(uuid.uuid4()))
    return ClaimRecord(reference, state, boot_id, 1_700_000_000.0, devices or (held(),))
