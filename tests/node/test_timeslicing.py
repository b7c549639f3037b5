"""Time-slice intervals: set for claims that ask for them, and gone with these claims."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import uuid
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import grpc
import pytest

from tests.cluster.api import wait_until
from tests.harness.claims import API_VERSION, Claim, create_claim, delete_claim, opaque, result
from tests.harness.devices import gpu_name
from tests.harness.plugin import PluginNode, free_address, get
from tests.harness.timeslices import NOT_SUPPORTED, VERSION, intervals, smi_runs, time_slicing

MakeNode = Callable[..., PluginNode]


@pytest.fixture
def node(make_node: MakeNode) -> PluginNode:
    made = make_node("t4x4")
    made.start()
    made.wait_published(4)
    smi_runs(made.gpus)
    return made


def names(node: PluginNode) -> list[str]:
    return [gpu_name(gpu.pci_bus_id) for gpu in node.gpus.gpus()]


def sliced(node: PluginNode, interval: str | None, *gpus: int) -> Claim:
    """A claim with these GPUs that asks for an interval."""
    results = [result(names(node)[gpu], node.name) for gpu in gpus]
    return create_claim(node.api, results, configs=[opaque(time_slicing(interval))])


def plain(node: PluginNode, gpu: int) -> Claim:
    return create_claim(node.api, [result(names(node)[gpu], node.name)])


def noted(node: PluginNode) -> list[str]:
    """The GPUs of which the store notes an interval."""
    with sqlite3.connect(f"file:{node.store_path}?mode=ro", uri=True) as connection:
        rows = connection.execute("SELECT key FROM meta WHERE key LIKE 'time-slice/%'").fetchall()
    connection.close()
    return [key.removeprefix("time-slice/") for (key,) in rows]


@pytest.mark.parametrize("interval", ["Short", "Medium", "Long"])
def test_an_interval_is_there_as_long_as_its_claim(node: PluginNode, interval: str) -> None:
    claim = sliced(node, interval, 1)
    first = node.kubelet.prepare_one(claim)
    assert first.error == ""
    assert intervals(node.gpus) == {1: interval}
    assert smi_runs(node.gpus) == 1
    assert node.kubelet.prepare_one(claim) == first
    node.restart()
    assert node.kubelet.prepare_one(claim) == first
    assert smi_runs(node.gpus) == 0, "it holds already"
    assert node.kubelet.unprepare_one(claim).error == ""
    assert (intervals(node.gpus), smi_runs(node.gpus), noted(node)) == ({}, 1, [])
    assert node.gpus.gpu(1).compute_mode == 0


@pytest.mark.parametrize(
    "sharing",
    [
        {},
        {"strategy": "TimeSlicing"},
        {"strategy": "TimeSlicing", "timeSlicingConfig": {}},
        {"strategy": "TimeSlicing", "timeSlicingConfig": None},
        {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": None}},
    ],
)
def test_b040_an_absent_or_empty_configuration_sets_the_default_once(
    node: PluginNode, sharing: dict[str, object]
) -> None:
    node.gpus.set_gpu(0, timeslice=2)
    parameters = {"apiVersion": VERSION, "kind": "GpuConfig", "sharing": sharing}
    claim = create_claim(node.api, [result(names(node)[0], node.name)], configs=[opaque(parameters)])
    assert node.kubelet.prepare_one(claim).error == ""
    assert node.kubelet.prepare_one(claim).error == ""
    assert (intervals(node.gpus), smi_runs(node.gpus)) == ({}, 1)
    assert node.kubelet.unprepare_one(claim).error == ""
    assert smi_runs(node.gpus) == 0


def test_b044_time_slicing_of_a_mig_device_is_accepted_and_runs_nothing(make_node: MakeNode) -> None:
    node = make_node("hgx-h100", mig={0: ["3g.40gb"]})
    node.start()
    device = next(name for name in sorted(node.wait_published(8)) if "-mig-" in name)
    smi_runs(node.gpus)

    def claim(sharing: dict[str, object]) -> Claim:
        parameters = {"apiVersion": VERSION, "kind": "MigDeviceConfig", "sharing": sharing}
        return create_claim(node.api, [result(device, node.name)], configs=[opaque(parameters)])

    wrong = claim({"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}})
    assert "sharing.timeSlicingConfig is unknown" in node.kubelet.prepare_one(wrong).error
    right = claim({"strategy": "TimeSlicing"})
    assert node.kubelet.prepare_one(right).names == [device]
    assert node.kubelet.unprepare_one(right).error == ""
    assert (smi_runs(node.gpus), intervals(node.gpus)) == (0, {})


def test_b097_a_claim_without_sharing_runs_nothing(node: PluginNode) -> None:
    node.gpus.set_gpu(0, timeslice=3)
    held = sliced(node, "Short", 1)
    assert node.kubelet.prepare_one(held).error == ""
    smi_runs(node.gpus)
    empty = {"apiVersion": VERSION, "kind": "GpuConfig"}
    other = create_claim(node.api, [result(names(node)[2], node.name)], configs=[opaque(empty)])
    for claim in (plain(node, 0), other):
        assert node.kubelet.prepare_one(claim).error == ""
        assert node.kubelet.unprepare_one(claim).error == ""
    assert (smi_runs(node.gpus), intervals(node.gpus)) == (0, {0: "Long", 1: "Short"})


def test_b098_a_gpu_without_time_slicing_fails_short_and_takes_the_default(node: PluginNode) -> None:
    node.gpus.set_gpu(0, timeslice_code=NOT_SUPPORTED)
    gpu = node.gpus.gpu(0)
    error = node.kubelet.prepare_one(sliced(node, "Short", 0)).error
    for word in (gpu.pci_bus_id, gpu.uuid, "Short", "compute-policy", "Not Supported"):
        assert word in error
    assert (node.claims_in_store(), node.cdi_files(), noted(node)) == ({}, [], [])
    claim = sliced(node, "Default", 0)
    assert node.kubelet.prepare_one(claim).names == [names(node)[0]]
    node.wait_log(f"interval Default cannot be set on GPU {gpu.pci_bus_id}")
    assert node.kubelet.unprepare_one(claim).error == ""


def test_b099_a_reset_that_is_not_supported_holds_up_no_pod(node: PluginNode) -> None:
    claim = sliced(node, "Long", 0)
    assert node.kubelet.prepare_one(claim).error == ""
    node.gpus.set_gpu(0, timeslice_code=NOT_SUPPORTED)
    assert node.kubelet.unprepare_one(claim).error == ""
    node.wait_log("interval Default cannot be set on GPU")
    assert (node.claims_in_store(), node.cdi_files(), noted(node)) == ({}, [], [])


@pytest.mark.parametrize("trouble", [{"timeslice_code": 15}, {"timeslice_delay_ms": 3_600_000}])
def test_b099_what_could_not_be_put_back_is_put_back_by_the_clean_up(
    make_node: MakeNode, trouble: dict[str, int]
) -> None:
    node = make_node("t4x4")
    node.flags.update({"cleanup-seconds": "0.5", "nvml-timeout-seconds": "2"})
    address = free_address()
    node.start(http_address=address)
    node.wait_published(4)
    claim = sliced(node, "Long", 0)
    assert node.kubelet.prepare_one(claim).error == ""
    node.gpus.set_gpu(0, **trouble)
    assert node.kubelet.unprepare_one(claim).error == ""
    assert (node.claims_in_store(), intervals(node.gpus)) == ({}, {0: "Long"})
    wait_until(lambda: any("TimeSliceLeft" in event for event in node.api.events(node.name)), "an event", 15)
    metrics = get(f"http://{address}/metrics")[1]
    assert 'gpudra_nvidia_smi_seconds_count{outcome="ok"} 1.0' in metrics
    assert 'gpudra_nvidia_smi_seconds_count{outcome="failed"}' in metrics
    node.gpus.set_gpu(0, **dict.fromkeys(trouble, 0))
    wait_until(lambda: not intervals(node.gpus) and not noted(node), "the default to be back", 20)


def test_b100_an_admin_claim_sets_nothing_and_puts_nothing_back(node: PluginNode) -> None:
    claim = sliced(node, "Long", 0)
    results = [result(names(node)[0], node.name, adminAccess=True)]
    node.api.apply(
        "{apiVersion: v1, kind: Namespace, metadata: {name: watching, "
        "labels: {resource.kubernetes.io/admin-access: 'true'}}}"
    )
    watching = create_claim(node.api, results, namespace="watching", configs=[opaque(time_slicing("Short"))])
    assert node.kubelet.prepare_one(claim).error == ""
    assert smi_runs(node.gpus) == 1
    assert node.kubelet.prepare_one(watching).error == ""
    assert node.kubelet.unprepare_one(watching).error == ""
    assert (smi_runs(node.gpus), intervals(node.gpus)) == (0, {0: "Long"})
    assert node.kubelet.unprepare_one(claim).error == ""
    assert (smi_runs(node.gpus), intervals(node.gpus)) == (1, {})


def shared(node: PluginNode, interval: str | None, *gpus: int) -> Claim:
    """A claim with a share of each of these GPUs."""
    results = [result(names(node)[gpu], node.name, shareID=str(uuid.uuid4())) for gpu in gpus]
    configs = [] if interval is None else [opaque(time_slicing(interval))]
    return create_claim(node.api, results, configs=configs)


def test_b100_the_default_comes_back_once_after_the_last_of_those_who_share(node: PluginNode) -> None:
    first, second, silent = shared(node, "Long", 0), shared(node, "Long", 0), shared(node, None, 0)
    answers = node.kubelet.prepare(first, second, silent)
    assert {answer.error for answer in answers.values()} == {""}
    assert (smi_runs(node.gpus), intervals(node.gpus)) == (1, {0: "Long"})
    assert node.kubelet.unprepare_one(first).error == ""
    node.restart()
    assert (smi_runs(node.gpus), intervals(node.gpus)) == (0, {0: "Long"})
    assert node.kubelet.unprepare_one(second).error == ""
    assert (smi_runs(node.gpus), intervals(node.gpus)) == (1, {})
    assert node.claims_in_store() == {silent.uid: "prepared"}
    assert node.kubelet.unprepare_one(silent).error == ""
    assert (smi_runs(node.gpus), noted(node)) == (0, [])


def test_b101_the_second_claim_that_wants_another_interval_waits_for_the_first(node: PluginNode) -> None:
    first, second = shared(node, "Short", 0), shared(node, "Long", 1, 0)
    assert node.kubelet.prepare_one(first).error == ""
    smi_runs(node.gpus)
    error = node.kubelet.prepare_one(second).error
    for word in (second.name, "interval Long", "interval Short", f"claim default/{first.name}", first.uid):
        assert word in error
    assert (smi_runs(node.gpus), intervals(node.gpus)) == (0, {0: "Short"})
    assert node.claims_in_store() == {first.uid: "prepared"}
    assert node.kubelet.unprepare_one(first).error == ""
    assert node.kubelet.prepare_one(second).error == ""
    assert intervals(node.gpus) == {0: "Long", 1: "Long"}
    assert node.kubelet.unprepare_one(second).error == ""
    assert intervals(node.gpus) == {}


def test_b101_two_that_ask_for_different_intervals_at_once_do_not_both_get_it(node: PluginNode) -> None:
    for _ in range(5):
        claims = [shared(node, interval, 0) for interval in ("Short", "Long", "Medium")]
        answers = node.kubelet.prepare(*claims)
        prepared = [claim for claim in claims if not answers[claim.uid].error]
        assert len(prepared) == 1, answers
        assert len(intervals(node.gpus)) == 1
        node.kubelet.unprepare(*claims)
        assert (intervals(node.gpus), node.claims_in_store()) == ({}, {})


def test_b105_when_the_second_gpu_fails_the_first_gets_back_what_it_had(node: PluginNode) -> None:
    node.gpus.set_gpu(1, timeslice_code=15)
    error = node.kubelet.prepare_one(sliced(node, "Long", 0, 1)).error
    assert node.gpus.gpu(1).uuid in error
    assert node.gpus.gpu(0).uuid not in error
    assert "GPU is lost" in error
    assert intervals(node.gpus) == {}
    assert (node.claims_in_store(), node.cdi_files()) == ({}, [])
    node.gpus.set_gpu(1, timeslice_code=0)
    claim = sliced(node, "Long", 0, 1)
    assert node.kubelet.prepare_one(claim).error == ""
    assert intervals(node.gpus) == {0: "Long", 1: "Long"}
    assert node.kubelet.unprepare_one(claim).error == ""
    assert (intervals(node.gpus), noted(node)) == ({}, [])


def test_b106_a_command_that_hangs_is_killed_and_holds_up_only_its_gpu(make_node: MakeNode) -> None:
    node = make_node("t4x4")
    node.start(nvml_timeout_seconds="4")
    node.wait_published(4)
    node.gpus.set_gpu(0, timeslice_delay_ms=3_600_000)
    claim, other = sliced(node, "Short", 0), sliced(node, "Short", 1)
    answers = []
    with node.connect() as kubelet:
        hanging = Thread(target=lambda: answers.append(kubelet.prepare_one(claim)))
        hanging.start()
        wait_until(lambda: bool(smi_processes(node)), "nvidia-smi to run", 10)
        assert node.kubelet.prepare_one(other).error == ""
        assert node.kubelet.unprepare_one(other).error == ""
        assert not answers
        hanging.join(30)
    uuid = node.gpus.gpu(0).uuid
    command = f"{node.gpus.nvidia_smi_path} compute-policy -i {uuid} --set-timeslice 1"
    assert f"{command} has not ended within 4 s and was killed" in answers[0].error
    assert (node.claims_in_store(), node.cdi_files(), intervals(node.gpus)) == ({}, [], {})
    assert not smi_processes(node)
    assert node.process is not None
    assert not children(node.process.pid), "no zombie"


def smi_processes(node: PluginNode) -> list[int]:
    """The runs of this node's nvidia-smi that there are now."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (path / "exe").readlink() == node.gpus.nvidia_smi_path:
                found.append(int(path.name))
        except OSError:
            continue
    return found


def children(pid: int) -> list[str]:
    """The states of a process's children."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == pid:
            found.append(state)
    return found


def test_b107_without_nvidia_smi_only_claims_that_ask_for_an_interval_fail(node: PluginNode) -> None:
    node.gpus.nvidia_smi_path.unlink()
    error = node.kubelet.prepare_one(sliced(node, "Short", 0)).error
    for folder in ("usr/bin", "usr/local/bin", "opt/bin"):
        assert str(node.gpus.root / folder / "nvidia-smi") in error
    assert (node.claims_in_store(), node.cdi_files()) == ({}, [])
    claim = plain(node, 0)
    assert node.kubelet.prepare_one(claim).error == ""
    assert node.kubelet.unprepare_one(claim).error == ""


def test_b108_after_a_reboot_it_is_set_again(node: PluginNode) -> None:
    claim = sliced(node, "Short", 0)
    first = node.kubelet.prepare_one(claim)
    node.kill()
    node.gpus.reboot()
    node.start()
    assert intervals(node.gpus) == {}
    assert node.kubelet.prepare_one(claim) == first
    assert intervals(node.gpus) == {0: "Short"}
    node.kill()
    node.gpus.reboot()
    node.start()
    smi_runs(node.gpus)
    assert node.kubelet.unprepare_one(claim).error == ""
    assert (smi_runs(node.gpus), noted(node)) == (0, [])


def test_a_claim_of_256_pods_is_prepared_once_and_keeps_its_interval_until_it_ends(node: PluginNode) -> None:
    claim = sliced(node, "Long", 0)
    pods = [{"resource": "pods", "name": f"pod-{n}", "uid": str(uuid.uuid4())} for n in range(256)]
    body = {"status": {"reservedFor": pods}}
    node.api.patch(API_VERSION, "ResourceClaim", claim.name, body, claim.namespace, subresource="status")
    first = node.kubelet.prepare_one(claim)
    assert first.error == ""
    written = node.store_path.with_name("state.db-wal").stat().st_size
    answers: list[object] = []
    threads = [
        Thread(target=lambda: answers.extend(node.kubelet.prepare_one(claim) for _ in range(51)))
        for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == [first] * 255
    assert smi_runs(node.gpus) == 1
    assert len(node.cdi_files()) == 1
    assert node.store_path.with_name("state.db-wal").stat().st_size == written
    assert intervals(node.gpus) == {0: "Long"}
    assert node.kubelet.unprepare_one(claim).error == ""
    assert (smi_runs(node.gpus), intervals(node.gpus), node.cdi_files()) == (1, {}, [])


def test_a_claim_that_the_kubelet_forgot_takes_its_interval_with_it(make_node: MakeNode) -> None:
    node = make_node("t4x4")
    node.flags.update({"cleanup-seconds": "0.3", "claim-grace-seconds": "0.3"})
    node.start()
    node.wait_published(4)
    claim = sliced(node, "Medium", 2)
    assert node.kubelet.prepare_one(claim).error == ""
    delete_claim(node.api, claim)
    wait_until(lambda: not node.claims_in_store(), "the claim to be forgotten", 10)
    assert (intervals(node.gpus), noted(node)) == ({}, [])


def test_b063_after_the_store_was_lost_the_interval_is_put_back_with_its_claim(node: PluginNode) -> None:
    claim = sliced(node, "Long", 0)
    assert node.kubelet.prepare_one(claim).error == ""
    node.kill()
    for path in node.data_path.glob("state.db*"):
        path.unlink()
    node.start()
    wait_until(lambda: node.claims_in_store() == {claim.uid: "prepared"}, "the claim to be rebuilt", 10)
    assert intervals(node.gpus) == {0: "Long"}
    assert node.kubelet.unprepare_one(claim).error == ""
    assert (intervals(node.gpus), noted(node)) == ({}, [])


def test_killed_while_the_command_runs_the_next_process_waits_for_its_end(node: PluginNode) -> None:
    node.gpus.set_gpu(0, timeslice_delay_ms=3_600_000)
    claim = sliced(node, "Long", 0)
    preparing = Thread(target=lambda: _prepare_anyhow(node, claim))
    preparing.start()
    wait_until(lambda: bool(smi_processes(node)), "nvidia-smi to run", 10)
    assert node.process is not None
    node.process.kill()
    preparing.join(10)
    node.close_kubelet()
    (orphan,) = smi_processes(node)
    node.gpus.set_gpu(0, timeslice_delay_ms=0)
    node.start()

    answers = []
    unpreparing = Thread(target=lambda: answers.append(node.kubelet.unprepare_one(claim)))
    unpreparing.start()
    unpreparing.join(1.5)
    assert (answers, smi_processes(node)) == ([], [orphan])
    os.kill(orphan, signal.SIGKILL)
    unpreparing.join(30)
    assert [answer.error for answer in answers] == [""]
    assert (intervals(node.gpus), noted(node), node.claims_in_store()) == ({}, [], {})


def _prepare_anyhow(node: PluginNode, claim: Claim) -> None:
    with contextlib.suppress(grpc.RpcError):
        node.kubelet.prepare_one(claim)
