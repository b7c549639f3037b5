"""Partitions are made when pods start, where the scheduler chose, and are gone when the pods are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.harness.clusternode import ClusterGpuNode, cluster_gpu_node
from tests.harness.examples import MIG_EXAMPLES, examples, load_stand_ins
from tests.harness.partitions import gpu_pod, granted, partition_pod
from tests.harness.pods import Pods, claim_spec, container, devices_of, exactly, pod

NO_ROOM = "cannot allocate all claims"


@pytest.fixture
def node(
    gpu_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ClusterGpuNode]:
    """A node with the GPUs of the parameter, a list as in a machine file."""
    machine: Path = tmp_path_factory.mktemp("machine") / "gpus.yaml"
    machine.write_text(f"gpus: {request.param}\n")
    with cluster_gpu_node(gpu_cluster, machine) as made:
        made.start_ready(mig="dynamic")
        yield made


def gpus(description: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("node", [description], indirect=True, ids=[""])


@gpus("[{model: h100-sxm5-80gb}]")
def test_seven_pods_fill_a_gpu_an_eighth_and_a_whole_gpu_wait_for_their_turn(
    node: ClusterGpuNode, pods: Pods
) -> None:
    (gpu,) = node.gpus.gpus()
    assert not gpu.mig_mode
    names = [f"small-{number}" for number in range(7)]
    for name in names:
        pods.create(*partition_pod(name, "1g.10gb"))
    seen = [pods.seen(name) for name in names]
    assert seen == [granted(node, pods.claim_of(name, "mig")) for name in names]
    assert len(frozenset.union(*(each.mig for each in seen))) == 7

    pods.create(*partition_pod("eighth", "1g.10gb"))
    pods.pending("eighth", NO_ROOM)
    pods.create(*gpu_pod("whole"))
    pods.pending("whole", NO_ROOM)
    pods.delete(names[3])
    eighth = pods.seen("eighth")
    assert eighth == granted(node, pods.claim_of("eighth", "mig"))
    assert eighth.mig.isdisjoint(seen[3].mig)
    assert len(node.gpus.gpu(0).gpu_instances) == 7

    pods.delete("eighth", *(name for name in names if name != names[3]))
    assert pods.seen("whole").gpus == {gpu.uuid}
    after = node.gpus.gpu(0)
    assert (after.mig_mode, after.gpu_instances) == (False, ())


@gpus("[{model: h100-sxm5-80gb, count: 4}]")
def test_every_example_of_mig_runs_and_sees_exactly_its_devices(node: ClusterGpuNode, pods: Pods) -> None:
    shown = examples(MIG_EXAMPLES)
    load_stand_ins(node.cluster.node, shown)
    for example in shown:
        pods.create(*example.items)
    made = [one for example in shown for one in example.pods]
    names = [one["metadata"]["name"] for one in made]
    for name, one in zip(names, made, strict=True):
        pods.running(name)
        (reference,) = one["spec"]["resourceClaims"]
        item = pods.claim_of(name, reference["name"])
        for box in one["spec"]["containers"]:
            (use,) = box["resources"]["claims"]
            expected = granted(node, item, use.get("request", ""))
            assert pods.look(name, box["name"]) == expected
    published = node.published()

    def profiles(name: str, claim: str) -> list[str]:
        devices = devices_of(pods.claim_of(name, claim))
        return [published[device]["attributes"]["profile"]["string"] for device in devices]

    assert profiles("mig-by-memory", "mig") == ["2g.20gb"]
    assert profiles("mig-first-available", "mig") == ["7g.80gb"]
    assert profiles("mig-media-engines", "mig") == ["1g.10gb+me"]
    mixed = devices_of(pods.claim_of("mig-on-one-gpu", "parts"))
    assert profiles("mig-on-one-gpu", "parts") == ["3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"]
    assert len({published[device]["attributes"]["parentUUID"]["string"] for device in mixed}) == 1
    said = [event for name in names for event in node.api.events(name)]
    assert [event for event in said if "DynamicResources" in event] == []


@gpus("[{model: h100-sxm5-80gb}]")
def test_a_prioritized_list_takes_the_largest_that_is_left(node: ClusterGpuNode, pods: Pods) -> None:
    (example,) = [one for one in examples(MIG_EXAMPLES) if one.path.stem == "first-available"]
    load_stand_ins(node.cluster.node, [example])
    pods.create(*partition_pod("before", "2g.20gb"))
    before = pods.seen("before")
    template, manifest = example.items
    pods.create(template)
    taken = []
    for name in ("second", "third"):
        pods.create({**manifest, "metadata": {"name": name}})
        pods.running(name)
        item = pods.claim_of(name, "mig")
        assert pods.look(name, "cuda") == granted(node, item)
        taken.append(item["status"]["allocation"]["devices"]["results"][0]["request"])
    assert taken == ["mig/half", "mig/small"]
    assert pods.seen("before") == before == granted(node, pods.claim_of("before", "mig"))


@gpus("[{model: a100-sxm4-40gb, mig_mode: true}, {model: a100-sxm4-40gb}]")
def test_b077_of_two_a100_one_is_partitioned_and_one_given_whole(node: ClusterGpuNode, pods: Pods) -> None:
    partitioned, whole = node.gpus.gpus()
    pods.create(*gpu_pod("whole"))
    assert pods.seen("whole").gpus == {whole.uuid}
    pods.create(*gpu_pod("waits"))
    names = {"small": "1g.5gb", "media": "1g.5gb+me", "half": "3g.20gb"}
    for name, profile in names.items():
        pods.create(*partition_pod(name, profile))
    for name in names:
        assert pods.seen(name) == granted(node, pods.claim_of(name, "mig"))
    pods.pending("waits", NO_ROOM)
    assert len(node.gpus.gpu(partitioned.gpu).gpu_instances) == 3
    assert "nvmlDeviceSetMigMode" not in node.gpus.calls()


@gpus("[{model: a30, mig_mode: true}]")
def test_an_a30_is_four_small_ones_or_one_with_media_engines(node: ClusterGpuNode, pods: Pods) -> None:
    names = [f"small-{number}" for number in range(3)]
    pods.create(*partition_pod("media", "1g.6gb+me"))
    for name in names:
        pods.create(*partition_pod(name, "1g.6gb"))
    for name in ("media", *names):
        assert pods.seen(name) == granted(node, pods.claim_of(name, "mig"))
    pods.create(*partition_pod("fifth", "1g.6gb"))
    pods.pending("fifth", NO_ROOM)
    pods.delete("media", *names)
    assert pods.seen("fifth") == granted(node, pods.claim_of("fifth", "mig"))


@gpus("[{model: rtx-pro-6000-server}, {model: h100-sxm5-80gb}]")
def test_b082_media_engines_are_counted_too(node: ClusterGpuNode, pods: Pods) -> None:
    pods.create(*partition_pod("all-engines", "1g.24gb+me.all"))
    pods.create(*partition_pod("video", "1g.10gb+me"))
    for name in ("all-engines", "video"):
        assert pods.seen(name) == granted(node, pods.claim_of(name, "mig"))
    pods.create(*partition_pod("with-engines", "1g.24gb"), *partition_pod("more-video", "1g.10gb+me"))
    pods.create(*partition_pod("without-engines", "1g.24gb-me"))
    assert pods.seen("without-engines") == granted(node, pods.claim_of("without-engines", "mig"))
    pods.pending("with-engines", NO_ROOM)
    pods.pending("more-video", NO_ROOM)

    pods.delete("all-engines", "video")
    for name in ("with-engines", "more-video"):
        assert pods.seen(name) == granted(node, pods.claim_of(name, "mig"))
    said = [event for name in ("with-engines", "more-video") for event in node.api.events(name)]
    assert [event for event in said if "FailedPrepare" in event] == []


@gpus("[{model: h100-sxm5-80gb}]")
def test_b096_a_gpu_is_cut_while_somebody_watches_it_with_admin_access(
    node: ClusterGpuNode, pods: Pods
) -> None:
    namespace = "mig-observers"
    label = {"resource.kubernetes.io/admin-access": "true"}
    pods.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": label}})
    node.api.wait_for("v1", "ServiceAccount", "default", bool, "made", namespace)
    watch = claim_spec(exactly("gpu", admin=True))
    pods.create(*pod("observer", {"gpu": watch}, {"main": container("gpu")}, namespace=namespace))
    (gpu,) = node.gpus.gpus()
    assert pods.seen("observer", namespace=namespace).gpus == {gpu.uuid}

    pods.create(*partition_pod("watched", "2g.20gb"))
    watched = pods.seen("watched")
    assert watched == granted(node, pods.claim_of("watched", "mig"))

    pods.delete("observer", namespace=namespace)
    assert pods.look("watched") == watched
    assert len(node.gpus.gpu(gpu.gpu).gpu_instances) == 1
