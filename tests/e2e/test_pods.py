"""Pods get exactly the devices that their claims ask for, and nothing of it is left when they go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.api import wait_until
from tests.cluster.cluster import Cluster
from tests.harness.clusternode import ClusterGpuNode, cluster_gpu_node
from tests.harness.pods import (
    MIG_CLASS,
    Pods,
    Seen,
    attribute,
    claim,
    claim_spec,
    container,
    devices_of,
    exactly,
    first_available,
    pod,
)

MACHINE = """
gpus:
  - {model: h100-sxm5-80gb, count: 4}
  - {model: l40s, count: 2}
  - {model: t4}
mig: {3: [3g.40gb, 1g.10gb, 1g.10gb, 1g.10gb]}
"""


@pytest.fixture(scope="module")
def node(gpu_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterGpuNode]:
    """Three H100, two L40S and a T4, and a fourth H100 with four MIG devices."""
    machine: Path = tmp_path_factory.mktemp("machine") / "mixed.yaml"
    machine.write_text(MACHINE)
    with cluster_gpu_node(gpu_cluster, machine) as made:
        made.start_ready()
        made.wait_published(10)
        yield made


def whole(node: ClusterGpuNode, *uuids: str) -> Seen:
    """What a container with these whole GPUs sees; without one it has nothing of the driver."""
    if not uuids:
        return Seen((), frozenset(), frozenset())
    gpus = [node.gpu(uuid) for uuid in uuids]
    return Seen(tuple(node.container_nodes(*gpus)), frozenset(uuids), frozenset())


def uuid(node: ClusterGpuNode, device: str) -> str:
    found: str = node.published()[device]["attributes"]["uuid"]["string"]
    return found


def test_a_template_selects_by_product_and_by_memory(node: ClusterGpuNode, pods: Pods) -> None:
    by_product = exactly("gpu", cel=f'{attribute("productName")} == "NVIDIA L40S"')
    by_memory = exactly(
        "gpu", cel='device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("60Gi")) >= 0'
    )
    pods.create(*pod("by-product", {"gpu": claim_spec(by_product)}, {"main": container("gpu")}))
    pods.create(*pod("by-memory", {"gpu": claim_spec(by_memory)}, {"main": container("gpu")}))
    for name, product in (("by-product", "NVIDIA L40S"), ("by-memory", "NVIDIA H100 80GB HBM3")):
        seen = pods.seen(name)
        (device,) = devices_of(pods.claim_of(name, "gpu"))
        assert seen == whole(node, uuid(node, device))
        assert node.published()[device]["attributes"]["productName"] == {"string": product}


def test_a_pod_gets_a_static_mig_device(node: ClusterGpuNode, pods: Pods) -> None:
    wanted = exactly("mig", MIG_CLASS, cel=f'{attribute("profile")} == "1g.10gb"')
    pods.create(*pod("mig", {"mig": claim_spec(wanted)}, {"main": container("mig")}))
    seen = pods.seen("mig")
    (device,) = devices_of(pods.claim_of("mig", "mig"))
    mig = uuid(node, device)
    nodes = node.container_nodes(node.gpu(mig), mig_uuids=(mig,))
    assert seen == Seen(tuple(nodes), frozenset(), frozenset({mig}))


def test_two_containers_have_a_request_each(node: ClusterGpuNode, pods: Pods) -> None:
    spec = claim_spec(
        exactly("large", cel=f'{attribute("architecture")} == "Hopper"'),
        exactly("small", MIG_CLASS, cel=f'{attribute("profile")} == "3g.40gb"'),
    )
    containers = {
        "large": container(("all", "large")),
        "small": container(("all", "small")),
        "both": container("all"),
        "none": container(),
    }
    pods.create(*pod("requests", {"all": spec}, containers))
    seen = {name: pods.seen("requests", name) for name in containers}
    item = pods.claim_of("requests", "all")
    gpu, mig = (uuid(node, *devices_of(item, request)) for request in ("large", "small"))
    mig_nodes = node.container_nodes(node.gpu(mig), mig_uuids=(mig,))
    assert seen == {
        "large": whole(node, gpu),
        "small": Seen(tuple(mig_nodes), frozenset(), frozenset({mig})),
        "both": Seen(
            tuple(sorted({*mig_nodes, *node.container_nodes(node.gpu(gpu))})),
            frozenset({gpu}),
            frozenset({mig}),
        ),
        "none": whole(node),
    }


def test_a_container_has_two_claims_and_an_extended_resource(node: ClusterGpuNode, pods: Pods) -> None:
    claims = {"gpu": claim_spec(exactly("gpu")), "mig": claim_spec(exactly("mig", MIG_CLASS))}
    pods.create(*pod("several", claims, {"main": container(*claims, limits={"nvidia.com/gpu": "1"})}))
    seen = pods.seen("several")
    extended = pods.running("several")["status"]["extendedResourceClaimStatus"]["resourceClaimName"]
    items = [
        pods.claim_of("several", "gpu"),
        node.api.get("resource.k8s.io/v1", "ResourceClaim", extended),
    ]
    gpus = frozenset(uuid(node, device) for item in items for device in devices_of(item))
    (device,) = devices_of(pods.claim_of("several", "mig"))
    mig = uuid(node, device)
    nodes = {
        *node.container_nodes(*map(node.gpu, gpus)),
        *node.container_nodes(node.gpu(mig), mig_uuids=(mig,)),
    }
    assert len(gpus) == 2
    assert seen == Seen(tuple(sorted(nodes)), gpus, frozenset({mig}))
    assert len(node.cdi_files()) == 3


def test_a_container_has_the_driver_read_only_and_nothing_for_other_runtimes(
    node: ClusterGpuNode, pods: Pods
) -> None:
    pods.create(*pod("driver", {"gpu": claim_spec(exactly("gpu"))}, {"main": container("gpu")}))
    pods.seen("driver")
    script = (
        "echo $NVIDIA_VISIBLE_DEVICES; cd /usr/lib/x86_64-linux-gnu; "
        "for name in libcuda.so.1 libcuda.so libnvidia-ml.so.1; do test -s $name && echo $name; done; "
        "for file in /usr/bin/nvidia-smi libnvidia-ml.so.1; do (echo x >> $file) 2>&1; done"
    )
    answer = node.cluster.node.ctr_exec("default", "driver", "main", "sh", "-c", script)
    lines = answer.stdout.splitlines()
    assert lines[:4] == ["void", "libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1"]
    assert [line.rpartition(": ")[2] for line in lines[4:]] == ["Read-only file system"] * 2


def test_b046_two_pods_share_one_claim(node: ClusterGpuNode, pods: Pods) -> None:
    pods.create(claim("shared", claim_spec(exactly("gpu"))))
    for name in ("first", "second"):
        pods.create(*pod(name, {"gpu": "shared"}, {"main": container("gpu"), "more": container("gpu")}))
    seen = {pods.seen(name, each) for name in ("first", "second") for each in ("main", "more")}
    (device,) = devices_of(pods.claim_of("first", "gpu"))
    assert seen == {whole(node, uuid(node, device))}
    assert len(node.cdi_files()) == 1

    pods.delete("first")
    assert len(node.cdi_files()) == 1
    pods.delete("second")
    node.api.wait_for(
        "resource.k8s.io/v1",
        "ResourceClaim",
        "shared",
        lambda found: not found["status"].get("reservedFor") and "allocation" not in found["status"],
        "to be free again",
    )
    assert (node.cdi_files(), node.claims_in_store()) == ([], {})


def test_an_extended_resource_gives_two_gpus(node: ClusterGpuNode, pods: Pods) -> None:
    main = container(limits={"nvidia.com/gpu": "2"})
    pods.create(*pod("extended", {}, {"main": main, "other": container()}))
    seen = pods.seen("extended")
    status = pods.running("extended")["status"]["extendedResourceClaimStatus"]
    item = node.api.get("resource.k8s.io/v1", "ResourceClaim", status["resourceClaimName"])
    uuids = [uuid(node, device) for device in devices_of(item)]
    assert len(uuids) == 2
    assert seen == whole(node, *uuids)
    assert pods.seen("extended", "other") == whole(node)


def test_admin_access_sees_the_gpu_of_an_owner(node: ClusterGpuNode, pods: Pods) -> None:
    namespace = "observers"
    label = {"resource.kubernetes.io/admin-access": "true"}
    pods.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": label}})
    node.api.wait_for("v1", "ServiceAccount", "default", bool, "made", namespace)
    only = f'{attribute("productName")} == "Tesla T4"'
    pods.create(*pod("owner", {"gpu": claim_spec(exactly("gpu", cel=only))}, {"main": container("gpu")}))
    owner = pods.seen("owner")
    watch = claim_spec(exactly("gpu", cel=only, admin=True))
    pods.create(*pod("observer", {"gpu": watch}, {"main": container("gpu")}, namespace=namespace))

    assert len(owner.gpus) == 1
    assert pods.seen("observer", namespace=namespace) == owner == whole(node, *owner.gpus)

    pods.delete("observer", namespace=namespace)
    node_exec = node.cluster.node.ctr_exec("default", "owner", "main", "nvidia-smi", "-L")
    assert next(iter(owner.gpus)) in node_exec.stdout


def test_a_prioritized_list_takes_what_is_left(node: ClusterGpuNode, pods: Pods) -> None:
    wanted = first_available(
        "gpu",
        exactly("best", cel=f'{attribute("productName")} == "NVIDIA L40S"', count=2),
        exactly("good", cel=f'{attribute("productName")} == "Tesla T4"'),
    )
    for name, request, count in (("early", "gpu/best", 2), ("late", "gpu/good", 1)):
        pods.create(*pod(name, {"gpu": claim_spec(wanted)}, {"main": container("gpu")}))
        seen = pods.seen(name)
        devices = devices_of(pods.claim_of(name, "gpu"), request)
        assert len(devices) == count
        assert seen == whole(node, *(uuid(node, device) for device in devices))


def test_the_claim_tells_what_was_prepared(node: ClusterGpuNode, pods: Pods) -> None:
    pods.create(*pod("told", {"mig": claim_spec(exactly("mig", MIG_CLASS))}, {"main": container("mig")}))
    (mig,) = pods.seen("told").mig

    def told() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = pods.claim_of("told", "mig")["status"].get("devices", [])
        return found

    (entry,) = wait_until(told, "status.devices of the claim", 10.0)
    assert entry["data"]["uuid"] == mig
    assert [(each["type"], each["status"]) for each in entry["conditions"]] == [("Ready", "True")]


def test_b180_a_wrong_configuration_is_told_to_the_user(node: ClusterGpuNode, pods: Pods) -> None:
    right = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}
    for name, parameters in (("right", right), ("wrong", {**right, "sharring": {}})):
        spec = claim_spec(exactly("gpu"), parameters=parameters)
        pods.create(*pod(name, {"gpu": spec}, {"main": container("gpu")}))
    assert len(pods.seen("right").gpus) == 1
    assert "sharring" in pods.event("wrong", "FailedPrepareDynamicResources")
    assert "sharring" in pods.event(pods.claim_of("wrong", "gpu")["metadata"]["name"], "sharring")
    assert len(node.cdi_files()) == 1
