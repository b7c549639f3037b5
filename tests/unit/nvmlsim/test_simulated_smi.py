"""nvidia-smi: options, NVIDIA's wording, exit statuses."""

from __future__ import annotations

import subprocess

import pytest

from nvmlsim.node import SimulatedNode
from tests.unit.nvmlsim.conftest import MakeNode


def smi(node: SimulatedNode, *arguments: str) -> tuple[int, list[str]]:
    done = subprocess.run([node.nvidia_smi_path, *arguments], capture_output=True, text=True, timeout=20)
    return done.returncode, done.stdout.splitlines()


@pytest.fixture
def node(make_node: MakeNode) -> SimulatedNode:
    return make_node("hgx-h100", mig={0: ["1g.10gb", "1c.3g.40gb"]})


def test_list(node: SimulatedNode) -> None:
    first, second = node.gpus()[:2]
    assert smi(node, "-L", "-i", "0,1") == (
        0,
        [
            f"GPU 0: NVIDIA H100 80GB HBM3 (UUID: {first.uuid})",
            f"  MIG 1g.10gb     Device  0: (UUID: {first.gpu_instances[1].compute_instances[0].uuid})",
            *(
                f"  MIG 1c.3g.40gb  Device  {index + 1}: (UUID: {ci.uuid})"
                for index, ci in enumerate(first.gpu_instances[0].compute_instances)
            ),
            f"GPU 1: NVIDIA H100 80GB HBM3 (UUID: {second.uuid})",
        ],
    )
    assert smi(node, "-L", "-i", second.uuid) == smi(node, "-L", "-i", "00000000:43:00.0")
    assert smi(node, "-L", "-i", "17") == (6, ["No devices were found"])


def test_query(node: SimulatedNode) -> None:
    uuid = node.gpu(1).uuid
    fields = "--query-gpu=index,gpu_name,uuid,pci.bus_id,memory.total,mig.mode.current,compute_cap"
    assert smi(node, fields, "--format=csv", "-i", "1") == (
        0,
        [
            "index, gpu_name, uuid, pci.bus_id, memory.total [MiB], mig.mode.current, compute_cap",
            f"1, NVIDIA H100 80GB HBM3, {uuid}, 00000000:43:00.0, 81559 MiB, Disabled, 9.0",
        ],
    )
    plain = ("--query-gpu=memory.total,driver_version,power.draw", "--format=csv,noheader,nounits", "-i", "0")
    assert smi(node, *plain) == (0, ["81559, 580.95.05, [N/A]"])
    status, lines = smi(node, "--query-gpu=colour", "--format=csv")
    assert status == 2
    assert lines[0] == 'Field "colour" is not a valid field to query.'


@pytest.mark.parametrize(
    "arguments",
    [(), ("mig", "-lgip"), ("mig", "-lgi"), ("mig", "-lcip"), ("mig", "-lci"), ("compute-policy", "--list")],
)
def test_tables_are_straight(arguments: tuple[str, ...], node: SimulatedNode) -> None:
    node.add_process(0, pid=4_000_000, gi=7, ci=0, memory_mib=100)
    status, lines = smi(node, *arguments)
    assert status == 0
    widths = {len(line) for line in lines if line.startswith(("+", "|"))}
    assert len(widths) == 1


def test_mig_listings(node: SimulatedNode) -> None:
    _, lines = smi(node, "mig", "-lgi")
    assert [line.split() for line in lines if line.startswith("|   0")] == [
        ["|", "0", "MIG", "3g.40gb", "9", "2", "4:4", "|"],
        ["|", "0", "MIG", "1g.10gb", "19", "7", "0:1", "|"],
    ]
    _, lines = smi(node, "mig", "-lgipp", "-i", "1")
    assert "GPU  1 Profile ID  9 Placements: {0,4}:4" in lines
    assert "GPU  1 Profile ID  0 Placement : {0}:8" in lines
    assert smi(node, "mig", "-lgi", "-i", "1") == (6, ["No MIG-enabled devices found."])


def test_mig_life(node: SimulatedNode) -> None:
    assert smi(node, "-i", "3", "-mig", "1") == (
        0,
        ["Enabled MIG Mode for GPU 00000000:61:00.0", "All done."],
    )
    assert smi(node, "mig", "-i", "3", "-cgi", "3g.40gb:4,19", "-C") == (
        0,
        [
            "Successfully created GPU instance ID  2 on GPU  3 using profile MIG 3g.40gb (ID  9)",
            "Successfully created compute instance ID  0 on GPU  3 GPU instance ID  2 "
            "using profile MIG 3g.40gb (ID  2)",
            "Successfully created GPU instance ID  7 on GPU  3 using profile MIG 1g.10gb (ID 19)",
            "Successfully created compute instance ID  0 on GPU  3 GPU instance ID  7 "
            "using profile MIG 1g.10gb (ID  0)",
        ],
    )
    status, lines = smi(node, "mig", "-i", "3", "-cgi", "7g.80gb")
    assert (status, lines[-1]) == (23, "Failed to create GPU instances: Insufficient Resources")
    status, lines = smi(node, "mig", "-i", "3", "-dgi", "-gi", "2")
    assert (status, lines[-1]) == (19, "Failed to destroy GPU instances: In use by another client")
    assert smi(node, "-i", "3", "-mig", "0")[1][0].endswith("In use by another client")
    assert smi(node, "mig", "-i", "3", "-dci")[0] == 0
    assert smi(node, "mig", "-i", "3", "-cci", "1c.3g.40gb,0", "-gi", "2")[0] == 0
    assert [ci.profile for ci in node.gpu(3).gpu_instances[0].compute_instances] == ["1c.3g.40gb"] * 2
    assert smi(node, "mig", "-i", "3", "-dci", "-gi", "2", "-ci", "0,1")[0] == 0
    assert smi(node, "mig", "-i", "3", "-dgi")[0] == 0
    assert smi(node, "-i", "3", "-mig", "0") == (
        0,
        ["Disabled MIG Mode for GPU 00000000:61:00.0", "All done."],
    )


def test_compute_mode_and_timeslice_are_kept_in_the_state(node: SimulatedNode) -> None:
    uuid = node.gpu(4).uuid
    assert smi(node, "-i", uuid, "-c", "EXCLUSIVE_PROCESS") == (
        0,
        ["Set compute mode to EXCLUSIVE_PROCESS for GPU 00000000:9D:00.0.", "All done."],
    )
    assert smi(node, "compute-policy", "-i", uuid, "--set-timeslice", "3")[0] == 0
    assert (node.gpu(4).compute_mode, node.gpu(4).timeslice) == (3, 3)
    assert [
        line.split()[1:4] for line in smi(node, "compute-policy", "-l", "-i", "4")[1] if "Long" in line
    ] == [["4", "Timeslice", "Long"]]
    assert smi(node, "compute-policy", "--set-timeslice=7")[0] == 2
    assert smi(node, "-c", "sometimes")[0] == 2


def test_a_change_of_the_timeslice_can_fail_and_hang_on_one_gpu(node: SimulatedNode) -> None:
    node.set_gpu(0, timeslice_code=3, timeslice_delay_ms=3_600_000)
    node.set_gpu(1, timeslice_code=3)
    assert smi(node, "compute-policy", "-i", "1,2", "--set-timeslice", "1") == (
        3,
        ["Failed to set timeslice policy for GPU 1: Not Supported"],
    )
    assert smi(node, "compute-policy", "-i", "2", "--set-timeslice", "1")[0] == 0
    assert [node.gpu(number).timeslice for number in (0, 1, 2)] == [0, 0, 1]
    hanging = ["compute-policy", "-i", node.gpu(0).uuid, "--set-timeslice", "1"]
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([node.nvidia_smi_path, *hanging], timeout=0.3)
    assert node.gpu(0).timeslice == 0


def test_failure_and_hang_can_be_set(node: SimulatedNode) -> None:
    node.set_nvidia_smi(exit_code=15)
    assert smi(node, "-L")[0] == 15
    node.set_nvidia_smi(delay_ms=5000)
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([node.nvidia_smi_path, "-L"], timeout=0.3, capture_output=True)
    node.set_nvidia_smi()
    node.load_driver(False)
    status, lines = smi(node)
    assert status == 9
    assert lines[0].startswith(
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    )
    node.load_driver()
    node.set_driver_version("581.0", reload=False)
    assert smi(node) == (18, ["Failed to initialize NVML: Driver/library version mismatch"])


def test_wrong_arguments(node: SimulatedNode) -> None:
    assert smi(node, "--frobnicate")[0] == 1
    assert smi(node, "mig", "-x")[0] == 1
    assert smi(node, "-h")[0] == 0
