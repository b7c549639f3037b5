"""Two plugin processes on one node, as in a rolling update, and sockets that others leave."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc

from tests.cluster.api import wait_until
from tests.harness.claims import Claim, create_claim, result
from tests.harness.kubelet import Kubelet
from tests.harness.plugin import PluginNode

MakeNode = Callable[..., PluginNode]


def cycles(
    kubelets: list[Kubelet], claims: list[Claim], stop: threading.Event, seed: int
) -> tuple[int, list[str]]:
    """Prepare and unprepare, each call at any of the plugins, until told to stop; count and errors."""
    choose = random.Random(seed)
    count, errors = 0, []
    while not stop.is_set():
        claim = choose.choice(claims)
        prepared = choose.choice(kubelets).prepare_one(claim)
        again = choose.choice(kubelets).prepare_one(claim)
        gone = choose.choice(kubelets).unprepare_one(claim)
        errors += [error for error in (prepared.error, again.error, gone.error) if error]
        if prepared != again:
            errors.append(f"two answers: {prepared} and {again}")
        count += 1
    return count, errors


def test_b133_calls_go_on_while_a_new_version_takes_over(make_node: MakeNode) -> None:
    node = make_node()
    old = node.start(pod_uid="aaaa")
    names = sorted(node.wait_published(8))
    claims = [create_claim(node.api, [result(name, node.name)]) for name in names]
    held = claims.pop()
    first = node.connect("aaaa")
    answer = first.prepare_one(held)
    generation = node.slices()[0]["spec"]["pool"]["generation"]

    kubelets = [first]
    stop = threading.Event()
    with ThreadPoolExecutor(4) as pool:
        # Two claims for each caller, so that none waits for another: no conflict is to be seen.
        workers = [pool.submit(cycles, kubelets, claims[n : n + 1], stop, n) for n in range(4)]
        new = node.start(pod_uid="bbbb")
        second = node.connect("bbbb")
        second.register()
        kubelets.append(second)
        time.sleep(1.5)
        kubelets.remove(first)
        time.sleep(0.2)
        assert old.stop() == 0
        time.sleep(0.5)
        stop.set()
        outcomes = [worker.result(30) for worker in workers]
    first.close()
    assert [errors for _, errors in outcomes] == [[]] * 4
    assert sum(count for count, _ in outcomes) >= 100
    assert not node.sockets("aaaa")[0].exists()
    assert not node.sockets("aaaa")[1].exists()
    new.check_running()
    assert second.prepare_one(held) == answer
    assert node.claims_in_store() == {held.uid: "prepared"}
    assert node.cdi_files() == [f"gpudra.io-claim_{held.uid}.json"]
    assert second.unprepare_one(held).error == ""
    second.close()
    assert sorted(node.published()) == names
    assert node.slices()[0]["spec"]["pool"]["generation"] == generation


def test_b048_a_prepare_that_waits_in_one_process_is_refused_after_an_unprepare_in_the_other(
    make_node: MakeNode,
) -> None:
    node = make_node()
    processes = [node.start(pod_uid=pod_uid) for pod_uid in ("aaaa", "bbbb")]
    name = sorted(node.wait_published(8))[0]
    claim = create_claim(node.api, [result(name, node.name)])
    node.gpus.set_delay("nvmlDeviceGetHandleByPciBusId_v2", 700, gpu=0)
    with node.connect("aaaa") as first, node.connect("bbbb") as second, ThreadPoolExecutor(1) as pool:
        late = pool.submit(first.prepare_one, claim)
        time.sleep(0.3)
        assert second.unprepare_one(claim).error == ""
        assert "was unprepared while this Prepare waited" in late.result(10).error
    assert (node.claims_in_store(), node.cdi_files()) == ({}, [])
    assert [process.stop() for process in processes] == [0, 0]


def test_b066_two_processes_and_their_clean_ups_keep_store_and_node_in_agreement(make_node: MakeNode) -> None:
    node = make_node(mig={0: ["1g.10gb"] * 7})
    node.flags.update({"cleanup-seconds": "0.05", "claim-grace-seconds": "60"})
    processes = [node.start(pod_uid="aaaa"), node.start(pod_uid="bbbb")]
    names = sorted(node.wait_published(14))
    # 50 claims over 14 devices: most meet another one.
    claims = [create_claim(node.api, [result(names[n % 14], node.name)]) for n in range(50)]
    kubelets = [node.connect("aaaa"), node.connect("bbbb")]
    refusals: list[str] = []

    def use(claim: Claim) -> None:
        choose = random.Random(claim.uid)
        for _ in range(3):
            answer = choose.choice(kubelets).prepare_one(claim)
            refusals.extend([answer.error] if answer.error else [])
            if choose.random() < 0.7:
                gone = choose.choice(kubelets).unprepare_one(claim)
                refusals.extend([gone.error] if gone.error else [])

    with ThreadPoolExecutor(50) as pool:
        list(pool.map(use, claims))

    assert [text for text in refusals if "in use by claim" not in text] == []
    held = node.claims_in_store()
    assert set(held.values()) <= {"prepared"}
    assert node.cdi_files() == [f"gpudra.io-claim_{uid}.json" for uid in sorted(held)]
    devices = [device for uid in held for device in node.device_nodes(uid)]
    assert len(devices) == len(set(devices))
    for claim in claims:
        assert kubelets[0].unprepare_one(claim).error == ""
    assert (node.claims_in_store(), node.cdi_files()) == ({}, [])
    for kubelet in kubelets:
        kubelet.close()
    assert [process.stop() for process in processes] == [0, 0]


def test_b132_the_socket_of_a_killed_process_is_taken_over(node: PluginNode) -> None:
    node.kill()
    assert all(path.is_socket() for path in node.sockets())
    before = [path.stat().st_ino for path in node.sockets()]
    node.start()
    assert node.kubelet.register().name == "gpu.nvidia.com"
    assert node.kubelet.prepare() == {}
    assert [path.stat().st_ino for path in node.sockets()] != before
    assert node.stop() == 0
    assert not any(path.exists() for path in node.sockets())


def test_b132_the_late_end_of_an_old_process_takes_only_its_own_sockets_away(node: PluginNode) -> None:
    old = node.process
    assert old is not None
    inode = node.sockets()[1].stat().st_ino
    node.start(wait=False)
    wait_until(lambda: node.sockets()[1].stat().st_ino != inode, "the new process to take over", 10)
    assert old.stop() == 0
    with node.connect() as kubelet:
        assert kubelet.register().name == "gpu.nvidia.com"
        assert kubelet.prepare() == {}


def test_what_is_no_socket_at_a_sockets_place_is_named_and_left_alone(make_node: MakeNode) -> None:
    node = make_node()
    node.registry.mkdir()
    foreign = node.sockets()[1]
    foreign.write_text("somebody's")
    process = node.start(wait=False)
    assert process.wait(15) == 1
    assert f"{foreign} is taken by something that is no socket: remove it" in node.log()
    assert foreign.read_text() == "somebody's"
    foreign.unlink()
    node.start()


def test_a_socket_path_that_is_too_long_is_named(make_node: MakeNode) -> None:
    node = make_node()
    process = node.start(wait=False, pod_uid=str(uuid.uuid4()) + "x" * 40)
    assert process.wait(15) == 1
    assert "bytes, the limit is 107" in node.log()


def test_calls_under_way_finish_when_the_process_is_told_to_end(node: PluginNode) -> None:
    name = sorted(node.wait_published(8))[0]
    claim = create_claim(node.api, [result(name, node.name)])
    node.gpus.set_delay("nvmlDeviceGetHandleByPciBusId_v2", 800, gpu=0)
    with node.connect() as kubelet, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(kubelet.prepare_one, claim)
        time.sleep(0.3)
        assert node.process is not None
        started = time.monotonic()
        assert node.process.stop() == 0
        assert time.monotonic() - started < 2
        assert answer.result(5).names == [name]
    assert node.claims_in_store() == {claim.uid: "prepared"}


def test_the_process_ends_in_two_seconds_though_a_call_hangs(node: PluginNode) -> None:
    claim = create_claim(node.api, [result(sorted(node.wait_published(8))[0], node.name)])
    node.gpus.set_delay("nvmlDeviceGetHandleByPciBusId_v2", 30_000, gpu=0)
    with node.connect() as kubelet, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(kubelet.prepare_one, claim)
        time.sleep(0.3)
        assert node.process is not None
        started = time.monotonic()
        assert node.process.stop() == 0
        assert time.monotonic() - started < 2
        assert isinstance(answer.exception(5), grpc.RpcError)
    assert not any(path.exists() for path in node.sockets())
