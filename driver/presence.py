"""Presence: whether the hardware behind a device is still what was published, before a claim gets it."""

from __future__ import annotations

from driver.devices import Device
from driver.inventory import MigDevice
from driver.nvml import Code, DeviceHandle, Nvml, NvmlError


class DevicePresenceError(Exception):
    """The device cannot be given to a claim now: which device, and why."""

    def __init__(self, device: str, reason: str) -> None:
        self.device = device
        self.reason = reason
        super().__init__(f"device {device}: {reason}")


class DeviceChanged(DevicePresenceError):
    """Another card, or another MIG device, is now where the device was."""

    def __init__(self, device: str, old_uuid: str, new_uuid: str) -> None:
        self.old_uuid = old_uuid
        self.new_uuid = new_uuid
        super().__init__(device, f"it had UUID {old_uuid}, and now {new_uuid} is in its place")


def verify(nvml: Nvml, device: Device) -> bool:
    """Ask NVML whether the device is there, is the same, and can be used: two to six calls.

    Returns whether it is a whole GPU whose MIG mode has to be turned off first.

    Raises:
        DeviceChanged: the UUID is another one.
        DevicePresenceError: GPU or MIG device gone or lost, the wrong MIG mode, or NVML does not answer.
    """
    try:
        gpu = _gpu(nvml, device)
        if device.mig is None:
            return _whole(nvml, device, gpu)
        _mig_device(nvml, device, gpu, device.mig)
        return False
    except NvmlError as error:
        raise DevicePresenceError(device.name, str(error)) from error


def _gpu(nvml: Nvml, device: Device) -> DeviceHandle:
    try:
        handle = nvml.device_by_pci(device.gpu.pci)
    except NvmlError as error:
        if error.code in (Code.NOT_FOUND, Code.GPU_NOT_FOUND):
            raise DevicePresenceError(device.name, f"there is no GPU at {device.gpu.pci} any more") from error
        raise
    found = nvml.uuid(handle)
    if found != device.gpu.uuid:
        raise DeviceChanged(device.name, device.gpu.uuid, found)
    return handle


def _whole(nvml: Nvml, device: Device, gpu: DeviceHandle) -> bool:
    try:
        mode = nvml.mig_mode(gpu)
    except NvmlError as error:
        if error.code in (Code.NOT_SUPPORTED, Code.FUNCTION_NOT_FOUND):
            return False
        raise
    if not mode.current:
        return False
    instances = _instances(nvml, device, gpu)
    if instances or not device.gpu.resetless_mig:
        there = f" with GPU instance {', '.join(instances)}, not created by this driver" if instances else ""
        raise DevicePresenceError(
            device.name,
            f"MIG mode is on for GPU {device.gpu.uuid}{there}, so it cannot be used as a whole; "
            "turn it off (nvidia-smi -mig 0) or claim a MIG device",
        )
    return True


def _instances(nvml: Nvml, device: Device, gpu: DeviceHandle) -> list[str]:
    """The GPU instances that are there, in words. Without any, MIG mode can be turned off for the claim."""
    found = []
    for profile in device.gpu.profiles:
        for handle in nvml.gpu_instances(gpu, profile.id):
            instance = nvml.gpu_instance_info(handle)
            found.append(f"{instance.id} ({profile.profile} at {instance.placement.start})")
    return found


def _mig_device(nvml: Nvml, device: Device, gpu: DeviceHandle, mig: MigDevice) -> None:
    try:
        gpu_instance = nvml.gpu_instance(gpu, mig.gpu_instance_id)
        compute_instance = nvml.compute_instance(gpu_instance.handle, mig.compute_instance_id)
        found = nvml.uuid(compute_instance.mig_device)
    except NvmlError as error:
        if error.code in (Code.NOT_FOUND, Code.NOT_SUPPORTED):
            raise DevicePresenceError(
                device.name,
                f"MIG device {mig.uuid} (GPU instance {mig.gpu_instance_id}, compute instance "
                f"{mig.compute_instance_id}) is gone from GPU {device.gpu.uuid} ({error})",
            ) from error
        raise
    if found != mig.uuid:
        raise DeviceChanged(device.name, mig.uuid, found)
