from __future__ import annotations

from pathlib import Path

import pytest

from driver.attributes import ATTRIBUTES, CAPACITIES, attributes, capacity
from driver.devices import Device, offered_devices
from driver.inventory import Engines, Gpu, Inventory, PciAddress, Placement
from driver.migoffer import MigPolicy
from driver.nodepolicy import NodePolicy
from tests.unit.driver.inventories import GIB, gpu, inventory, mig

_DOCUMENT = Path(__file__).parents[3] / "docs/attributes.md"
_WHOLE = gpu(0x17)
_PARTED = gpu(
    0x65,
    mig_enabled=True,
    nvlink=None,
    mig_devices=(
        mig(0, profile="1g.10gb+me", media_extensions=True),
        mig(4, 4, "1c.3g.40gb", compute_placement=Placement(1, 1)),
    ),
)
_UNREADABLE = Gpu(uuid="GPU-bare", pci=PciAddress(0, 0xCA, 0, 0), index=2)
_NODE = inventory(_WHOLE, _PARTED, _UNREADABLE)
_DEVICES = offered_devices(_NODE, NodePolicy(mig=MigPolicy.STATIC), {})
_OPTIONAL = {"resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode"}


def test_b020_all_devices_have_the_same_keys() -> None:
    every = {attribute.name for attribute in ATTRIBUTES}
    assert [len(_DEVICES), _DEVICES[-1].gpu] == [4, _UNREADABLE]
    for device in _DEVICES:
        keys = set(attributes(device, _NODE))
        assert keys | _OPTIONAL == every
        assert set(capacity(device)) == {
            "memory",
            "multiprocessors",
            "copyEngines",
            "decoders",
            "encoders",
            "jpegEngines",
            "ofaEngines",
            "shares",
        }
    assert set(attributes(_DEVICES[0], _NODE)) >= _OPTIONAL


def test_b020_attributes_and_capacities_leave_room() -> None:
    assert len(ATTRIBUTES) + len(CAPACITIES) <= 31


def test_a_whole_gpu() -> None:
    device = Device("gpu-0000-17-00-0", _WHOLE)
    assert attributes(device, _NODE) == {
        "type": {"string": "gpu"},
        "uuid": {"string": _WHOLE.uuid},
        "parentUUID": {"string": _WHOLE.uuid},
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
        "brand": {"string": "Nvidia"},
        "architecture": {"string": "Hopper"},
        "cudaComputeCapability": {"version": "9.0.0"},
        "driverVersion": {"version": "580.105.8"},
        "cudaDriverVersion": {"version": "13.0.0"},
        "profile": {"string": ""},
        "addressingMode": {"string": "HMM"},
        "resource.kubernetes.io/pciBusID": {"string": "0000:17:00.0"},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:64"},
        "resource.kubernetes.io/numaNode": {"int": 1},
        "nvlinkLinks": {"int": 18},
        "nvlinkVersion": {"version": "4.0.0"},
        "nvlinkDomain": {"string": "nvlink-GPU-0"},
        "nvlinkPeers": {"int": 7},
        "fabricClique": {"string": _WHOLE.uuid},
        "migCapable": {"bool": True},
        "mediaExtensions": {"bool": False},
        "allMediaExtensions": {"bool": False},
        "graphics": {"bool": False},
    }
    assert capacity(device) == {
        "memory": {"value": "81920Mi"},
        "multiprocessors": {"value": "132"},
        "copyEngines": {"value": "8"},
        "decoders": {"value": "7"},
        "encoders": {"value": "0"},
        "jpegEngines": {"value": "7"},
        "ofaEngines": {"value": "1"},
        "shares": {"value": "0"},
    }


def test_a_mig_device_has_no_nvlink_and_matches_nothing_by_accident() -> None:
    linked = gpu(0x17, fabric_clique="cluster.1")
    device = Device("some", linked, mig(4, 4, "1c.3g.40gb", graphics=True))
    found = attributes(device, _NODE)
    assert found["type"] == {"string": "mig"}
    assert found["uuid"] == found["nvlinkDomain"] == found["fabricClique"] == {"string": device.uuid}
    assert found["parentUUID"] == {"string": linked.uuid}
    assert found["profile"] == {"string": "1c.3g.40gb"}
    assert found["nvlinkLinks"] == found["nvlinkPeers"] == {"int": 0}
    assert found["nvlinkVersion"] == {"version": "0.0.0"}
    assert found["graphics"] == {"bool": True}
    assert capacity(device)["memory"] == {"value": "9984Mi"}
    assert capacity(device)["multiprocessors"] == {"value": "16"}


def test_the_clique_of_a_multi_node_fabric() -> None:
    found = attributes(Device("some", gpu(fabric_clique="c1.7")), _NODE)
    assert found["fabricClique"] == {"string": "c1.7"}


def test_b001_memory_that_is_not_known_is_a_quantity_of_zero() -> None:
    assert capacity(Device("some", gpu(memory_bytes=0)))["memory"] == {"value": "0"}


def test_memory_that_is_no_whole_number_of_mebibytes_is_in_bytes() -> None:
    assert capacity(Device("some", gpu(memory_bytes=80 * GIB + 1)))["memory"] == {"value": str(80 * GIB + 1)}


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("x" * 100, "x" * 64),
        ("é" * 40, "é" * 32),
        ("x" + "é" * 40, "x" + "é" * 31),
        ("x" * 62 + "\N{GRINNING FACE}", "x" * 62),
    ],
)
def test_b019_strings_are_cut_to_64_bytes_on_a_character_border(name: str, published: str) -> None:
    found = attributes(Device("some", gpu(product_name=name)), _NODE)
    assert found["productName"] == {"string": published}


def test_b019_the_bus_id_is_that_of_sysfs() -> None:
    device = Device("some", gpu(pci=PciAddress.parse("00000000:CA:00.0")))
    assert attributes(device, _NODE)["resource.kubernetes.io/pciBusID"] == {"string": "0000:ca:00.0"}


@pytest.mark.parametrize("version", ["", "N/A", "580.105.08"])
def test_b018_an_unknown_driver_version_is_still_a_version(version: str) -> None:
    node = Inventory(driver_version=version, gpus=(_UNREADABLE,))
    found = attributes(Device("some", _UNREADABLE), node)
    assert found["driverVersion"] == {"version": "580.105.8" if "." in version else "0.0.0"}
    assert found["cudaDriverVersion"] == {"version": "0.0.0"}


def test_engines_that_nvml_does_not_tell_are_zero() -> None:
    assert capacity(Device("some", gpu(engines=Engines(multiprocessors=40))))["decoders"] == {"value": "0"}


def test_the_document_shows_the_catalogue() -> None:
    rows = [
        tuple(cell.strip() for cell in line.strip().strip("|").split("|"))
        for line in _DOCUMENT.read_text().splitlines()
        if line.startswith("| `")
    ]
    assert rows == [(f"`{one.name}`", one.type, one.values, one.source, one.since) for one in ATTRIBUTES] + [
        (f"`{one.name}`", one.unit, one.values, one.source, one.since) for one in CAPACITIES
    ]
