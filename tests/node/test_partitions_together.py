"""Partitions beside each other and beside everything else: load, slow NVML, other boards, clean-up."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from nvmlsim.gpus import SimulatedGpu
from tests.cluster.api import wait_until
from tests.harness.claims import Claim, create_claim, delete_claim, result
from tests.harness.devices import gpu_name, value
from tests.harness.kubelet import Answer
from tests.harness.plugin import PluginNode, free_address
from tests.harness.probes import Probes
from tests.node.conftest import MakeNode

UNKNOWN = 999


def name_of(gpu: SimulatedGpu, profile: str, start: int) -> str:
    return f"{gpu_name(gpu.pci_bus_id)}-mig-{profile.replace('.', '')}-{start}"


def new_claim(node: PluginNode, *devices: str, **more: Any) -> Claim:
    results = [result(name, node.name, f"r{position}", **more) for position, name in enumerate(devices)]
    return create_claim(node.api, results)


def prepared(node: PluginNode, *devices: str) -> Claim:
    claim = new_claim(node, *devices)
    answer = node.kubelet.prepare_one(claim)
    assert (answer.error, answer.names) == ("", list(devices))
    return claim


def wait_clean(node: PluginNode) -> None:
    def clean() -> bool:
        return not node.claims_in_store() and not node.cdi_files()

    wait_until(clean, f"nothing to be left: {node.claims_in_store()}, {node.cdi_files()}", 15)


def conditions(node: PluginNode, claim: Claim) -> dict[str, tuple[str, str]]:
    """Status and reason of each device's condition Ready."""
    found = node.api.get("resource.k8s.io/v1", "ResourceClaim", claim.name)
    return {
        device["device"]: (condition["status"], condition["reason"])
        for device in (found.get("status") or {}).get("devices") or []
        for condition in device["conditions"]
    }


def test_b060_56_claims_at_once_on_8_gpus_are_as_slow_as_7_on_one(make_node: MakeNode) -> None:
    node = make_node("hgx-h100")
    probes = Probes(free_address())
    node.start(mig="dynamic", http_address=probes.address)
    node.wait_published(8 * 26, 30)
    node.gpus.set_delay("nvmlDeviceCreateGpuInstanceWithPlacement", 1000)
    claims = [
        new_claim(node, name_of(gpu, "1g.10gb", start)) for start in range(7) for gpu in node.gpus.gpus()
    ]
    started = time.monotonic()
    with ThreadPoolExecutor(len(claims)) as pool:
        answers = list(pool.map(node.kubelet.prepare_one, claims))
    seconds = time.monotonic() - started
    assert {answer.error for answer in answers} == {""}
    assert [len(gpu.mig_uuids) for gpu in node.gpus.gpus()] == [7] * 8
    assert seconds < 3 * 7, f"{seconds:.1f} s, with one lock for the node it would be 56"
    made = probes.metric("gpudra_mig_change_seconds_count", change="create-gpu-instance")
    assert made == 56
    assert probes.metric("gpudra_mig_change_seconds_sum", change="create-gpu-instance") > 56
    with ThreadPoolExecutor(len(claims)) as pool:
        assert {answer.error for answer in pool.map(node.kubelet.unprepare_one, claims)} == {""}
    assert probes.metric("gpudra_mig_change_seconds_count", change="destroy") == 56
    assert [gpu.gpu_instances for gpu in node.gpus.gpus()] == [()] * 8
    wait_clean(node)


def test_b095_seven_gpus_are_worked_on_at_the_same_time(make_node: MakeNode) -> None:
    node = make_node("hgx-h100")
    node.start(mig="dynamic")
    node.wait_published(8 * 26, 30)
    node.gpus.set_delay("nvmlDeviceGetHandleByUUID", 10_000)
    claims = [new_claim(node, name_of(gpu, "3g.40gb", 4)) for gpu in node.gpus.gpus()[:7]]
    calls: tuple[tuple[str, Callable[[Claim], Answer]], ...] = (
        ("nvmlDeviceCreateGpuInstanceWithPlacement", node.kubelet.prepare_one),
        ("nvmlGpuInstanceDestroy", node.kubelet.unprepare_one),
    )
    for symbol, call in calls:
        node.gpus.set_delay(symbol, 2000)
        with ThreadPoolExecutor(len(claims)) as pool:
            answers = [pool.submit(call, claim) for claim in claims]
            # A call is counted when it begins: all seven are under way before the first has ended.
            wait_until(lambda symbol=symbol: node.gpus.calls().get(symbol) == 7, f"7 of {symbol}", 10)  # type: ignore[misc]
            assert not any(answer.done() for answer in answers)
            assert {answer.result().error for answer in answers} == {""}
    assert node.gpus.calls().get("nvmlDeviceGetHandleByUUID", 0) == 0
    wait_clean(node)


def test_a_change_that_outlives_the_call_goes_on_and_is_found_done(make_node: MakeNode) -> None:
    node = make_node("hgx-h100")
    node.start(mig="dynamic")
    node.wait_published(8 * 26, 30)
    gpu = node.gpus.gpus()[0]
    node.gpus.set_delay("nvmlDeviceCreateGpuInstanceWithPlacement", 4000, times=1)
    claim, other = new_claim(node, name_of(gpu, "1g.10gb", 0)), new_claim(node, name_of(gpu, "1g.10gb", 1))
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(node.kubelet.prepare_one, claim, 2.0)
        wait_until(lambda: claim.uid in node.claims_in_store(), "the work to begin", 5)
        second = pool.submit(node.kubelet.prepare_one, other, 1.5)
        assert "the work on it goes on" in first.result().error
        waited = second.result().error
    assert f"still being changed by claim default/{claim.name}" in waited
    answer = node.kubelet.prepare_one(claim)
    assert answer.error == ""
    assert node.gpus.calls()["nvmlDeviceCreateGpuInstanceWithPlacement"] == 1
    assert len(node.gpus.gpus()[0].mig_uuids) == 1
    # A claim that is given up in the middle is made, and then unmade.
    node.gpus.set_delay("nvmlDeviceCreateGpuInstanceWithPlacement", 1500, times=1)
    with ThreadPoolExecutor(2) as pool:
        late = pool.submit(node.kubelet.prepare_one, other)
        wait_until(lambda: other.uid in node.claims_in_store(), "the work to begin", 5)
        assert node.kubelet.unprepare_one(other).error == ""
        late.result()
    assert node.kubelet.unprepare_one(claim).error == ""
    assert node.gpus.gpus()[0].gpu_instances == ()
    wait_clean(node)


def test_killed_while_16_prepares_run(make_node: MakeNode) -> None:
    node = make_node("hgx-h100")
    node.start(mig="dynamic")
    node.wait_published(8 * 26, 30)
    node.gpus.set_delay("nvmlGpuInstanceCreateComputeInstance", 300)
    claims = [new_claim(node, name_of(gpu, "1g.10gb", start)) for start in (0, 1) for gpu in node.gpus.gpus()]
    with ThreadPoolExecutor(16) as pool:
        calls = [pool.submit(node.kubelet.prepare_one, claim) for claim in claims]
        wait_until(lambda: any(gpu.gpu_instances for gpu in node.gpus.gpus()), "work to begin", 10)
        assert node.process is not None
        node.process.kill()
        assert all(call.exception() for call in calls)
    node.close_kubelet()
    node.gpus.clear_faults()
    node.start(mig="dynamic")
    half = [*claims[:4], *claims[8:12]]
    answers = node.kubelet.prepare(*half)
    assert {answer.error for answer in answers.values()} == {""}
    assert {answer.error for answer in node.kubelet.unprepare(*claims).values()} == {""}
    assert [gpu.gpu_instances for gpu in node.gpus.gpus()] == [()] * 8
    wait_clean(node)


def test_b077_ampere_is_never_switched(make_node: MakeNode) -> None:
    node = make_node("dgx-a100-80")
    node.gpus.set_mig_mode(0)
    node.start(mig="dynamic")
    devices = wait_until(node.published, "devices", 30)
    on, off = node.gpus.gpus()[:2]
    assert gpu_name(on.pci_bus_id) not in devices
    assert gpu_name(off.pci_bus_id) in devices
    assert name_of(on, "1g.10gb", 0) in devices
    claims = [
        prepared(node, name_of(on, "1g.10gb", 0), name_of(on, "3g.40gb", 4)),
        prepared(node, gpu_name(off.pci_bus_id)),
    ]
    assert len(node.gpus.gpus()[0].mig_uuids) == 2
    assert {answer.error for answer in node.kubelet.unprepare(*claims).values()} == {""}
    assert node.gpus.calls().get("nvmlDeviceSetMigMode", 0) == 0
    assert [gpu.mig_mode for gpu in node.gpus.gpus()][:2] == [True, False]


def test_b010_b076_static_and_off_never_change_mig(make_node: MakeNode) -> None:
    node = make_node("hgx-h100", mig={1: ["3g.40gb"]})
    node.start(mig="static")
    node.wait_published(8)
    gpus = node.gpus.gpus()
    whole = new_claim(node, gpu_name(gpus[0].pci_bus_id))
    node.gpus.set_mig_mode(0)
    error = node.kubelet.prepare_one(whole).error
    assert f"MIG mode is on for GPU {gpus[0].uuid}" in error
    error = node.kubelet.prepare_one(new_claim(node, name_of(gpus[2], "1g.10gb", 0))).error
    assert "is excluded or not usable" in error
    assert node.gpus.calls().get("nvmlDeviceSetMigMode", 0) == 0
    assert node.gpus.gpus()[0].mig_mode


def test_b096_partitions_static_instances_exclusions_and_admin_claims_work_together(
    make_node: MakeNode,
) -> None:
    node = make_node("hgx-h100", mig={0: ["1g.10gb", "2g.20gb"]})
    gpus = node.gpus.gpus()
    before = gpus[0].mig_uuids
    node.start(mig="dynamic", exclude=gpus[1].uuid)
    devices = wait_until(node.published, "devices", 30)
    static = {name: device for name, device in devices.items() if value(device, "uuid") in before}
    assert len(static) == 2
    assert not any(name.startswith(gpu_name(gpus[1].pci_bus_id)) for name in devices)
    assert gpu_name(gpus[0].pci_bus_id) not in devices
    taken = [range(one.start, one.start + one.size) for one in gpus[0].gpu_instances]
    beside = next(
        name_of(gpus[0], "1g.10gb", start) for start in range(7) if not any(start in units for units in taken)
    )
    claims = [
        prepared(node, sorted(static)[0]),
        prepared(node, beside, sorted(static)[1], name_of(gpus[2], "3g.40gb", 0)),
        prepared(node, gpu_name(gpus[3].pci_bus_id), name_of(gpus[2], "3g.40gb", 4)),
    ]
    assert "not usable" in node.kubelet.prepare_one(new_claim(node, name_of(gpus[1], "1g.10gb", 0))).error
    admin = new_claim(node, sorted(static)[0], name_of(gpus[2], "3g.40gb", 0), gpu_name(gpus[3].pci_bus_id))
    assert "in use by claim" in node.kubelet.prepare_one(admin).error
    uuids = {uuid for gpu in node.gpus.gpus() for uuid in gpu.mig_uuids}
    assert len(uuids) == 2 + 1 + 2
    assert {answer.error for answer in node.kubelet.unprepare(*claims).values()} == {""}
    assert [gpu.mig_uuids for gpu in node.gpus.gpus()] == [before] + [[]] * 7
    wait_clean(node)


def test_b087_the_clean_up_destroys_what_no_claim_needs_and_nothing_else(
    make_node: MakeNode,
) -> None:
    node = make_node("hgx-h100")
    node.start(mig="dynamic")
    node.wait_published(8 * 26, 30)
    gpu = node.gpus.gpus()[0]
    gone = [prepared(node, name_of(gpu, "1g.10gb", start)) for start in (0, 1)]
    kept = prepared(node, name_of(gpu, "1g.10gb", 2))
    foreign = node.gpus.create_mig(0, "2g.20gb", 4)
    for claim in gone:
        delete_claim(node.api, claim)
    node.kill()
    node.gpus.set_return("nvmlGpuInstanceDestroy", UNKNOWN, times=1)
    node.start(mig="dynamic", cleanup_seconds="0.3", claim_grace_seconds="0.3")
    wait_until(lambda: set(node.claims_in_store()) == {kept.uid}, "both to be freed", 15)
    assert "UNKNOWN (999)" in node.log()
    left = {(one.profile, one.start) for one in node.gpus.gpus()[0].gpu_instances}
    assert left == {("1g.10gb", 2), ("2g.20gb", 4)}
    assert foreign.compute_instances[0].uuid in node.gpus.gpus()[0].mig_uuids
    assert node.kubelet.unprepare_one(kept).error == ""
    assert node.gpus.gpus()[0].mig_uuids == [foreign.compute_instances[0].uuid]


def test_a_partition_destroyed_behind_our_back_is_told_once_and_made_again(make_node: MakeNode) -> None:
    node = make_node("hgx-h100")
    probes = Probes(free_address())
    node.start(mig="dynamic", cleanup_seconds="0.3", http_address=probes.address)
    node.wait_published(8 * 26, 30)
    gpu = node.gpus.gpus()[0]
    lost, other = name_of(gpu, "1g.10gb", 0), name_of(gpu, "3g.40gb", 4)
    claim = new_claim(node, lost, other)
    first = node.kubelet.prepare_one(claim)
    assert first.error == ""
    ready = {lost: ("True", "Prepared"), other: ("True", "Prepared")}
    wait_until(lambda: conditions(node, claim) == ready, "Ready", 10)
    (instance,) = [one for one in node.gpus.gpus()[0].gpu_instances if one.start == 0]
    node.gpus.destroy_mig(0, instance.id)
    wait_until(
        lambda: conditions(node, claim) == {**ready, lost: ("False", "MigDeviceGone")}, "not Ready", 10
    )

    def told() -> list[str]:
        return [text for text in node.api.events(claim.name) if "MigDeviceGone" in text]

    wait_until(told, "an event on the claim", 10)
    assert instance.compute_instances[0].uuid in told()[0]
    rounds = probes.metric("gpudra_api_requests_total", verb="GET", code="200")
    wait_until(
        lambda: probes.metric("gpudra_api_requests_total", verb="GET", code="200") > rounds + 3,
        "more rounds",
        10,
    )
    assert len(told()) == 1
    assert node.log().count("does not exist any more") == 1

    assert node.kubelet.prepare_one(claim) == first
    wait_until(lambda: conditions(node, claim) == ready, "Ready again", 10)
    assert sorted(one.start for one in node.gpus.gpus()[0].gpu_instances) == [0, 4]
    assert node.kubelet.unprepare_one(claim).error == ""
    assert node.gpus.gpus()[0].gpu_instances == ()


def test_b073_a_missing_device_node_undoes_the_partition(make_node: MakeNode) -> None:
    node = make_node("hgx-h100")
    node.start(mig="dynamic")
    node.wait_published(8 * 26, 30)
    gpu = node.gpus.gpus()[0]
    hidden = node.gpus.root / f"dev/nvidia{gpu.minor}"
    aside = hidden.rename(hidden.with_name("aside"))
    claim = new_claim(node, name_of(gpu, "1g.10gb", 0))
    assert f"nvidia{gpu.minor}" in node.kubelet.prepare_one(claim).error
    after = node.gpus.gpus()[0]
    assert (after.gpu_instances, after.mig_mode) == ((), False)
    assert (node.claims_in_store(), node.cdi_files()) == ({}, [])
    aside.rename(hidden)
    assert node.kubelet.prepare_one(claim).error == ""
    assert node.kubelet.unprepare_one(claim).error == ""
