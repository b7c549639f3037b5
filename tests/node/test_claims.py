"""Claims that meet: conflicts, locks, slow hardware, callers that give up, administrators."""

from __future__ import annotations

import contextlib
import fcntl
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from kubeletplugin.api import dra_v1_pb2
from nvmlsim.node import ALL_SYMBOLS
from tests.cluster.api import wait_until
from tests.cluster.controlplane import ControlPlane
from tests.harness.claims import Claim, create_claim, result
from tests.harness.kubelet import Answer
from tests.harness.plugin import PluginNode, plugin_node

MakeNode = Callable[..., PluginNode]

GET_GPU = "nvmlDeviceGetHandleByPciBusId_v2"


@pytest.fixture(scope="module")
def node(control_plane: ControlPlane) -> Iterator[PluginNode]:
    """An eight-GPU H100 node whose plugin runs through the tests that leave it as it was."""
    with plugin_node(control_plane) as made:
        made.start()
        made.wait_published(8)
        yield made


@pytest.fixture(autouse=True)
def nothing_is_left(node: PluginNode) -> Iterator[None]:
    yield
    node.gpus.clear_faults()
    assert (node.claims_in_store(), node.cdi_files()) == ({}, [])


@contextlib.contextmanager
def gpu_locked(node: PluginNode, name: str) -> Iterator[None]:
    """Hold the lock of a GPU as another plugin process would."""
    path = node.data_path / "locks" / f"gpu-{node.published()[name]['attributes'][PCI]['string']}.lock"
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


PCI = "resource.kubernetes.io/pciBusID"


def unprepared(node: PluginNode) -> set[str]:
    with contextlib.closing(sqlite3.connect(node.store_path)) as connection:
        return {uid for (uid,) in connection.execute("SELECT uid FROM unprepared")}


def timed(call: Callable[[], Answer]) -> tuple[Answer, float]:
    started = time.monotonic()
    return call(), time.monotonic() - started


def test_b048_a_prepare_that_waited_through_the_unprepare_is_refused(node: PluginNode) -> None:
    name = sorted(node.published())[0]
    claim = create_claim(node.api, [result(name, node.name)])
    with ThreadPoolExecutor(2) as pool:
        with gpu_locked(node, name):
            late: Future[Answer] = pool.submit(node.kubelet.prepare_one, claim)
            waiting = node.api.get("resource.k8s.io/v1", "ResourceClaim", claim.name)
            assert waiting["metadata"]["uid"] == claim.uid
            time.sleep(0.3)  # It has read the claim by now; nothing shows that from outside.
            assert not late.done()
            unprepare = pool.submit(node.kubelet.unprepare_one, claim)
            wait_until(lambda: claim.uid in unprepared(node), "the unprepare to be noted", 5)
        assert "was unprepared while this Prepare waited" in late.result(10).error
        assert unprepare.result(10).error == ""
    assert (node.claims_in_store(), node.cdi_files()) == ({}, [])
    assert node.kubelet.prepare_one(claim).error == ""
    node.kubelet.unprepare_one(claim)


def test_b050_a_device_in_use_is_refused_naming_its_claim_until_that_is_unprepared(node: PluginNode) -> None:
    name = sorted(node.published())[0]
    holder = create_claim(node.api, [result(name, node.name)])
    heir = create_claim(node.api, [result(name, node.name)])
    assert node.kubelet.prepare_one(holder).error == ""
    error = node.kubelet.prepare_one(heir).error
    assert all(text in error for text in (f"default/{holder.name}", holder.uid, name)), error
    assert node.claims_in_store() == {holder.uid: "prepared"}
    node.kubelet.unprepare_one(holder)
    assert node.kubelet.prepare_one(heir).error == ""
    node.kubelet.unprepare_one(heir)


def test_b053_a_prepare_that_its_caller_gave_up_leaves_store_and_node_in_agreement(node: PluginNode) -> None:
    claim = create_claim(node.api, [result(sorted(node.published())[0], node.name)])
    node.gpus.set_delay(GET_GPU, 800, gpu=0)
    before = node.gpus.calls().get(GET_GPU, 0)
    message = dra_v1_pb2.Claim(namespace=claim.namespace, uid=claim.uid, name=claim.name)
    request = dra_v1_pb2.NodePrepareResourcesRequest(claims=[message])
    call = node.kubelet.dra.NodePrepareResources.future(request, timeout=30)
    wait_until(lambda: node.gpus.calls().get(GET_GPU, 0) > before, "the work to begin", 5)
    assert call.cancel()
    node.gpus.clear_faults()

    def settled() -> bool:
        held = (list(node.claims_in_store().items()), node.cdi_files())
        return held in (([], []), ([(claim.uid, "prepared")], [f"gpudra.io-claim_{claim.uid}.json"]))

    wait_until(settled, "the prepare to be finished or undone", 5)
    assert node.kubelet.prepare_one(claim).error == ""
    assert node.kubelet.unprepare_one(claim).error == ""


def test_b060_a_slow_gpu_delays_no_claim_on_another(node: PluginNode) -> None:
    slow_name, quick_name = sorted(node.published())[:2]
    slow = create_claim(node.api, [result(slow_name, node.name)])
    quick = create_claim(node.api, [result(quick_name, node.name)])
    node.gpus.set_delay(GET_GPU, 2000, gpu=0)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(timed, lambda: node.kubelet.prepare_one(slow))
        time.sleep(0.1)
        assert node.kubelet.prepare_one(quick).error == ""
        assert not first.done()
        answer, seconds = first.result(10)
        assert (answer.error, seconds > 1.9) == ("", True), seconds
    node.kubelet.unprepare(slow, quick)


def test_b060_56_static_mig_claims_at_once_with_slow_nvml(make_node: MakeNode) -> None:
    # A fifth of the real times: 0.1 s a call for 0.5 s, 9 s for the kubelet's 45 s, and so on.
    node = make_node(mig={gpu: ["1g.10gb"] * 7 for gpu in range(8)})
    node.flags.update({"rescan-seconds": "2", "nvml-timeout-seconds": "4"})
    node.start()
    names = sorted(node.wait_published(56))
    claims = [create_claim(node.api, [result(name, node.name)]) for name in names]
    node.gpus.set_delay(ALL_SYMBOLS, 100)
    with ThreadPoolExecutor(56) as pool:
        answers = list(pool.map(lambda claim: timed(lambda: node.kubelet.prepare_one(claim)), claims))
    assert {answer.error for answer, _ in answers} == {""}
    assert max(seconds for _, seconds in answers) < 9
    with ThreadPoolExecutor(56) as pool:
        assert {answer.error for answer in pool.map(node.kubelet.unprepare_one, claims)} == {""}
    assert (node.claims_in_store(), node.cdi_files()) == ({}, [])


def test_b061_two_claims_over_the_same_two_gpus_in_opposite_order(node: PluginNode) -> None:
    first, second = sorted(node.published())[:2]
    one = create_claim(node.api, [result(first, node.name, "a"), result(second, node.name, "b")])
    other = create_claim(node.api, [result(second, node.name, "a"), result(first, node.name, "b")])
    winners: set[str] = set()
    connections = {one.uid: node.connect(), other.uid: node.connect()}

    def prepare(claim: Claim) -> Answer:
        return connections[claim.uid].prepare_one(claim, timeout=10)

    with ThreadPoolExecutor(2) as pool:
        for turn in range(100):
            claims = [one, other] if turn % 2 else [other, one]
            errors = {
                claim.uid: answer.error
                for claim, answer in zip(claims, pool.map(prepare, claims), strict=True)
            }
            passed = [uid for uid, error in errors.items() if not error]
            assert len(passed) == 1, errors
            assert any("in use by claim" in error for error in errors.values())
            winners.update(passed)
            node.kubelet.unprepare(one, other)
    for connection in connections.values():
        connection.close()
    assert winners <= {one.uid, other.uid}


def test_b151_admin_access_prepares_beside_owners_and_changes_nothing(node: PluginNode) -> None:
    names = sorted(node.published())
    owner = create_claim(node.api, [result(name, node.name) for name in names[:2]])
    node.kubelet.prepare_one(owner)
    spec = node.cdi_spec(owner.uid)
    node.api.apply(
        "{apiVersion: v1, kind: Namespace, metadata: {name: admin, "
        "labels: {resource.kubernetes.io/admin-access: 'true'}}}"
    )
    admin = create_claim(
        node.api, [result(name, node.name, adminAccess=True) for name in names], namespace="admin"
    )
    node.gpus.reset_calls()
    answer = node.kubelet.prepare_one(admin)
    assert (answer.error, answer.names) == ("", names)

    later = create_claim(node.api, [result(names[2], node.name)])
    assert node.kubelet.prepare_one(later).error == ""
    node.kubelet.unprepare_one(later)
    assert node.kubelet.unprepare_one(admin).error == ""

    changing = [
        name for name in node.gpus.calls() if any(word in name for word in ("Set", "Create", "Destroy"))
    ]
    assert [name for name in changing if "EventSet" not in name] == []
    assert node.claims_in_store() == {owner.uid: "prepared"}
    assert node.cdi_spec(owner.uid) == spec
    node.kubelet.unprepare_one(owner)
