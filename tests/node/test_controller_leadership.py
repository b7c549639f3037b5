"""Several replicas of the controller: exactly one leads, and another takes over."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.cluster.api import wait_until
from tests.cluster.controlplane import ControlPlane
from tests.harness.controller import CLASS, Controller, Replica, running_controller

LEASE = ("coordination.k8s.io/v1", "Lease")


@pytest.fixture
def controller(control_plane: ControlPlane) -> Iterator[Controller]:
    with running_controller(control_plane) as started:
        yield started


def leader_of(replicas: list[Replica], timeout: float = 20.0) -> Replica:
    leaders = wait_until(lambda: [replica for replica in replicas if replica.leads], "a leader", timeout)
    assert len(leaders) == 1
    return leaders[0]


def test_b157_when_the_leader_is_killed_another_one_acts_within_20_seconds(controller: Controller) -> None:
    replicas = [controller.start(), controller.start()]
    leader = leader_of(replicas)
    (other,) = (replica for replica in replicas if replica is not leader)
    assert other.probes.ready()[0] == 200
    assert not other.leads
    api = controller.control_plane.api
    api.wait_for(*CLASS, "mig.nvidia.com", lambda item: True, "made", timeout=15.0)
    leader.process.kill()
    killed = time.monotonic()
    api.delete(*CLASS, "mig.nvidia.com")
    api.wait_for(*CLASS, "mig.nvidia.com", lambda item: True, "restored", timeout=25.0)
    assert time.monotonic() - killed < 20.0
    assert other.leads
    lease = api.get(*LEASE, controller.lease_name)
    assert lease["spec"]["leaseTransitions"] == 1


def test_a_leader_that_ends_in_order_gives_its_lease_back(controller: Controller) -> None:
    replicas = [controller.start(), controller.start()]
    leader = leader_of(replicas)
    (other,) = (replica for replica in replicas if replica is not leader)
    assert other.probes.ready()[0] == 200
    assert leader.process.stop() == 0
    stopped = time.monotonic()
    wait_until(lambda: other.leads, "the other replica to lead", 12.0)
    assert time.monotonic() - stopped < 6.0


def test_who_loses_the_lease_stops_leading_and_stays_ready(controller: Controller) -> None:
    replica = controller.start()
    leader_of([replica])
    api = controller.control_plane.api
    api.patch(*LEASE, controller.lease_name, {"spec": {"holderIdentity": "someone else"}})
    wait_until(lambda: not replica.leads, "the leader to stop", 10.0)
    assert replica.probes.ready()[0] == 200
    wait_until(lambda: "does not lead any more" in replica.log(), "the log line", 10.0)
    # Who took it does not renew it, so it runs out.
    wait_until(lambda: replica.leads, "the replica to lead again", 20.0)
