from __future__ import annotations

import pytest

from driver.devices import known_devices, offered_devices
from driver.exclusion import Exclusion, ExclusionError
from driver.migoffer import MigPolicy
from tests.unit.driver.inventories import gpu, inventory, mig

_FIRST = gpu(0x17, index=0)
_SECOND = gpu(0x65, index=1, product_name="Tesla T4", mig_enabled=True, mig_devices=(mig(),))


@pytest.mark.parametrize(
    ("entry", "left"),
    [
        (_FIRST.uuid, ["gpu-0000-65-00-0-mig-1g10gb-0"]),
        (_FIRST.uuid.upper(), ["gpu-0000-65-00-0-mig-1g10gb-0"]),
        ("0000:17:00.0", ["gpu-0000-65-00-0-mig-1g10gb-0"]),
        ("00000000:65:00.0", ["gpu-0000-17-00-0"]),
        ("1", ["gpu-0000-17-00-0"]),
        ("T4", ["gpu-0000-17-00-0"]),
        ("^NVIDIA .*H100", ["gpu-0000-65-00-0-mig-1g10gb-0"]),
        ("17", ["gpu-0000-17-00-0", "gpu-0000-65-00-0-mig-1g10gb-0"]),
    ],
)
def test_b014_excluded_gpus_are_not_offered_in_any_form(entry: str, left: list[str]) -> None:
    devices = offered_devices(inventory(_FIRST, _SECOND), Exclusion.parse([entry]), {}, MigPolicy.STATIC)
    assert [device.name for device in devices] == left


def test_b075_a_claim_may_name_excluded_gpus_and_whole_gpus_in_mig_mode() -> None:
    named = known_devices(inventory(_FIRST, _SECOND), {})
    assert [name for name, device in named.items() if device.partition is None] == [
        "gpu-0000-17-00-0",
        "gpu-0000-65-00-0",
        "gpu-0000-65-00-0-mig-1g10gb-0",
    ]


@pytest.mark.parametrize("entry", ["", "  ", "Tesla (T4", "0000:65:00", ":65:00.0", "MIG-4f0", "*"])
def test_b014_an_invalid_entry_is_named(entry: str) -> None:
    with pytest.raises(ExclusionError) as caught:
        Exclusion.parse(["0", entry])
    assert repr(entry.strip()) in str(caught.value)
    assert "a GPU UUID (GPU-…)" in str(caught.value)
