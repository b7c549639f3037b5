"""The MIG devices and GPU instances that exist on a GPU, read through NVML."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from driver.fieldreader import FieldReader
from driver.inventory import GpuInstance, MigDevice, MigProfile
from driver.migprofiles import extensions, profile_in_device_name, profile_text
from driver.nvml import Code, DeviceHandle, GpuInstanceInfo, MigAttributes, Nvml, NvmlError

T = TypeVar("T")

_CHANGED = (Code.NOT_FOUND, Code.INVALID_ARGUMENT, Code.NOT_SUPPORTED)
"""How NVML answers about an instance that has gone, and about any with MIG mode off."""


@dataclass(frozen=True, slots=True)
class MigInstances:
    """What exists on a GPU, by placement. ``settled``: nothing was seen to change while it was read."""

    mig_devices: tuple[MigDevice, ...] = ()
    gpu_instances: tuple[GpuInstance, ...] | None = ()
    settled: bool = True


def read_mig(
    nvml: Nvml, gpu: DeviceHandle, reader: FieldReader, profiles: Sequence[MigProfile]
) -> MigInstances:
    """Every MIG device and every GPU instance of a GPU in MIG mode.

    A MIG device that cannot be read is left out and noted as ``migDevices[<index>]``; its siblings stay.
    The GPU instances are ``None``, and noted as ``gpuInstances``, unless all could be listed: what is in
    nobody's list would look free.

    Raises:
        NvmlError: GPU_IS_LOST.
    """
    instances = _MigReader(nvml, gpu, reader)
    listed = reader.read(
        "gpuInstances", lambda: instances.watched(lambda: instances.list_gpu_instances(profiles)), False
    )
    count = reader.read("migDevices", lambda: nvml.max_mig_device_count(gpu), 0, absent=[Code.NOT_SUPPORTED])
    found = [
        device
        for index in range(count)
        if (
            device := reader.read(
                f"migDevices[{index}]",
                lambda index=index: instances.watched(lambda: instances.device(index)),  # type: ignore[misc]
                None,
            )
        )
    ]
    found.sort(key=lambda device: (device.placement, device.compute_placement or device.placement))
    if listed and instances.settled:
        reader.read("gpuInstances", lambda: instances.watched(lambda: instances.list_again(profiles)), None)
    return MigInstances(tuple(found), instances.gpu_instances() if listed else None, instances.settled)


class _MigReader:
    """Reads MIG devices one by one, and what they share (GPU instance, profile name) once."""

    def __init__(self, nvml: Nvml, gpu: DeviceHandle, reader: FieldReader) -> None:
        self._nvml = nvml
        self._gpu = gpu
        self._reader = reader
        self._gpu_instances: dict[int, GpuInstanceInfo] = {}
        self._profile_names: dict[int, str] = {}
        self._listed: frozenset[GpuInstance] = frozenset()
        self.settled = True

    def watched(self, query: Callable[[], T]) -> T:
        """The query's answer; one that fails because something has gone leaves the reading unsettled."""
        try:
            return query()
        except NvmlError as error:
            if error.code in _CHANGED:
                self.settled = False
            raise

    def list_gpu_instances(self, profiles: Sequence[MigProfile]) -> bool:
        """Ask for the GPU instances of each profile, also those that have no compute instance yet."""
        listed = list(self._list(profiles))
        self._listed = _places(listed)
        self._gpu_instances.update((info.id, info) for info in listed)
        return True

    def list_again(self, profiles: Sequence[MigProfile]) -> None:
        """Ask whether the list is still the same: an instance of it that has gone would look taken."""
        if _places(self._list(profiles)) != self._listed:
            self.settled = False

    def _list(self, profiles: Sequence[MigProfile]) -> Iterator[GpuInstanceInfo]:
        for profile in profiles:
            for handle in self._nvml.gpu_instances(self._gpu, profile.id):
                try:
                    yield self._nvml.gpu_instance_info(handle)
                except NvmlError as error:
                    # Destroyed a moment ago.
                    if error.code != Code.NOT_FOUND:
                        raise

    def gpu_instances(self) -> tuple[GpuInstance, ...]:
        """All that were met, by placement; those of unknown profiles through their MIG devices."""
        return tuple(sorted(_places(self._gpu_instances.values()), key=lambda one: (one.placement, one.id)))

    def device(self, index: int) -> MigDevice | None:
        """The MIG device in this slot, or ``None`` for an empty slot; indexes have holes."""
        nvml = self._nvml
        try:
            handle = nvml.mig_device_by_index(self._gpu, index)
        except NvmlError as error:
            if error.code in (Code.NOT_FOUND, Code.INVALID_ARGUMENT):
                return None
            raise
        gpu_instance_id = nvml.gpu_instance_id(handle)
        compute_instance_id = nvml.compute_instance_id(handle)
        attributes = nvml.mig_attributes(handle)
        gpu_instance = self._gpu_instance(gpu_instance_id)
        profile = self._profile(handle, gpu_instance.profile_id, attributes)
        device = MigDevice(
            uuid=nvml.uuid(handle),
            profile=profile,
            gpu_instance_id=gpu_instance_id,
            compute_instance_id=compute_instance_id,
            placement=gpu_instance.placement,
            memory_mib=attributes.memory_mib,
            engines=attributes.engines,
            media_extensions=extensions(profile).media,
            all_media_extensions=extensions(profile).all_media,
            graphics=extensions(profile).graphics,
        )
        if attributes.compute_instance_slices >= attributes.gpu_instance_slices:
            return device
        compute_instance = nvml.compute_instance(gpu_instance.handle, compute_instance_id)
        return replace(device, compute_placement=compute_instance.placement)

    def _gpu_instance(self, gpu_instance_id: int) -> GpuInstanceInfo:
        if gpu_instance_id not in self._gpu_instances:
            self._gpu_instances[gpu_instance_id] = self._nvml.gpu_instance(self._gpu, gpu_instance_id)
        return self._gpu_instances[gpu_instance_id]

    def _profile(self, handle: DeviceHandle, profile_id: int, attributes: MigAttributes) -> str:
        """The profile text; drivers that do not know it by id have it in the MIG device's name."""
        if profile_id not in self._profile_names:
            self._profile_names[profile_id] = self._reader.read(
                "profile", lambda: self._nvml.gpu_instance_profile_by_id(self._gpu, profile_id).name, ""
            )
        name = self._profile_names[profile_id]
        if name:
            return profile_text(name, attributes.gpu_instance_slices, attributes.compute_instance_slices)
        return profile_in_device_name(self._nvml.name(handle))


def _places(instances: Iterable[GpuInstanceInfo]) -> frozenset[GpuInstance]:
    return frozenset(GpuInstance(one.id, one.profile_id, one.placement) for one in instances)
