"""NVML calls that do not answer: what still works, what fails in time, and what says so."""

from __future__ import annotations

import re
import time

from nvmlsim.node import ALL_SYMBOLS
from tests.cluster.api import wait_until
from tests.harness.claims import create_claim, result
from tests.harness.devices import gpu_name
from tests.harness.plugin import free_address
from tests.harness.probes import Probes
from tests.node.conftest import MakeNode


def test_b012_a_gpu_that_hangs_delays_only_itself_and_ends_liveness(make_node: MakeNode) -> None:
    node = make_node("t4x4")
    probes = Probes(free_address())
    node.start(http_address=probes.address, nvml_timeout_seconds="1", liveness_seconds="3")
    node.kubelet.register()
    devices = node.wait_published(4)
    hanging, healthy, unplugged = (gpu_name(gpu.pci_bus_id) for gpu in node.gpus.gpus()[:3])
    probes.wait_ready()

    node.gpus.set_delay("nvmlDeviceGetBrand", 8_000, gpu=0)
    node.wait_log("GPU index 0 hangs")
    assert re.search(r"GPU index 0 hangs: .*in nvmlDeviceGetBrand.* has not answered for \d+ s", node.log())
    assert node.published() == devices, "what hangs keeps its last reading"

    for name in (hanging, healthy):
        claim = create_claim(node.api, [result(name, node.name)])
        started = time.monotonic()
        assert node.kubelet.prepare_one(claim).error == ""
        assert time.monotonic() - started < 3.0
        assert node.kubelet.unprepare_one(claim).error == ""

    node.gpus.set_delay("nvmlDeviceGetUUID", 8_000, gpu=0)
    claim = create_claim(node.api, [result(hanging, node.name)])
    started = time.monotonic()
    error = node.kubelet.prepare_one(claim).error
    assert time.monotonic() - started < 4.0
    assert hanging in error
    assert "nvmlDeviceGetUUID" in error
    assert "has not answered within 1 s" in error
    assert node.cdi_files() == []

    node.gpus.unplug(2)
    assert unplugged not in node.wait_published(3), "other GPUs are read on while one hangs"

    wait_until(lambda: probes.alive()[0] == 503, "not alive", 10.0)
    status, text = probes.alive()
    assert status == 503
    assert re.search(r"in nvmlDeviceGetBrand\) hangs for \d+ s, the limit is 3 s", text)
    assert re.search(r"not alive: .*in nvmlDeviceGetBrand\) hangs for \d+ s", node.log())
    assert node.log().count("GPU index 0 hangs") == 1

    node.gpus.clear_faults()
    wait_until(lambda: probes.alive()[0] == 200, "alive again", 20.0)
    node.wait_log("GPU index 0 has answered")
    assert node.kubelet.prepare_one(claim).error == ""


def test_b012_node_calls_that_hang_keep_what_is_published_and_prepares_going(make_node: MakeNode) -> None:
    node = make_node("t4x4")
    probes = Probes(free_address())
    node.start(http_address=probes.address, nvml_timeout_seconds="1")
    node.kubelet.register()
    name = sorted(node.wait_published(4))[0]
    probes.wait_ready()

    node.gpus.set_delay("nvmlDeviceGetCount_v2", 60_000)
    wait_until(lambda: probes.ready()[0] == 503, "not ready", 10.0)
    assert "has not answered within 1 s" in probes.ready()[1]
    assert "nvmlDeviceGetCount_v2" in probes.ready()[1]
    assert len(node.published()) == 4
    claim = create_claim(node.api, [result(name, node.name)])
    assert node.kubelet.prepare_one(claim).error == ""
    assert node.kubelet.unprepare_one(claim).error == ""

    started = time.monotonic()
    assert node.stop() == 0
    assert time.monotonic() - started < 3.0, "a call that hangs does not keep the process"


def test_b012_an_initialisation_that_hangs_is_named(make_node: MakeNode) -> None:
    node = make_node("t4x4")
    node.gpus.set_delay("nvmlInitWithFlags", 60_000)
    probes = Probes(free_address())
    node.start(http_address=probes.address, nvml_timeout_seconds="1")
    node.kubelet.register()
    claim = create_claim(node.api, [result("gpu-0000-17-00-0", node.name)])

    error = node.kubelet.prepare_one(claim, timeout=4.0).error

    assert "nvmlInitWithFlags" in error
    assert node.kubelet.unprepare_one(claim).error == ""
    status, text = probes.ready()
    assert status == 503
    assert "nvmlInitWithFlags" in text
    assert probes.alive()[0] == 200, "a first start may take minutes"
    assert node.slices() == []


def test_slow_calls_on_every_gpu_are_made_at_the_same_time(make_node: MakeNode) -> None:
    node = make_node("t4x4")
    node.gpus.set_delay(ALL_SYMBOLS, 50)
    probes = Probes(free_address())
    node.start(http_address=probes.address, rescan_seconds="600")
    node.wait_published(4)
    calls = sum(node.gpus.calls().values())
    assert calls > 60
    taken = probes.metric("gpudra_discovery_seconds_sum")
    assert taken < calls * 0.05 / 2, f"{calls} calls of 50 ms took {taken:.1f} s"
