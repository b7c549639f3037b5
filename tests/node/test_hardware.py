"""Hardware that comes, goes and fails while the plugin runs: what it publishes, prepares and says."""

from __future__ import annotations

import time

from tests.cluster.api import wait_until
from tests.harness.claims import create_claim, result
from tests.harness.devices import by_uuid, gpu_name, value
from tests.harness.plugin import PluginNode, free_address
from tests.harness.probes import Probes
from tests.node.conftest import MakeNode

NOT_SUPPORTED, UNKNOWN = 3, 999


def start(node: PluginNode, **flags: str) -> Probes:
    """Start with probes, as registered with the kubelet."""
    probes = Probes(free_address())
    node.flags |= {name.replace("_", "-"): setting for name, setting in flags.items()}
    node.start(http_address=probes.address)
    node.kubelet.register()
    return probes


def wait_event(node: PluginNode, *words: str) -> None:
    wait_until(
        lambda: any(all(word in text for word in words) for text in node.api.events(node.name)),
        f"an event on the Node with {words}; there are {node.api.events(node.name)}",
        10.0,
    )


def wait_rescans(probes: Probes, count: int) -> None:
    """Wait until the hardware was read ``count`` times more."""
    name = "gpudra_discovery_seconds_count"
    target = probes.metric(name) + count
    wait_until(lambda: probes.metric(name) >= target, f"{count} more readings of the hardware", 20.0)


def test_b004_gpus_that_are_lost_and_come_back(make_node: MakeNode) -> None:
    node = make_node("a100-pcie-pair")
    node.gpus.lose(1)
    idle, held = node.gpus.gpus()[1], node.gpus.gpus()[0]
    probes = start(node)
    [name] = node.wait_published(1)
    probes.wait_ready()
    assert probes.metric("gpudra_unreadable_gpus") == 1
    wait_event(node, "GpuUnreadable", "GPU_IS_LOST")

    claim = create_claim(node.api, [result(name, node.name)])
    assert node.kubelet.prepare_one(claim).error == ""
    node.gpus.lose(held.gpu)
    wait_until(lambda: probes.metric("gpudra_unreadable_gpus") == 2, "two unreadable GPUs", 10.0)
    wait_rescans(probes, 2)
    assert list(node.published()) == [name], "a device in use stays published"
    assert probes.ready()[0] == 200
    another = create_claim(node.api, [result(name, node.name)])
    error = node.kubelet.prepare_one(another).error
    assert name in error

    assert node.kubelet.unprepare_one(claim).error == ""
    node.wait_published(0)
    node.gpus.restore(idle.gpu)
    node.gpus.restore(held.gpu)
    assert set(by_uuid(node.wait_published(2))) == {idle.uuid, held.uuid}
    assert probes.metric("gpudra_unreadable_gpus") == 0


def test_b004_a_gpu_lost_between_allocation_and_prepare_is_named_with_nvmls_answer(
    make_node: MakeNode,
) -> None:
    node = make_node("a100-pcie-pair")
    node.start(rescan_seconds="600")
    first, second = sorted(node.wait_published(2))
    node.gpus.lose(0)
    claim = create_claim(node.api, [result(first, node.name)])

    error = node.kubelet.prepare_one(claim).error

    assert first in error
    assert "GPU_IS_LOST (15)" in error
    assert node.cdi_files() == []
    assert list(node.wait_published(1)) == [second], "the claim's failure brings the next reading forward"


def test_b005_functions_that_wait_for_the_driver_appear_without_a_restart(make_node: MakeNode) -> None:
    node = make_node("t4x4")
    # The kernel shows the functions all the time, the driver binds them later.
    (node.gpus.root / "sys").rename(node.folder / "sys")
    for gpu in node.gpus.gpus():
        node.gpus.unplug(gpu.gpu)
    probes = start(node, sys_root=str(node.folder / "sys"))
    node.wait_published(0)
    wait_event(node, "WaitingForDriver", "4 NVIDIA PCI functions")
    assert probes.metric("gpudra_gpus_waiting_for_driver") == 4
    wait_rescans(probes, 3)
    assert node.log().count("4 NVIDIA PCI functions wait for the driver") == 1

    for bus in ("17", "37", "57", "77"):
        node.gpus.plug("t4", pci=f"0000:{bus}:00.0")

    devices = node.wait_published(4)
    assert {gpu_name(gpu.pci_bus_id) for gpu in node.gpus.gpus()} == set(devices)
    assert probes.metric("gpudra_gpus_waiting_for_driver") == 0
    probes.wait_ready()


def test_b005_a_function_that_no_driver_serves_is_not_asked_for_again_and_again(make_node: MakeNode) -> None:
    node = make_node("t4x4")
    (node.gpus.root / "sys").rename(node.folder / "sys")
    node.gpus.unplug(3)
    probes = start(node, sys_root=str(node.folder / "sys"))
    node.wait_published(3)
    probes.wait_ready()
    wait_rescans(probes, 3)
    assert node.gpus.calls()["nvmlInitWithFlags"] == 2
    assert probes.metric("gpudra_gpus_waiting_for_driver") == 1


def test_claims_wait_while_nvml_is_initialised_anew_for_a_new_gpu(make_node: MakeNode) -> None:
    node = make_node("t4x4")
    link = node.gpus.root / "sys/bus/pci/devices/0000:77:00.0"
    target = link.readlink()
    node.gpus.unplug(3)
    probes = start(node)
    name = sorted(node.wait_published(3))[0]
    probes.wait_ready()
    claim = create_claim(node.api, [result(name, node.name)])
    node.gpus.set_delay("nvmlInitWithFlags", 700)

    (link.parent / target).mkdir(parents=True, exist_ok=True)
    for file, text in (("vendor", "0x10de"), ("class", "0x030200"), ("numa_node", "1")):
        (link.parent / target / file).write_text(f"{text}\n")
    link.symlink_to(target)
    before = node.gpus.calls()["nvmlInitWithFlags"]
    waits: list[float] = []
    deadline = time.monotonic() + 10.0
    while time.monotonic() < deadline and max(waits, default=0.0) < 0.3:
        started = time.monotonic()
        assert node.kubelet.prepare_one(claim).error == ""
        waits.append(time.monotonic() - started)
        assert node.kubelet.unprepare_one(claim).error == ""
    assert max(waits) >= 0.3, "no claim met the initialisation"
    assert node.gpus.calls()["nvmlInitWithFlags"] == before + 1


def test_b006_b166_b167_a_node_without_gpu_and_driver_gets_both_later(make_node: MakeNode) -> None:
    node = make_node("t4x4")
    for gpu in node.gpus.gpus():
        node.gpus.unplug(gpu.gpu)
    driver_root = node.folder / "driver"
    driver_root.mkdir()
    probes = start(node, driver_root=str(driver_root), dev_root="")
    wait_until(lambda: len(node.slices()) == 1, "one slice", 10.0)
    [published] = node.slices()
    assert "devices" not in published["spec"]
    assert published["spec"]["pool"]["resourceSliceCount"] == 1
    probes.wait_ready()
    wait_event(node, "NoGpu", str(node.gpus.root / "sys/bus/pci/devices"))

    node.gpus.plug("t4", pci="0000:17:00.0")
    node.wait_log("the GPUs cannot be read")
    wait_event(node, "GpusUnavailable", "libnvidia-ml.so.1")
    status, text = probes.ready()
    assert status == 503
    assert str(driver_root / "usr/lib64/libnvidia-ml.so.1") in text
    assert str(driver_root / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1") in text
    assert node.log().count("the GPUs cannot be read") == 1

    driver_root.rmdir()
    driver_root.symlink_to(node.gpus.root)
    [name] = node.wait_published(1)
    probes.wait_ready()
    claim = create_claim(node.api, [result(name, node.name)])
    assert node.kubelet.prepare_one(claim).error == ""
    [device] = node.cdi_spec(claim.uid)["devices"]
    assert device["containerEdits"]["deviceNodes"][0]["hostPath"] == str(driver_root / "dev/nvidia0")


def test_b007_gpus_are_added_and_removed_while_running(make_node: MakeNode) -> None:
    node = make_node("t4x4")
    probes = start(node)
    devices = node.wait_published(4)
    used, idle = sorted(devices)[:2]
    by_name = {gpu_name(gpu.pci_bus_id): gpu for gpu in node.gpus.gpus()}
    claim = create_claim(node.api, [result(used, node.name)])
    assert node.kubelet.prepare_one(claim).error == ""

    node.gpus.unplug(by_name[idle].gpu)
    node.gpus.unplug(by_name[used].gpu)
    left = node.wait_published(3)
    wait_rescans(probes, 2)
    assert node.published() == left
    assert left[used] == devices[used]
    another = create_claim(node.api, [result(used, node.name)])
    assert f"device {used} " in node.kubelet.prepare_one(another).error

    assert node.kubelet.unprepare_one(claim).error == ""
    assert used not in node.wait_published(2)
    plugged = node.gpus.plug("t4")
    assert gpu_name(plugged.pci_bus_id) in node.wait_published(3)
    assert probes.metric("gpudra_published_devices") == 3


def test_b008_a_gpu_that_cannot_do_mig_is_asked_once(make_node: MakeNode) -> None:
    node = make_node("t4x4")
    node.start(rescan_seconds="600")
    assert {value(device, "migCapable") for device in node.wait_published(4).values()} == {False}
    calls = node.gpus.calls()
    assert calls["nvmlDeviceGetMigMode"] == 4
    assert [name for name in calls if "Mig" in name or "Instance" in name] == ["nvmlDeviceGetMigMode"]


def test_b010_a_vgpu_is_a_whole_device_that_cannot_do_mig(make_node: MakeNode) -> None:
    node = make_node("a100-pcie-pair")
    node.gpus.set_gpu(0, virtualization=2)
    node.start()
    guest, real = node.gpus.gpus()
    devices = by_uuid(node.wait_published(2))
    assert value(devices[guest.uuid], "type") == "gpu"
    assert value(devices[guest.uuid], "migCapable") is False
    assert value(devices[real.uuid], "migCapable") is True
    claim = create_claim(node.api, [result(str(devices[guest.uuid]["name"]), node.name)])
    assert node.kubelet.prepare_one(claim).error == ""
    assert not [name for name in node.gpus.calls() if "SetMigMode" in name or "Create" in name]


def test_b011_a_driver_that_is_loaded_late(make_node: MakeNode) -> None:
    node = make_node("t4x4")
    node.gpus.load_driver(False)
    probes = start(node)
    node.wait_log("DRIVER_NOT_LOADED (9)")
    status, text = probes.ready()
    assert status == 503
    assert "DRIVER_NOT_LOADED" in text
    assert probes.alive() == (200, "ok\n")
    assert node.slices() == [], "what is not known is not published as none"
    claim = create_claim(node.api, [result("gpu-0000-17-00-0", node.name)])
    assert "DRIVER_NOT_LOADED" in node.kubelet.prepare_one(claim, timeout=4.0).error
    assert node.kubelet.unprepare_one(claim).error == ""
    assert node.log().count("the GPUs cannot be read") == 1

    node.gpus.load_driver()
    node.wait_published(4)
    probes.wait_ready()
    claim = create_claim(node.api, [result("gpu-0000-17-00-0", node.name)])
    assert node.kubelet.prepare_one(claim).error == ""

    node.gpus.load_driver(False)
    wait_until(lambda: probes.ready()[0] == 503, "not ready without the driver", 10.0)
    assert len(node.published()) == 4, "a driver that is away for a while unpublishes nothing"
    assert node.kubelet.unprepare_one(claim).error == ""


def test_a_new_driver_version_is_used_without_a_restart(make_node: MakeNode) -> None:
    node = make_node("t4x4", driver_version="580.95.05")
    node.start()
    name = sorted(node.wait_published(4))[0]
    claim = create_claim(node.api, [result(name, node.name)])
    assert node.kubelet.prepare_one(claim).error == ""
    assert node.kubelet.unprepare_one(claim).error == ""

    node.gpus.set_driver_version("590.10.01", reload=True)

    wait_until(lambda: value(node.published()[name], "driverVersion") == "590.10.1", "the new version", 15.0)
    claim = create_claim(node.api, [result(name, node.name)])
    assert node.kubelet.prepare_one(claim).error == ""
    mounts = [mount["containerPath"] for mount in node.cdi_spec(claim.uid)["containerEdits"]["mounts"]]
    assert [path for path in mounts if "libcuda.so" in path and path.endswith("590.10.01")]
    assert not [path for path in mounts if "580.95.05" in path]


def test_b013_a_hundred_claims_initialise_and_enumerate_nothing_anew(make_node: MakeNode) -> None:
    node = make_node("t4x4")
    node.start(rescan_seconds="600")
    name = sorted(node.wait_published(4))[0]
    claim = create_claim(node.api, [result(name, node.name)])
    before = node.gpus.calls()
    for _ in range(100):
        assert node.kubelet.prepare_one(claim).error == ""
        assert node.kubelet.unprepare_one(claim).error == ""
    after = node.gpus.calls()
    for call in (
        "nvmlInitWithFlags",
        "nvmlShutdown",
        "nvmlDeviceGetCount_v2",
        "nvmlDeviceGetHandleByIndex_v2",
    ):
        assert after.get(call, 0) == before.get(call, 0), call
    assert after["nvmlInitWithFlags"] == 1


def test_b014_excluded_gpus_are_not_published(make_node: MakeNode) -> None:
    node = make_node("t4x4", gpus=[{"model": "a30"}, {"model": "t4"}])
    first, second = node.gpus.gpus()
    for entry in (second.pci_bus_id, second.uuid, "1", "Tesla T[0-9]"):
        node.start(exclude=entry)
        assert list(by_uuid(node.wait_published(1))) == [first.uuid], entry
        claim = create_claim(node.api, [result(gpu_name(second.pci_bus_id), node.name)])
        error = node.kubelet.prepare_one(claim).error
        assert gpu_name(second.pci_bus_id) in error
        assert "excluded" in error
        assert node.cdi_files() == []
        node.stop()


def test_b014_a_gpu_in_use_is_excluded_after_its_last_unprepare(make_node: MakeNode) -> None:
    node = make_node("t4x4")
    node.start()
    name = sorted(node.wait_published(4))[0]
    claim = create_claim(node.api, [result(name, node.name)])
    assert node.kubelet.prepare_one(claim).error == ""
    node.stop()

    probes = start(node, exclude="0000:17:00.0")
    probes.wait_ready()
    wait_rescans(probes, 2)
    assert len(node.published()) == 4
    assert node.kubelet.prepare_one(claim).error == "", "the pod may start another container"
    assert node.kubelet.unprepare_one(claim).error == ""
    assert name not in node.wait_published(3)


def test_b014_a_wrong_entry_stops_the_start_and_is_named(make_node: MakeNode) -> None:
    node = make_node("t4x4")
    process = node.start(wait=False, exclude="Tesla (T4")
    assert process.wait(10.0) == 2
    assert "--exclude" in node.log()
    assert "'Tesla (T4'" in node.log()
    assert "Traceback" not in node.log()


def test_b024_b022_links_and_numa_nodes_that_are_not_there(make_node: MakeNode) -> None:
    node = make_node("a100-pcie-pair")
    node.gpus.set_gpu(1, numa_node=-1)
    node.start()
    bridged = node.wait_published(2).values()
    assert len({value(device, "nvlinkDomain") for device in bridged}) == 1
    with_node = ["resource.kubernetes.io/numaNode" in device["attributes"] for device in bridged]
    assert with_node == [True, False]

    links = int(value(next(iter(bridged)), "nvlinkLinks"))
    for link in range(links):
        node.gpus.set_link(0, link, False)
        node.gpus.set_link(1, link, False)
    wait_until(
        lambda: {value(device, "nvlinkLinks") for device in node.published().values()} == {0},
        "no links",
        10.0,
    )
    for device in node.published().values():
        assert value(device, "nvlinkDomain") == value(device, "uuid")
        assert value(device, "nvlinkPeers") == 0
