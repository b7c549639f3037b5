from __future__ import annotations

from typing import Any

from driver.devices import offered_devices
from driver.migoffer import MigPolicy
from driver.nodepolicy import NodePolicy
from driver.resourceslices import published
from kubeletplugin.tables import inventory_table
from tests.unit.driver.inventories import gpu, inventory


def test_the_placements_of_a_profile_are_one_line() -> None:
    node = inventory(gpu(0x17), gpu(0x65, mig_capable=False))
    devices = offered_devices(node, NodePolicy(mig=MigPolicy.DYNAMIC), {})
    entries = [published(device, node) for device in devices]
    slices: list[dict[str, Any]] = [{"spec": {"sharedCounters": []}}, {"spec": {"devices": entries}}]
    table = [line.split("   ") for line in inventory_table(slices).splitlines()]
    assert [line[0].strip() for line in table] == [
        "DEVICE",
        "gpu-0000-17-00-0-mig-1g10gb-{6,4,5,0,1,2,3}",
        "gpu-0000-17-00-0-mig-1g10gb-me-{6,4,5,0,1,2,3}",
        "gpu-0000-17-00-0-mig-1g20gb-{6,4,0,2}",
        "gpu-0000-17-00-0-mig-2g20gb-{4,0,2}",
        "gpu-0000-17-00-0-mig-3g40gb-{4,0}",
        "gpu-0000-17-00-0-mig-4g40gb-{0}",
        "gpu-0000-17-00-0-mig-7g80gb-{0}",
        "gpu-0000-17-00-0",
        "gpu-0000-65-00-0",
    ]
    assert table[1][-1].strip() == "made for a claim"
    assert table[8][-1].strip() == node.gpus[0].uuid
