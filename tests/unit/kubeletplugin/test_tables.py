"""Tables for people: what an inventory looks like in a terminal."""

from __future__ import annotations

from typing import Any

from kubeletplugin.tables import inventory_table


def device(name: str, kind: str, profile: str, uuid: str, domain: str) -> dict[str, Any]:
    attributes = {
        "type": {"string": kind},
        "productName": {"string": "NVIDIA H100"},
        "profile": {"string": profile},
        "nvlinkLinks": {"int": 0},
        "nvlinkDomain": {"string": domain},
        "uuid": {"string": uuid},
    }
    return {"name": name, "attributes": attributes, "capacity": {"memory": {"value": "1Mi"}}}


def test_placements_of_a_profile_share_a_line_and_devices_that_exist_do_not() -> None:
    devices = [
        device("gpu-a-mig-1g10gb-1", "mig", "1g.10gb", "MIG-1", "MIG-1"),
        *(
            device(f"gpu-a-mig-1g10gb-{start}", "mig", "1g.10gb", "", f"gpu-a-mig-1g10gb-{start}")
            for start in (6, 4)
        ),
        device("gpu-a-mig-7g80gb-0", "mig", "7g.80gb", "", "gpu-a-mig-7g80gb-0"),
        device("gpu-a", "gpu", "", "GPU-1", "nvlink-GPU-1"),
    ]
    specs: list[dict[str, Any]] = [{}, {"devices": devices[:2]}, {"devices": devices[2:]}]
    slices = [{"spec": spec} for spec in specs]
    lines = [line.split() for line in inventory_table(slices).splitlines()[1:]]
    assert [(line[0], line[-2], line[-1]) for line in lines] == [
        ("gpu-a-mig-1g10gb-1", "-", "MIG-1"),
        ("gpu-a-mig-1g10gb-{6,4}", "-", "-"),
        ("gpu-a-mig-7g80gb-0", "-", "-"),
        ("gpu-a", "nvlink-GPU-1", "GPU-1"),
    ]
