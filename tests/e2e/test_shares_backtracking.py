"""Shared devices that take from counters, in pods for which the scheduler must try more than one way.

It must find the way that there is, take back what it tried before, and give nothing twice. The plugin would
refuse a device that overlaps one in use, so that a pod runs says that its devices are free.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.api import Object
from tests.cluster.cluster import Cluster
from tests.harness.clusternode import ClusterGpuNode, cluster_gpu_node
from tests.harness.nodepolicies import write_policy
from tests.harness.partitions import instances
from tests.harness.pods import (
    MIG_CLASS,
    SHARED_CLASS,
    Pods,
    attribute,
    claim_spec,
    container,
    devices_of,
    exactly,
    first_available,
    pod,
)
from tests.harness.sharedpods import of_profile, overbooked, share_ids, share_pod

NO_ROOM = "cannot allocate all claims"
SMALL, HALF = "1g.10gb", "3g.40gb"
WHOLE = f'{attribute("type")} == "gpu"'


@pytest.fixture(scope="module", params=[1, 2], ids=["one-gpu", "two-gpus"])
def node(
    gpu_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ClusterGpuNode]:
    """H100 of which the whole, the smallest partitions and the halves are shared; the others are not."""
    machine: Path = tmp_path_factory.mktemp("machine") / "gpus.yaml"
    machine.write_text(f"gpus: [{{model: h100-sxm5-80gb, count: {request.param}}}]\n")
    profiles = {SMALL: {"shares": 3}, HALF: {"shares": "unlimited"}}
    with cluster_gpu_node(gpu_cluster, machine) as made:
        policy = write_policy(made, {"shares": 2, "profiles": profiles})
        made.start_ready(mig="dynamic", config=str(policy))
        yield made


def share(name: str, cel: str) -> Object:
    return exactly(name, SHARED_CLASS, cel=cel)


def small(name: str = "small") -> Object:
    return share(name, of_profile(SMALL))


def made_of(name: str, *claims: Object) -> list[Object]:
    """A pod with these claims, called ``0``, ``1`` and so on."""
    named = {str(number): spec for number, spec in enumerate(claims)}
    return pod(name, named, {"main": container(*named)}, grace_seconds=1)


def gpus_of(node: ClusterGpuNode, item: Object) -> dict[str, str]:
    """The address of the GPU of each request's device."""
    published = node.published()
    attribute_name = "resource.kubernetes.io/pciBusID"
    return {
        result["request"]: published[result["device"]]["attributes"][attribute_name]["string"]
        for result in item["status"]["allocation"]["devices"]["results"]
    }


def test_a_pod_has_several_shares_of_one_partition(node: ClusterGpuNode, pods: Pods) -> None:
    pods.create(*made_of("several", claim_spec(small()), claim_spec(small("one"), small("other"))))
    seen = pods.seen("several")
    claims = [pods.claim_of("several", name) for name in ("0", "1")]
    devices = {device for item in claims for device in devices_of(item)}
    assert (len(devices), len(seen.mig), len(instances(node.gpus))) == (1, 1, 1)
    assert len({identity for item in claims for identity in share_ids(item)}) == 3
    # Its three places are taken: the next share is of another one.
    pods.create(*share_pod("next", of_profile(SMALL)))
    assert pods.seen("next").mig.isdisjoint(seen.mig)
    assert overbooked(node) == []


def test_a_prioritized_list_goes_back_from_what_leaves_no_room(node: ClusterGpuNode, pods: Pods) -> None:
    gpus = len(node.gpus.gpus())
    best = first_available("best", share("whole", WHOLE), share("half", of_profile(HALF)), small())
    # One on each GPU, so that none can be had whole; beside a half there is then no room for small ones.
    alone = [exactly(f"alone-{number}", MIG_CLASS, cel=of_profile("4g.40gb")) for number in range(gpus)]
    beside = claim_spec(small("one"), small("other"))
    pods.create(*made_of("goes-back", claim_spec(best, *alone), beside))
    pods.running("goes-back")
    (chosen, *others) = pods.claim_of("goes-back", "0")["status"]["allocation"]["devices"]["results"]
    assert chosen["request"] == ("best/small" if gpus == 1 else "best/half")
    assert len({result["device"] for result in others}) == gpus
    assert overbooked(node) == []


def test_two_halves_and_a_whole_gpu_exclude_each_other(node: ClusterGpuNode, pods: Pods) -> None:
    gpus = len(node.gpus.gpus())
    whole = [share(f"whole-{number}", WHOLE) for number in range(2 * gpus)]
    pods.create(*made_of("too-much", claim_spec(*whole), claim_spec(small())))
    pods.pending("too-much", NO_ROOM)
    # Both shares of every GPU are one pod's; nothing of what was tried before is held against it.
    pods.create(*made_of("all", claim_spec(*whole)))
    assert pods.seen("all").gpus == {gpu.uuid for gpu in node.gpus.gpus()}
    assert overbooked(node) == []
    pods.delete("all", "too-much")
    halves = [share(f"half-{number}", of_profile(HALF)) for number in range(5)]
    pods.create(*made_of("halves", claim_spec(*halves, match="gpu.nvidia.com/parentUUID")))
    pods.running("halves")
    (device,) = set(devices_of(pods.claim_of("halves", "0")))
    pods.create(*made_of("exclusive", claim_spec(exactly("other", MIG_CLASS, cel=of_profile("4g.40gb")))))
    pods.running("exclusive")
    assert device not in devices_of(pods.claim_of("exclusive", "0"))
    assert overbooked(node) == []


def test_a_share_goes_where_the_whole_gpu_beside_it_is_not(node: ClusterGpuNode, pods: Pods) -> None:
    *others, last = sorted(gpu.pci_bus_id for gpu in node.gpus.gpus())
    there = f'device.attributes["resource.kubernetes.io"].pciBusID == "{last}"'
    pods.create(*share_pod("pins", f"{of_profile(SMALL)} && {there}"))
    pods.running("pins")
    both = claim_spec(small(), share("whole", WHOLE))
    # The small one that is tried first is on the GPU that must be left whole, which has two shares.
    for name in ("first", "second") if others else ():
        pods.create(*made_of(name, both))
        pods.running(name)
        assert gpus_of(node, pods.claim_of(name, "0")) == {"small": last, "whole": others[0]}
    pods.create(*made_of("third", both))
    pods.pending("third", NO_ROOM)
    assert overbooked(node) == []
