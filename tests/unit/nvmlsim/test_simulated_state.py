"""The state file: shared by processes, whole after a kill, readable in a container."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pynvml
import pytest

from nvmlsim.library import StateError
from nvmlsim.node import SimulatedNode
from tests.unit.nvmlsim.conftest import Binding, MakeNode

CHURN = """
import ctypes, sys, pynvml
pynvml.nvmlLib = ctypes.CDLL(sys.argv[1])
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
print("ready", flush=True)
while True:
    for _ in range(3):
        pynvml.nvmlGpuInstanceCreateComputeInstance(pynvml.nvmlDeviceCreateGpuInstance(handle, 14), 1)
    for gi_id in (3, 4, 5):
        gi = pynvml.nvmlDeviceGetGpuInstanceById(handle, gi_id)
        pynvml.nvmlComputeInstanceDestroy(pynvml.nvmlGpuInstanceGetComputeInstanceById(gi, 0))
        pynvml.nvmlGpuInstanceDestroy(gi)
"""


def capability_folders(node: SimulatedNode) -> set[str]:
    folder = node.root / "proc/driver/nvidia/capabilities/gpu0/mig"
    return {str(file.parent.relative_to(folder)) for file in folder.rglob("access")}


def test_one_process_sees_what_another_made(make_node: MakeNode, nvml: Binding) -> None:
    node = make_node("hgx-h100", mig={0: ["1g.10gb"]})
    with nvml(node):
        listed = subprocess.run([node.nvidia_smi_path, "-L"], capture_output=True, text=True, check=True)
        assert node.gpu(0).mig_uuids[0] in listed.stdout
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        smi = [str(node.nvidia_smi_path), "mig", "-i", "0", "-cgi", "3g.40gb", "-C"]
        subprocess.run(smi, check=True, capture_output=True)
        device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 1)
        assert pynvml.nvmlDeviceGetName(device).endswith("MIG 3g.40gb")


def test_a_killed_writer_leaves_a_whole_state(make_node: MakeNode) -> None:
    node = make_node("hgx-h100")
    node.set_mig_mode(0)
    chance = random.Random(4)
    for _ in range(12):
        command = [sys.executable, "-c", CHURN, str(node.library_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            time.sleep(chance.uniform(0.001, 0.02))
            writer.kill()
        expected = set()
        for gi in node.gpu(0).gpu_instances:
            assert (gi.profile, gi.start) == ("2g.20gb", (gi.id - 3) * 2)
            expected.add(f"gi{gi.id}")
            expected |= {f"gi{gi.id}/ci{ci.id}" for ci in gi.compute_instances}
        assert capability_folders(node) == expected
        for gi in node.gpu(0).gpu_instances:
            node.destroy_mig(0, gi.id)


def test_a_forked_child_has_locks_of_its_own(make_node: MakeNode, nvml: Binding) -> None:
    node = make_node("t4x4")
    with nvml(node):
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        child = os.fork()
        if child == 0:
            for _ in range(200):
                pynvml.nvmlDeviceSetPersistenceMode(handle, 0)
            os._exit(0 if pynvml.nvmlDeviceGetName(handle) == "Tesla T4" else 1)
        for _ in range(200):
            pynvml.nvmlDeviceSetPersistenceMode(handle, 1)
        assert os.waitpid(child, 0)[1] == 0


def container(node: SimulatedNode, root: Path, *devices: str) -> list[str]:
    """What `nvidia-smi -L` prints in a root that has only the mounted files and these device nodes."""
    for path in (node.nvidia_smi_path, node.state_path):
        target = root / path.relative_to(node.root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
        target.chmod(0o555)
    for device in devices:
        (root / "dev" / device).parent.mkdir(parents=True, exist_ok=True)
        (root / "dev" / device).touch()
    command = ["chroot", str(root), "/usr/bin/nvidia-smi", "-L"]
    environment = {"PATH": os.environ["PATH"]}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    return done.stdout.splitlines()


@pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")
def test_a_container_sees_the_devices_whose_nodes_it_has(make_node: MakeNode, tmp_path: Path) -> None:
    node = make_node("hgx-h100", mig={2: ["1g.10gb", "1g.10gb"]})
    gpus = node.gpus()
    assert container(node, tmp_path / "one", "nvidia1", "nvidia5") == [
        f"GPU 0: NVIDIA H100 80GB HBM3 (UUID: {gpus[1].uuid})",
        f"GPU 1: NVIDIA H100 80GB HBM3 (UUID: {gpus[5].uuid})",
    ]
    gi, ci = 3 + 135 * 2 + 9 * 8, 3 + 135 * 2 + 9 * 8 + 1
    capabilities = (f"nvidia-caps/nvidia-cap{gi}", f"nvidia-caps/nvidia-cap{ci}")
    assert container(node, tmp_path / "mig", "nvidia2", *capabilities) == [
        f"GPU 0: NVIDIA H100 80GB HBM3 (UUID: {gpus[2].uuid})",
        f"  MIG 1g.10gb     Device  1: (UUID: {gpus[2].mig_uuids[1]})",
    ]
    assert container(node, tmp_path / "none") == ["No devices were found"]


def test_the_state_can_be_named(make_node: MakeNode, tmp_path: Path) -> None:
    node = make_node("t4x4")
    program = shutil.copy(node.nvidia_smi_path, tmp_path / "smi")
    for state, status in ((str(node.state_path), 0), (str(tmp_path / "nothing"), 9)):
        done = subprocess.run([program, "-L"], env={"NVMLSIM_STATE": state}, capture_output=True, text=True)
        assert done.returncode == status, done.stdout


def test_a_folder_holds_one_node(make_node: MakeNode, tmp_path: Path) -> None:
    node = make_node("t4x4")
    with pytest.raises(StateError, match="here already"):
        SimulatedNode.create(node.root, "t4x4")
    with pytest.raises(StateError, match="no simulated node here"):
        SimulatedNode(tmp_path / "empty")


def test_a_refused_change_changes_nothing(make_node: MakeNode) -> None:
    node = make_node("hgx-h100", mig={0: ["4g.40gb"], 2: ["1g.10gb"]})
    before = node.show()
    for gpu, profile, start, told in (
        (0, "4g.40gb", None, "Insufficient Resources"),
        (0, "9g.1gb", None, "no such profile"),
        (0, "1g.10gb", 9, "Invalid Argument"),
        (2, "5c.3g.40gb", None, "no compute instance of that many slices"),
        (1, "1g.10gb", None, "Not Supported"),
    ):
        with pytest.raises(StateError, match=told):
            node.create_mig(gpu, profile, start)
    with pytest.raises(StateError, match="no such GPU"):
        node.lose(8)
    assert node.show() == before
