"""Which NVML function a thread is in, as messages about hanging calls name it."""

from __future__ import annotations

import threading
from pathlib import Path

from driver.nvml import Nvml, call_of_thread
from nvmlsim.node import SimulatedNode
from tests.cluster.api import wait_until


def test_b012_the_function_that_a_thread_is_in_is_known_while_it_hangs(tmp_path: Path) -> None:
    node = SimulatedNode.create(tmp_path / "gpu", "t4x4")
    nvml = Nvml(node.library_path)
    try:
        node.set_delay("nvmlDeviceGetCount_v2", 300)
        thread = threading.Thread(target=nvml.device_count)
        thread.start()
        assert thread.ident is not None
        ident = thread.ident
        wait_until(lambda: call_of_thread(ident) == "nvmlDeviceGetCount_v2", "the call", 5.0, 0.005)
        thread.join(5.0)
        assert call_of_thread(ident) == ""
        assert call_of_thread(threading.get_ident()) == ""
    finally:
        nvml.close()
