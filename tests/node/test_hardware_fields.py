"""What NVML does not tell, or tells oddly, in the slices that a real API server accepts."""

from __future__ import annotations

from tests.cluster.api import wait_until
from tests.harness.claims import create_claim, result
from tests.harness.devices import Device, by_uuid, value
from tests.harness.plugin import free_address
from tests.harness.probes import Probes
from tests.node.conftest import MakeNode

NOT_SUPPORTED, FUNCTION_NOT_FOUND, UNKNOWN = 3, 13, 999
OPTIONAL = {"resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode"}


def keys(device: Device) -> tuple[frozenset[str], frozenset[str]]:
    return frozenset(set(device["attributes"]) - OPTIONAL), frozenset(device["capacity"])


def test_b001_b002_b003_b020_unreadable_fields_hide_nothing_and_are_told_once(make_node: MakeNode) -> None:
    node = make_node("hgx-h100", mig={4: ["3g.40gb", "1g.10gb"]})
    gpus = node.gpus.gpus()
    node.gpus.set_return("nvmlDeviceGetMemoryInfo", NOT_SUPPORTED, gpu=0)
    node.gpus.set_return("nvmlDeviceGetName", UNKNOWN, gpu=1)
    node.gpus.set_return("nvmlDeviceGetNvLinkState", FUNCTION_NOT_FOUND, gpu=1)
    for symbol in (
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetBrand",
        "nvmlDeviceGetArchitecture",
        "nvmlDeviceGetCudaComputeCapability",
        "nvmlDeviceGetNumGpuCores",
        "nvmlDeviceGetAddressingMode",
        "nvmlDeviceGetVirtualizationMode",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetGpuFabricInfoV",
        "nvmlDeviceGetNvLinkState",
    ):
        node.gpus.set_return(symbol, NOT_SUPPORTED, gpu=2)
    node.gpus.set_return("nvmlDeviceGetPciInfo_v3", UNKNOWN, gpu=3)
    probes = Probes(free_address())
    node.start(http_address=probes.address)
    node.kubelet.register()

    devices = by_uuid(node.wait_published(8))

    assert {keys(device) for device in devices.values()} == {keys(devices[gpus[7].uuid])}
    assert devices[gpus[0].uuid]["capacity"]["memory"]["value"] == "0"
    assert value(devices[gpus[0].uuid], "productName") == gpus[0].name
    assert value(devices[gpus[1].uuid], "productName") == ""
    assert value(devices[gpus[1].uuid], "nvlinkDomain") == gpus[1].uuid
    bare = devices[gpus[2].uuid]
    assert value(bare, "productName") == gpus[2].name
    assert (value(bare, "brand"), value(bare, "architecture")) == ("", "")
    assert value(bare, "cudaComputeCapability") == "0.0.0"
    assert gpus[3].uuid not in devices
    assert value(devices[gpus[7].uuid], "nvlinkPeers") == 3
    probes.wait_ready()

    name = "gpudra_discovery_seconds_count"
    wait_until(lambda: probes.metric(name) >= 4, "four readings of the hardware", 20.0)
    assert probes.metric("gpudra_unreadable_gpus") == 1
    assert probes.metric("gpudra_unreadable_fields_total", field="memory") == 2
    assert probes.metric("gpudra_unreadable_fields_total", field="productName") == 1
    assert probes.metric("gpudra_unreadable_fields_total", field="nvlink") == 1
    lines = node.log().splitlines()
    assert len([line for line in lines if gpus[0].uuid in line and "memory" in line]) == 1
    assert len([line for line in lines if gpus[3].uuid in line]) == 1
    assert len([text for text in node.api.events(node.name) if gpus[3].uuid in text]) == 1

    claim = create_claim(node.api, [result(str(bare["name"]), node.name)])
    assert node.kubelet.prepare_one(claim).error == ""


def test_b015_one_mig_device_that_cannot_be_read_is_left_out_alone(make_node: MakeNode) -> None:
    node = make_node("hgx-h100", mig={0: ["1g.10gb"] * 7, 1: ["3g.40gb"]})
    node.gpus.set_return("nvmlDeviceGetAttributes_v2", UNKNOWN, times=1, gpu=0)
    probes = Probes(free_address())
    node.start(http_address=probes.address, rescan_seconds="3")

    devices = by_uuid(node.wait_published(13))

    published = [uuid for uuid in node.gpus.gpus()[0].mig_uuids if uuid in devices]
    assert len(published) == 6
    assert node.gpus.gpus()[1].mig_uuids[0] in devices
    assert probes.metric("gpudra_unreadable_fields_total", field="migDevices[0]") == 1
    assert "migDevices[0] cannot be read: nvmlDeviceGetAttributes_v2: UNKNOWN (999)" in node.log()
    assert len(node.wait_published(14)) == 14, "the next reading finds it"


def test_b018_b019_odd_texts_become_valid_attributes(make_node: MakeNode) -> None:
    node = make_node("t4x4", driver_version="570.148.08.01")
    node.gpus.set_gpu(0, name="é" * 40)
    node.gpus.set_gpu(1, name=b"Tesla \xff\xfe T4")
    node.start()
    gpus = node.gpus.gpus()
    devices = by_uuid(node.wait_published(4))
    assert {value(device, "driverVersion") for device in devices.values()} == {"570.148.8"}
    assert {value(device, "cudaDriverVersion") for device in devices.values()} == {"13.0.0"}
    assert value(devices[gpus[0].uuid], "productName") == "é" * 32
    assert value(devices[gpus[1].uuid], "productName") == "Tesla \ufffd\ufffd T4"
    assert value(devices[gpus[2].uuid], "cudaComputeCapability") == "7.5.0"
    assert [value(devices[gpu.uuid], "resource.kubernetes.io/pciBusID") for gpu in gpus] == [
        gpu.pci_bus_id for gpu in gpus
    ]


def test_b023_two_islands_are_two_domains(make_node: MakeNode) -> None:
    node = make_node("two-islands")
    node.start()
    devices = by_uuid(node.wait_published(8))
    domains = [value(devices[gpu.uuid], "nvlinkDomain") for gpu in node.gpus.gpus()]
    assert domains == [domains[0]] * 4 + [domains[4]] * 4
    assert domains[0] != domains[4]
    assert {value(device, "nvlinkPeers") for device in devices.values()} == {3}


def test_an_old_library_without_newer_functions_publishes_what_it_knows(make_node: MakeNode) -> None:
    node = make_node("t4x4")
    node.gpus.set_missing_symbols(
        ["nvmlDeviceGetAddressingMode", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetNumGpuCores"]
    )
    node.start()
    devices = node.wait_published(4)
    assert {value(device, "addressingMode") for device in devices.values()} == {""}
    assert {value(device, "productName") for device in devices.values()} == {"Tesla T4"}
