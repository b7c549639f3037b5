"""The end of a process that is in the middle of a change, and a store that another process keeps locked."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time

import grpc

from tests.cluster.api import wait_until
from tests.harness.claims import create_claim, result
from tests.node.conftest import MakeNode

PARTITION = "gpu-0000-1b-00-0-mig-3g40gb-4"


def test_sigterm_does_not_wait_for_a_change_of_mig_that_takes_long(make_node: MakeNode) -> None:
    node = make_node("hgx-h100")
    node.start(mig="dynamic")
    claim = create_claim(node.api, [result(PARTITION, node.name)])
    node.gpus.set_delay("nvmlDeviceCreateGpuInstanceWithPlacement", 4000)

    def prepare() -> None:
        with node.connect() as kubelet, contextlib.suppress(grpc.RpcError):
            kubelet.prepare_one(claim)

    caller = threading.Thread(target=prepare)
    caller.start()
    wait_until(lambda: node.claims_in_store() == {claim.uid: "preparing"}, "the claim's intent", 10)
    started = time.monotonic()
    assert node.stop() == 0
    assert time.monotonic() - started < 3
    caller.join(10)
    assert "ended with 1 claims under way" in node.log()

    node.gpus.clear_faults()
    node.start(mig="dynamic")
    assert node.kubelet.prepare_one(claim).error == ""
    assert [len(gpu.mig_uuids) for gpu in node.gpus.gpus()] == [1, 0, 0, 0, 0, 0, 0, 0]
    assert node.kubelet.unprepare_one(claim).error == ""
    assert [len(gpu.gpu_instances) for gpu in node.gpus.gpus()] == [0] * 8


def test_a_store_that_is_locked_for_long_ends_nothing(make_node: MakeNode) -> None:
    node = make_node("hgx-h100")
    process = node.start()
    node.wait_published(8)
    connection = sqlite3.connect(node.store_path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    node.wait_log("was locked by another process", 20)
    connection.execute("ROLLBACK")
    connection.close()

    claim = create_claim(node.api, [result("gpu-0000-1b-00-0", node.name)])
    assert node.kubelet.prepare_one(claim).error == ""
    process.check_running()
    assert node.kubelet.unprepare_one(claim).error == ""
