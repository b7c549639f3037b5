"""Which way a GPU goes: what of it is offered, by its MIG mode and by the instances that are on it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from driver.counters import MAX_COUNTERS, CounterLayout
from driver.inventory import Engines, Gpu, GpuInstance


class MigPolicy(StrEnum):
    """What an administrator lets the driver do with MIG on a node.

    ``DYNAMIC``: make partitions for claims. ``STATIC``: offer the instances that an administrator made.
    ``OFF``: offer whole GPUs only.
    """

    DYNAMIC = "dynamic"
    STATIC = "static"
    OFF = "off"


class MigWay(StrEnum):
    """What of one GPU is offered."""

    WHOLE_GPU = "whole-gpu"
    WHOLE_GPU_AND_PARTITIONS = "whole-gpu-and-partitions"
    PARTITIONS = "partitions"
    INSTANCES_AND_PARTITIONS = "instances-and-partitions"
    INSTANCES = "instances"
    NOTHING = "nothing"

    @property
    def offers_whole_gpu(self) -> bool:
        return self in (MigWay.WHOLE_GPU, MigWay.WHOLE_GPU_AND_PARTITIONS)

    @property
    def offers_partitions(self) -> bool:
        return self in (
            MigWay.WHOLE_GPU_AND_PARTITIONS,
            MigWay.PARTITIONS,
            MigWay.INSTANCES_AND_PARTITIONS,
        )

    @property
    def offers_instances(self) -> bool:
        """Whether the MIG devices that we did not make are offered."""
        return self in (MigWay.INSTANCES, MigWay.INSTANCES_AND_PARTITIONS)


@dataclass(frozen=True, slots=True)
class MigOffer:
    """The way, and why, as the end of a sentence that begins with the GPU."""

    way: MigWay
    reason: str


def foreign_instances(gpu: Gpu, own: frozenset[int]) -> tuple[GpuInstance, ...]:
    """The GPU instances that we did not make, by placement; ``own`` are the ids of those that we made."""
    return tuple(instance for instance in gpu.gpu_instances or () if instance.id not in own)


def engines_of(gpu: Gpu, instance: GpuInstance) -> Engines:
    """The engines of an instance: those of its profile, or of the MIG devices in it."""
    for profile in gpu.profiles:
        if profile.id == instance.profile_id:
            return profile.engines
    return next((mig.engines for mig in gpu.mig_devices if mig.gpu_instance_id == instance.id), Engines())


def mig_offer(gpu: Gpu, own: frozenset[int], policy: MigPolicy, *, counters: bool) -> MigOffer:
    """Which way this GPU goes. Pure.

    ``own`` are the ids of the GPU instances on it that we made. Without ``counters``, which the API server
    must store, partitions would be given out twice, so there are none.
    """
    if policy is MigPolicy.OFF:
        if gpu.mig_enabled:
            return MigOffer(MigWay.NOTHING, "MIG mode is on and --mig=off offers whole GPUs only")
        return MigOffer(MigWay.WHOLE_GPU, "--mig=off")
    if policy is MigPolicy.STATIC:
        return _as_it_is(gpu, "--mig=static")
    if not gpu.mig_capable:
        return _as_it_is(gpu, "a vGPU is not partitioned" if gpu.is_vgpu else "it cannot do MIG")
    if not gpu.profiles:
        return _as_it_is(gpu, "NVML tells no MIG profile with its placements")
    if gpu.gpu_instances is None:
        return _as_it_is(gpu, "its GPU instances could not be listed, so nothing is known to be free")
    if CounterLayout.of(gpu).size > MAX_COUNTERS:
        return _as_it_is(gpu, f"its placements and engines need more than {MAX_COUNTERS} counters")
    if not gpu.mig_enabled and not gpu.resetless_mig:
        return MigOffer(MigWay.WHOLE_GPU, "MIG mode is off and turning it on needs a reset of the GPU")
    foreign = foreign_instances(gpu, own)
    if foreign:
        number = f"{len(foreign)} GPU instances on it were not made by this driver"
        if counters:
            return MigOffer(MigWay.INSTANCES_AND_PARTITIONS, number)
        return MigOffer(MigWay.INSTANCES, f"{number}, and the API server stores no counters")
    if gpu.resetless_mig:
        if counters:
            return MigOffer(MigWay.WHOLE_GPU_AND_PARTITIONS, "its MIG mode changes without a reset")
        return MigOffer(MigWay.WHOLE_GPU, "the API server stores no counters")
    if counters:
        return MigOffer(
            MigWay.PARTITIONS, "MIG mode is on, and turning it off for the whole GPU needs a reset"
        )
    return MigOffer(MigWay.NOTHING, "MIG mode is on, it has no instance, the API server stores no counters")


def _as_it_is(gpu: Gpu, reason: str) -> MigOffer:
    if not gpu.mig_enabled:
        return MigOffer(MigWay.WHOLE_GPU, reason)
    if gpu.mig_devices:
        return MigOffer(MigWay.INSTANCES, f"MIG mode is on, {reason}")
    return MigOffer(MigWay.NOTHING, f"MIG mode is on, it has no instance, {reason}")
