"""Several claims on one device: as many as the node policy lets, on whole GPUs and on MIG devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.api import Object, wait_until
from tests.cluster.cluster import Cluster
from tests.harness.clusternode import EXAMPLES, ClusterGpuNode, cluster_gpu_node
from tests.harness.examples import SHARING_EXAMPLES, examples, load_stand_ins
from tests.harness.nodepolicies import policy_file, write_policy
from tests.harness.partitions import gpu_pod, granted, instances
from tests.harness.pods import (
    GPU_CLASS,
    MIG_CLASS,
    Pods,
    claim_spec,
    container,
    exactly,
    pod,
)
from tests.harness.sharedpods import of_profile, overbooked, share_ids, share_pod

NO_ROOM = "cannot allocate all claims"
SMALL = "1g.10gb"
WAYS: list[dict[str, Any]] = [{"shares": 3}, {"shares": "memory"}, {"shares": "unlimited"}]


@dataclass(frozen=True)
class Setting:
    """GPUs, as in a machine file, and the entries of the node's policy."""

    machine: str
    entries: tuple[dict[str, Any], ...] = ()


def setting(machine: str, *entries: dict[str, Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("node", [Setting(machine, entries)], indirect=True, ids=[""])


@pytest.fixture
def node(
    gpu_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ClusterGpuNode]:
    """A node with the GPUs and the policy of the parameter."""
    wanted: Setting = request.param
    machine: Path = tmp_path_factory.mktemp("machine") / "gpus.yaml"
    machine.write_text(wanted.machine)
    with cluster_gpu_node(gpu_cluster, machine) as made:
        made.start_ready(mig="dynamic", config=str(write_policy(made, *wanted.entries)))
        yield made


def plain_pod(name: str, device_class: str, cel: str = "") -> list[Object]:
    """A pod with one device of a class that knows nothing of shares."""
    return claim_pod(name, exactly("device", device_class, cel=cel))


def claim_pod(name: str, *requests: Object, match: str = "") -> list[Object]:
    """A pod with one claim, ``main``."""
    spec = claim_spec(*requests, match=match)
    return pod(name, {"main": spec}, {"main": container("main")}, grace_seconds=1)


def environment(node: ClusterGpuNode, name: str) -> dict[str, str]:
    """The variables of the container of a pod."""
    said = node.cluster.node.ctr_exec("default", name, "main", "env").stdout
    return dict(line.split("=", 1) for line in said.splitlines() if "=" in line)


def places_of(node: ClusterGpuNode, device: str) -> str:
    value: str = node.published()[device]["capacity"]["shares"]["value"]
    return value


@setting("gpus: [{model: t4, count: 2}]", {"shares": 5})
def test_b102_ten_pods_share_two_gpus_and_two_more_wait(node: ClusterGpuNode, pods: Pods) -> None:
    names = [f"sharing-{number}" for number in range(10)]
    pods.create(*(item for name in names for item in share_pod(name)))
    seen = {name: pods.seen(name, timeout=60.0) for name in names}
    by_uuid = {frozenset([gpu.uuid]): gpu for gpu in node.gpus.gpus()}
    assert Counter(each.gpus for each in seen.values()) == dict.fromkeys(by_uuid, 5)
    for each in seen.values():
        assert list(each.nodes) == node.container_nodes(by_uuid[each.gpus])
    claims = [pods.claim_of(name, "share") for name in names]
    ids = [share for item in claims for share in share_ids(item)]
    assert len(set(ids)) == len(names)
    stated = [status["shareID"] for item in claims for status in item["status"]["devices"]]
    assert sorted(stated) == sorted(ids)
    assert overbooked(node) == []

    waiting = ("eleventh", "twelfth")
    pods.create(*(item for name in waiting for item in share_pod(name)))
    for name in waiting:
        pods.pending(name, NO_ROOM)
    pods.delete(names[0], names[1])
    taken = [seen[names[0]].gpus, seen[names[1]].gpus]
    assert Counter(pods.seen(name).gpus for name in waiting) == Counter(taken)
    assert pods.look(names[2]) == seen[names[2]]
    assert overbooked(node) == []


@setting("gpus: [{model: a100-sxm4-80gb}]", {"mig": "off", "shares": "memory"})
def test_b103_memory_of_a_gpu_is_given_out_until_there_is_too_little(
    node: ClusterGpuNode, pods: Pods
) -> None:
    (gpu,) = node.gpus.gpus()
    (device,) = node.published()
    variable = f"GPU_MEMORY_LIMIT_BYTES_{device.upper().replace('-', '_')}"
    asked = {"small": 20, "large": 40}
    for name, gibibytes in asked.items():
        pods.create(*share_pod(name, memory=f"{gibibytes}Gi"))
    for name, gibibytes in asked.items():
        assert pods.seen(name).gpus == {gpu.uuid}
        assert environment(node, name)[variable] == str(gibibytes << 30)
    pods.create(*share_pod("third", memory="30Gi"), *share_pod("modest"))
    pods.pending("third", NO_ROOM)
    assert pods.seen("modest").gpus == {gpu.uuid}
    assert environment(node, "modest")[variable] == str(1 << 30)

    pods.delete("small")
    assert pods.seen("third").gpus == {gpu.uuid}
    assert environment(node, "third")[variable] == str(30 << 30)
    assert overbooked(node) == []


@setting(
    f"gpus: [{{model: h100-sxm5-80gb}}]\nmig: {{0: [3g.40gb, {SMALL}]}}",
    {"mig": "static", "profiles": {SMALL: {"shares": 2}}},
)
def test_b102_a_mig_device_of_an_administrator_is_shared_and_stays(node: ClusterGpuNode, pods: Pods) -> None:
    before = instances(node.gpus)
    for name in ("first", "second"):
        pods.create(*share_pod(name))
    seen = [pods.seen(name) for name in ("first", "second")]
    assert seen[0] == seen[1] == granted(node, pods.claim_of("first", "share"))
    pods.create(*share_pod("third"))
    pods.pending("third", NO_ROOM)
    exclusive = of_profile("3g.40gb")
    pods.create(*plain_pod("alone", MIG_CLASS, exclusive))
    assert pods.seen("alone") == granted(node, pods.claim_of("alone", "main"))
    pods.create(*plain_pod("waits", MIG_CLASS, exclusive))
    pods.pending("waits", NO_ROOM)
    pods.delete("first")
    assert pods.seen("third") == seen[0]
    pods.delete("second", "third")
    assert instances(node.gpus) == before


@setting("gpus: [{model: h100-sxm5-80gb}]", {"profiles": {SMALL: {"shares": 2}}})
def test_a_partition_is_made_with_its_first_share_and_goes_with_its_last(
    node: ClusterGpuNode, pods: Pods
) -> None:
    pods.create(*share_pod("first"))
    first = pods.seen("first")
    made = instances(node.gpus)
    assert len(made) == 1
    node.kill()
    pods.create(*share_pod("second"))
    pods.event("second", "Scheduled")
    node.start_ready(mig="dynamic", config=str(policy_file(node)))
    assert pods.seen("second") == first == granted(node, pods.claim_of("second", "share"))
    assert instances(node.gpus) == made
    # Two fill it: the third gets another one, and what would overlap them has no room.
    pods.create(*share_pod("third"))
    assert pods.seen("third").mig.isdisjoint(first.mig)
    pods.create(*plain_pod("whole", GPU_CLASS), *plain_pod("all", MIG_CLASS, of_profile("7g.80gb")))
    for name in ("whole", "all"):
        pods.pending(name, NO_ROOM)
    assert overbooked(node) == []

    pods.delete("first", "third")
    assert pods.look("second") == first
    assert instances(node.gpus) == made
    pods.delete("second")
    (gpu,) = node.gpus.gpus()
    running = wait_until(lambda: running_of(node, "whole", "all"), "one of them to run", 30.0)
    assert len(running) == 1
    assert overbooked(node) == []
    pods.delete(*running)
    (other,) = {"whole", "all"} - running
    pods.running(other)
    assert (node.gpus.gpu(gpu.gpu).mig_mode, len(instances(node.gpus))) == (other == "all", other == "all")


def running_of(node: ClusterGpuNode, *names: str) -> set[str]:
    return {name for name in names if node.api.get("v1", "Pod", name)["status"].get("phase") == "Running"}


@setting("gpus: [{model: t4}]", {"shares": 2})
def test_a_new_policy_waits_for_those_who_share_a_gpu(node: ClusterGpuNode, pods: Pods) -> None:
    pods.create(*share_pod("holds"), *share_pod("too"))
    held = pods.seen("holds")
    pods.seen("too")
    (device,) = node.published()
    write_policy(node, {"shares": 3})
    said = node_event(node, "PolicyWaits")
    assert device in said
    assert places_of(node, device) == "2"
    pods.create(*share_pod("third"))
    pods.pending("third", NO_ROOM)

    pods.delete("too")
    assert pods.seen("third") == held
    assert places_of(node, device) == "2"
    write_policy(node, {"shares": 4})
    pods.delete("holds", "third")
    wait_until(lambda: places_of(node, device) == "4", "the new policy to hold", 15.0)
    names = [f"after-{number}" for number in range(4)]
    pods.create(*(item for name in names for item in share_pod(name)))
    for name in names:
        assert pods.seen(name) == held
    assert overbooked(node) == []

    # Nobody shares it any more: who has a share keeps it, and only then a whole one can be had.
    write_policy(node)
    pods.delete(*names[1:])
    assert node.published()[device]["allowMultipleAllocations"]
    pods.delete(names[0])
    wait_until(
        lambda: "allowMultipleAllocations" not in node.published()[device], "the GPU to be for one", 15.0
    )
    pods.create(*gpu_pod("alone"), *gpu_pod("waits"))
    wait_until(lambda: running_of(node, "alone", "waits"), "one of them to run", 30.0)
    wait_until(lambda: waiting_of(node, "alone", "waits"), "the other to wait", 15.0)
    assert overbooked(node) == []


@pytest.mark.parametrize(
    ("node", "way"),
    [(Setting("gpus: [{model: t4}]", (way,)), way) for way in WAYS],
    indirect=["node"],
    ids=[str(way["shares"]) for way in WAYS],
)
def test_an_excluded_gpu_stays_with_those_who_share_it_and_draws_nobody(
    node: ClusterGpuNode, pods: Pods, way: dict[str, Any]
) -> None:
    pods.create(*share_pod("holds"), *share_pod("too"))
    held = pods.seen("holds")
    assert pods.seen("too") == held
    (device,) = node.published()
    write_policy(node, {"exclude": True})
    full = {"value": "0", "requestPolicy": {"default": "1"}}
    wait_until(lambda: node.published()[device]["capacity"]["shares"] == full, "no place to be left", 15.0)
    pods.create(*share_pod("third"))
    pods.pending("third", NO_ROOM)
    pods.delete("too")
    pods.create(*share_pod("fourth"))
    pods.pending("fourth", NO_ROOM)
    assert pods.look("holds") == held

    write_policy(node, way)
    assert pods.seen("third") == held
    assert overbooked(node) == []


def waiting_of(node: ClusterGpuNode, *names: str) -> list[str]:
    """Those that the scheduler has no room for."""
    found = []
    for name in names:
        conditions = node.api.get("v1", "Pod", name)["status"].get("conditions") or []
        if any(NO_ROOM in condition.get("message", "") for condition in conditions):
            found.append(name)
    return found


def node_event(node: ClusterGpuNode, reason: str, timeout: float = 15.0) -> str:
    """Wait for an event about the node; returns its message."""

    def find() -> str | None:
        for item in node.api.list("v1", "Event"):
            about = item["involvedObject"]
            if (about["kind"], about["name"], item["reason"]) == ("Node", node.name, reason):
                return str(item["message"])
        return None

    return wait_until(find, f"an event {reason} of the node", timeout)


@setting(
    "gpus: [{model: t4, count: 2}, {model: a100-sxm4-80gb}, {model: h100-sxm5-80gb, count: 2}]",
)
def test_every_example_of_shares_runs_on_the_node_policy_of_the_examples(
    node: ClusterGpuNode, pods: Pods
) -> None:
    policy = (EXAMPLES / "sharing/node-policy.yaml").read_text()
    policy_file(node).write_text(policy)
    wait_until(
        lambda: sum("allowMultipleAllocations" in each for each in node.published().values()) == 2 + 1 + 14,
        "shared devices to be published",
        15.0,
    )
    shown = examples(SHARING_EXAMPLES)
    load_stand_ins(node.cluster.node, shown)
    for example in shown:
        pods.create(*example.items)
    seen = {}
    for item in [item for example in shown for item in example.pods]:
        name, main = item["metadata"]["name"], item["spec"]["containers"][0]["name"]
        pods.running(name)
        seen[name] = pods.look(name, main)
        assert len(seen[name].gpus | seen[name].mig) == 1, (name, seen[name])
    models = {gpu.uuid: gpu.name for gpu in node.gpus.gpus()}
    product = {name: [models[uuid] for uuid in each.gpus] for name, each in seen.items()}
    assert product["shared-by-places-1"] == product["shared-by-places-2"] == ["Tesla T4"]
    assert "A100" in product["shared-by-memory"][0]
    said = node.cluster.node.container_logs("default", "shared-by-memory", "cuda")
    assert f"={20 << 30}\n" in said
    assert seen["shared-mig-device-1"] == seen["shared-mig-device-2"]
    assert len(instances(node.gpus)) == 1
    (special,) = node.api.get("v1", "Pod", "shared-extended-resource")["status"][
        "extendedResourceClaimStatus"
    ]["requestMappings"]
    assert special["resourceName"] == "nvidia.com/gpu.shared"
    assert overbooked(node) == []


@setting("gpus: [{model: t4, count: 2}]", {"shares": 2})
def test_pods_written_for_a_device_plugin_have_shares(node: ClusterGpuNode, pods: Pods) -> None:
    def limited(name: str, count: int) -> list[Object]:
        box = container(limits={"nvidia.com/gpu.shared": str(count)})
        return pod(name, {}, {"main": box}, grace_seconds=1)

    names = ("one", "two", "three")
    pods.create(*(item for name in names for item in limited(name, 1)))
    for name in names:
        assert len(pods.seen(name).gpus) == 1
    # Two shares in a pod are of two GPUs, and on one of them there is none left.
    pods.create(*limited("both", 2))
    wait_until(lambda: waiting_of(node, "both"), "both to wait", 15.0)
    by_gpu = Counter(pods.look(name).gpus for name in names)
    full = [name for name in names if by_gpu[pods.look(name).gpus] == 2]
    pods.delete(full[0])
    assert pods.seen("both").gpus == {gpu.uuid for gpu in node.gpus.gpus()}
    assert overbooked(node) == []
