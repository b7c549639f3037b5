"""Registration with the kubelet, probes, and the life of the process."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from nvmlsim.node import ALL_SYMBOLS
from tests.cluster.api import wait_until
from tests.harness.claims import create_claim, result
from tests.harness.plugin import PluginNode, free_address
from tests.harness.probes import Probes

MakeNode = Callable[..., PluginNode]


@pytest.fixture
def probes() -> Probes:
    return Probes(free_address())


def test_b131_b035_ready_only_when_registered_and_published(make_node: MakeNode, probes: Probes) -> None:
    node = make_node()
    node.start(http_address=probes.address)
    node.wait_published(8)
    # The server has the slices a moment before the plugin has its answer.
    wait_until(lambda: "ResourceSlices" not in probes.ready()[1], "publishing to be noted", 5)
    assert probes.ready() == (503, "not registered yet\n")
    assert probes.alive() == (200, "ok\n")

    refusal = "RegisterPlugin error -- plugin validation failed with err: no"
    node.kubelet.notify(registered=False, error=refusal)
    node.wait_log(refusal)
    status, text = probes.ready()
    assert status == 503
    assert refusal in text
    # Still on offer: the kubelet asks again by itself.
    assert node.kubelet.register().endpoint == str(node.sockets()[0])
    assert probes.ready() == (200, "ok\n")

    node.kubelet.notify(registered=False, error="a second time")
    assert probes.ready()[0] == 503
    assert probes.alive()[0] == 200


def test_b134_a_first_reading_that_takes_long_delays_neither_registration_nor_unprepare(
    make_node: MakeNode, probes: Probes
) -> None:
    node = make_node()
    node.gpus.set_delay(ALL_SYMBOLS, 30)
    started = time.monotonic()
    # The limit of liveness is far below what the first reading takes.
    node.start(http_address=probes.address, liveness_seconds="0.2")
    assert time.monotonic() - started < 15
    assert node.kubelet.register().name == "gpu.nvidia.com"
    assert node.kubelet.prepare() == {}
    assert node.published() == {}
    assert probes.alive() == (200, "ok\n")
    assert "have not been read" in probes.ready()[1] or "not accepted" in probes.ready()[1]
    node.gpus.clear_faults()
    node.wait_published(8, timeout=20)
    probes.wait_ready()


def test_b135_liveness_fails_when_a_claims_hardware_call_is_stuck_though_grpc_answers(
    make_node: MakeNode, probes: Probes
) -> None:
    node = make_node()
    node.start(http_address=probes.address, liveness_seconds="1", nvml_timeout_seconds="1")
    name = sorted(node.wait_published(8))[0]
    claim = create_claim(node.api, [result(name, node.name)])
    assert probes.alive()[0] == 200
    node.gpus.set_delay("nvmlDeviceGetHandleByPciBusId_v2", 60_000, gpu=0)
    assert "nvmlDeviceGetHandleByPciBusId_v2" in node.kubelet.prepare_one(claim).error
    wait_until(lambda: probes.alive()[0] == 503, "liveness to fail", 5)
    text = probes.alive()[1]
    assert name in text
    assert "nvmlDeviceGetHandleByPciBusId_v2" in text
    assert "the limit is 1 s" in text
    assert node.kubelet.prepare() == {}


def test_b135_liveness_fails_when_the_store_is_stuck_or_a_socket_is_gone(
    make_node: MakeNode, probes: Probes
) -> None:
    node = make_node()
    node.start(http_address=probes.address)
    node.wait_published(8)
    with contextlib.closing(sqlite3.connect(node.store_path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert node.kubelet.prepare() == {}
        assert probes.alive() == (503, "the plugin's own sockets or store did not answer within 5 s\n")
        other.execute("ROLLBACK")
    wait_until(lambda: probes.alive()[0] == 200, "liveness to be back", 10)
    node.sockets()[0].unlink()
    status, text = probes.alive()
    assert status == 503
    assert "the plugin's own sockets or store failed" in text


def test_b136_a_part_that_fails_ends_the_process_with_a_message(make_node: MakeNode, probes: Probes) -> None:
    first, second = make_node(), make_node()
    first.start(http_address=probes.address)
    process = second.start(wait=False, http_address=probes.address)
    assert process.wait(15) == 1
    assert probes.address.rpartition(":")[2] in second.log()
    assert "address already in use" in second.log()
    assert not any(path.exists() for path in second.sockets())


def test_b136_a_part_that_raises_ends_the_process_with_its_traceback(make_node: MakeNode) -> None:
    node = make_node()
    broken = (
        "import kubeletplugin.publishing as publishing\n"
        "async def run(self): raise LookupError('a mistake in this part')\n"
        "publishing.Publishing.run = run\n"
        "from kubeletplugin.cli import main\n"
        "raise SystemExit(main())\n"
    )
    node.program = (sys.executable, "-c", broken)
    process = node.start(wait=False)
    assert process.wait(15) not in (0, None)
    assert "Traceback" in node.log()
    assert "LookupError: a mistake in this part" in node.log()
    assert not any(path.exists() for path in node.sockets())


def test_b182_a_signal_writes_the_stacks_of_all_tasks_and_threads(node: PluginNode) -> None:
    node.wait_published(8)
    assert node.process is not None
    node.process.signal(signal.SIGUSR1)
    node.wait_log("stacks of all tasks and threads")
    for part in ("task hardware", "task publisher", "task sockets", "storethread.py", "lanes.py"):
        node.wait_log(part)
    assert node.kubelet.prepare() == {}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_end_takes_the_plugin_off_the_registry_first(make_node: MakeNode, number: signal.Signals) -> None:
    node = make_node()
    node.start()
    claim = create_claim(node.api, [result(sorted(node.wait_published(8))[0], node.name)])
    node.gpus.set_delay("nvmlDeviceGetHandleByPciBusId_v2", 700, gpu=0)
    dra, registration = node.sockets()
    assert node.process is not None
    with node.connect() as kubelet, ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(kubelet.prepare_one, claim)
        time.sleep(0.2)
        started = time.monotonic()
        node.process.signal(number)
        wait_until(lambda: not registration.exists(), "the registration socket to go", 2)
        assert not under_way.done()
        assert under_way.result(5).error == ""
        with pytest.raises(grpc.RpcError):
            kubelet.prepare(timeout=1)
    assert node.process.wait(5) == 0
    assert time.monotonic() - started < 2
    assert not dra.exists()
    assert len(node.slices()) == 1


def test_b037_slices_go_at_the_end_when_so_set(make_node: MakeNode) -> None:
    node = make_node()
    node.start(delete_slices_on_exit="true")
    node.wait_published(8)
    started = time.monotonic()
    assert node.stop() == 0
    assert time.monotonic() - started < 2
    assert node.slices() == []
