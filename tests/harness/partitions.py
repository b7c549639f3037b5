"""Partitions on a cluster's node: the instances that were made for claims, and what their containers see."""

from __future__ import annotations

from nvmlsim.gpus import GpuInstance, SimulatedGpu
from nvmlsim.node import SimulatedNode
from tests.cluster.api import Object
from tests.harness.clusternode import ClusterGpuNode
from tests.harness.pods import MIG_CLASS, Seen, attribute, claim_spec, container, devices_of, exactly, pod


def partition_pod(name: str, profile: str, cel: str = "") -> list[Object]:
    """A pod with one partition of a profile; ``cel`` is one more condition."""
    wanted = f'{attribute("profile")} == "{profile}"'
    request = exactly("mig", MIG_CLASS, cel=f"{wanted} && {cel}" if cel else wanted)
    return pod(name, {"mig": claim_spec(request)}, {"main": container("mig")}, grace_seconds=5)


def gpu_pod(name: str) -> list[Object]:
    """A pod with one whole GPU."""
    return pod(name, {"gpu": claim_spec(exactly("gpu"))}, {"main": container("gpu")}, grace_seconds=5)


def instances(node: SimulatedNode) -> set[tuple[str, int, str, int]]:
    """All GPU instances that NVML lists: UUID of the GPU, id, profile, start."""
    return {(gpu.uuid, gi.id, gi.profile, gi.start) for gpu in node.gpus() for gi in gpu.gpu_instances}


def instance_of(node: ClusterGpuNode, device: str, published: Object) -> tuple[SimulatedGpu, GpuInstance]:
    """The instance behind a partition that was allocated; ``published`` is what the slices say of it."""
    attributes = published["attributes"]
    address = attributes["resource.kubernetes.io/pciBusID"]["string"]
    place = (attributes["profile"]["string"], int(device.rpartition("-")[2]))
    for gpu in node.gpus.gpus():
        for instance in gpu.gpu_instances:
            if (gpu.pci_bus_id, instance.profile, instance.start) == (address, *place):
                return gpu, instance
    raise AssertionError(f"no instance of {place} on GPU {address}: {instances(node.gpus)}")


def granted(node: ClusterGpuNode, item: Object, request: str = "") -> Seen:
    """What a container sees that has the partitions of a claim object, or of one request, and no more."""
    published = node.published()
    found = [instance_of(node, device, published[device]) for device in devices_of(item, request)]
    uuids = [compute.uuid for _, instance in found for compute in instance.compute_instances]
    gpus = {gpu.uuid: gpu for gpu, _ in found}
    nodes = node.container_nodes(*gpus.values(), mig_uuids=tuple(uuids))
    return Seen(tuple(nodes), frozenset(), frozenset(uuids))
