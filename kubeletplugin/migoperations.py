"""Changes of MIG: the mode, and instances made for a claim. Blocking, for the GPU's lane, under its lock.

Every function looks at the hardware first, so that it can be repeated after a crash, and touches only the
instance that its arguments name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from driver.inventory import MigProfile, PciAddress, Placement
from driver.nvml import (
    COMPUTE_INSTANCE_PROFILES,
    Code,
    DeviceHandle,
    GpuInstanceHandle,
    GpuInstanceInfo,
    Nvml,
    NvmlError,
    RunningProcess,
)

IN_USE_SECONDS = 10.0
"""How long a change that is refused as in use is tried again: a process that ends lets go a moment later."""
ACTIVATION_SECONDS = 10.0
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0

MAX_COMPUTE_INSTANCES = 8
"""Ids are 0 to 7: the driver's table of capability minors has no room for more."""

T = TypeVar("T")

_GONE = (Code.GPU_NOT_FOUND, Code.GPU_IS_LOST, Code.DRIVER_NOT_LOADED)
"""Answers that leave no doubt that no instance of the GPU exists."""

DescribeProcess = Callable[[int], str]
"""From a pid to what a person knows it by, such as ``4711 (python, pod 6f1c…)``."""


class MigOperationError(Exception):
    """MIG could not be changed; ``cause`` is one word, the text names GPU, profile and NVML's answer."""

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause


@dataclass(frozen=True, slots=True)
class Card:
    """Which GPU is meant: the card with this UUID at this address, and no other that came in its place."""

    pci: PciAddress
    uuid: str


class CardGone(Exception):
    """The card is not there, is lost, or another one is in its place; so none of its instances exists."""


@dataclass(frozen=True, slots=True)
class ComputeInstance:
    """A compute instance that exists: its id and the UUID of the MIG device that it is."""

    id: int
    uuid: str


@dataclass(frozen=True, slots=True)
class Instance:
    """A GPU instance that exists, with its compute instances by id."""

    gpu_instance_id: int
    compute_instances: tuple[ComputeInstance, ...]

    @property
    def compute_instance(self) -> ComputeInstance | None:
        """The first, which of an instance that is ours is the only one."""
        return next(iter(self.compute_instances), None)

    @property
    def uuids(self) -> list[str]:
        return [instance.uuid for instance in self.compute_instances]


def is_mode_on(nvml: Nvml, gpu: Card) -> bool:
    """Whether MIG mode is on now. Raises CardGone and NvmlError."""
    return nvml.mig_mode(_handle(nvml, gpu)).current


def is_mode_off(nvml: Nvml, gpu: Card) -> bool:
    """Whether MIG mode is off, and no reset will turn it on. Raises CardGone and NvmlError."""
    mode = nvml.mig_mode(_handle(nvml, gpu))
    return not (mode.current or mode.pending)


def has_instances(nvml: Nvml, gpu: Card, profiles: Sequence[MigProfile]) -> bool:
    """Whether there is any GPU instance. ``profiles`` are all of the GPU. Raises CardGone and NvmlError."""
    handle = _handle(nvml, gpu)
    return any(_gpu_instances(nvml, profile.id, handle) for profile in profiles)


def set_mode(nvml: Nvml, gpu: Card, enabled: bool, describe: DescribeProcess, patience: float) -> None:
    """Switch MIG mode and wait until it holds; nothing happens if it does already and no change is pending.

    ``patience``: seconds to try again while the GPU is in use.

    Raises:
        MigOperationError: NVML refuses, processes use the GPU, or the mode stays pending until a reset.
        CardGone: there is no such GPU.
    """
    handle = _handle(nvml, gpu)
    wanted = "on" if enabled else "off"
    problem = f"MIG mode of GPU {gpu.pci} cannot be turned {wanted}"
    refused: NvmlError | None = None

    def switch() -> None:
        nonlocal refused
        mode = nvml.mig_mode(handle)
        if mode.current == enabled and mode.pending == enabled:
            return
        status = nvml.set_mig_mode(handle, enabled)
        refused = None if status == Code.SUCCESS else NvmlError("nvmlDeviceSetMigMode", status)
        if status == Code.IN_USE:
            raise NvmlError("nvmlDeviceSetMigMode", status)

    try:
        _until_free(nvml, handle, switch, problem, describe, patience=patience)
    except NvmlError as error:
        raise MigOperationError("MigMode", f"{problem}: {error}") from error
    deadline = time.monotonic() + ACTIVATION_SECONDS
    while nvml.mig_mode(handle).current != enabled:
        if time.monotonic() > deadline or refused is not None:
            raise MigOperationError(
                "MigModePending",
                f"MIG mode of GPU {gpu.pci} ({gpu.uuid}) is not {wanted} yet "
                f"({refused or 'NVML accepted the change'}); it may need a reset of the GPU or a reboot",
            )
        time.sleep(_FIRST_PAUSE_SECONDS)


def find_instance(nvml: Nvml, gpu: Card, profile_id: int, placement: Placement) -> Instance | None:
    """The GPU instance of exactly this profile at exactly this placement, if there is one.

    Raises:
        CardGone: there is no such GPU.
        NvmlError: it cannot be told.
    """
    for instance in _gpu_instances(nvml, profile_id, _handle(nvml, gpu)):
        if instance.placement == placement:
            found = [
                ComputeInstance(number, nvml.uuid(nvml.compute_instance(instance.handle, number).mig_device))
                for number in _compute_instances(nvml, instance.handle)
            ]
            return Instance(instance.id, tuple(found))
    return None


def has_mig_device(nvml: Nvml, gpu: Card, gpu_instance_id: int, compute_instance_id: int, uuid: str) -> bool:
    """Whether the MIG device of this UUID is in its place.

    Raises:
        CardGone: there is no such GPU.
        NvmlError: it cannot be told.
    """
    try:
        instance = nvml.gpu_instance(_handle(nvml, gpu), gpu_instance_id).handle
        return nvml.uuid(nvml.compute_instance(instance, compute_instance_id).mig_device) == uuid
    except NvmlError as error:
        if error.code in (Code.NOT_FOUND, Code.NOT_SUPPORTED):
            return False
        raise


def create_gpu_instance(
    nvml: Nvml,
    gpu: Card,
    profile: MigProfile,
    placement: Placement,
    profiles: Sequence[MigProfile],
    describe: DescribeProcess,
) -> None:
    """Make a GPU instance. ``profiles`` are all of the GPU, to tell what is in the way.

    Raises:
        MigOperationError: NVML refuses, the GPU is busy, or something that is not ours lies there.
        CardGone: there is no such GPU.
    """
    handle = _handle(nvml, gpu)
    what = f"{profile.profile} at {placement.start} of GPU {gpu.pci}"

    def create() -> GpuInstanceHandle:
        return nvml.create_gpu_instance(handle, profile.id, placement)

    try:
        _until_free(nvml, handle, create, f"GPU instance {what} cannot be made", describe)
    except NvmlError as error:
        if error.code == Code.INSUFFICIENT_RESOURCES:
            reason = _in_the_way(nvml, profiles, handle, placement)
            raise MigOperationError(
                "NoRoom", f"GPU instance {what} cannot be made: {error}; {reason}"
            ) from error
        raise MigOperationError("MigCreate", f"GPU instance {what} cannot be made: {error}") from error


def create_compute_instance(nvml: Nvml, gpu: Card, gpu_instance_id: int, what: str) -> ComputeInstance:
    """Make the compute instance that fills the GPU instance, of several the one with most multiprocessors.

    Raises:
        MigOperationError: NVML refuses all that would fill it.
    """
    handle = _handle(nvml, gpu)
    instance = nvml.gpu_instance(handle, gpu_instance_id).handle
    refused: NvmlError | None = None
    for profile_id in _filling_profiles(nvml, instance):
        try:
            _, compute_instance_id, mig_device = nvml.create_compute_instance(instance, profile_id)
        except NvmlError as error:
            refused = error
            if error.code in (Code.NOT_SUPPORTED, Code.INVALID_ARGUMENT):
                continue
            break
        return ComputeInstance(compute_instance_id, nvml.uuid(mig_device))
    raise MigOperationError(
        "MigCreate",
        f"the compute instance of {what} (GPU instance {gpu_instance_id} of GPU {gpu.pci}) cannot be made: "
        f"{refused or 'NVML offers no profile that fills it'}",
    )


def destroy(nvml: Nvml, gpu: Card, gpu_instance_id: int, what: str, describe: DescribeProcess) -> None:
    """Destroy a GPU instance with its compute instances; one that is gone is no error.

    Raises:
        MigOperationError: NVML refuses, or processes use it.
        CardGone: there is nothing to destroy.
    """
    handle = _handle(nvml, gpu)
    gone = (Code.NOT_FOUND, Code.NOT_SUPPORTED)
    problem = f"{what} (GPU instance {gpu_instance_id} of GPU {gpu.pci}) cannot be destroyed"

    def clear() -> None:
        try:
            instance = nvml.gpu_instance(handle, gpu_instance_id).handle
        except NvmlError as error:
            if error.code in gone:
                return
            raise
        for compute_instance_id in _compute_instances(nvml, instance):
            try:
                nvml.destroy_compute_instance(nvml.compute_instance_by_id(instance, compute_instance_id))
            except NvmlError as error:
                if error.code not in gone:
                    raise
        try:
            nvml.destroy_gpu_instance(instance)
        except NvmlError as error:
            if error.code not in gone:
                raise

    try:
        _until_free(nvml, handle, clear, problem, describe, gpu_instance_id)
    except NvmlError as error:
        if error.code in _GONE:
            raise CardGone(f"GPU {gpu.pci} ({gpu.uuid}) is gone: {error}") from error
        raise MigOperationError("MigDestroy", f"{problem}: {error}; trying again is safe") from error


def _handle(nvml: Nvml, gpu: Card) -> DeviceHandle:
    try:
        handle = nvml.device_by_pci(gpu.pci)
        found = nvml.uuid(handle)
    except NvmlError as error:
        if error.code in (Code.NOT_FOUND, *_GONE):
            raise CardGone(f"GPU {gpu.pci} ({gpu.uuid}) is gone: {error}") from error
        raise
    if found != gpu.uuid:
        raise CardGone(f"GPU {gpu.pci} was {gpu.uuid} and is {found} now")
    return handle


def _gpu_instances(nvml: Nvml, profile_id: int, handle: DeviceHandle) -> list[GpuInstanceInfo]:
    """The GPU instances of a profile; none with MIG mode off."""
    try:
        return [nvml.gpu_instance_info(instance) for instance in nvml.gpu_instances(handle, profile_id)]
    except NvmlError as error:
        if error.code == Code.NOT_SUPPORTED:
            return []
        raise


def _filling_profiles(nvml: Nvml, instance: GpuInstanceHandle) -> Iterable[int]:
    profiles = []
    for number in range(COMPUTE_INSTANCE_PROFILES):
        try:
            profiles.append(nvml.compute_instance_profile(instance, number))
        except NvmlError as error:
            if error.code not in (Code.NOT_SUPPORTED, Code.INVALID_ARGUMENT):
                raise
    most = max((profile.slices for profile in profiles), default=0)
    filling = [profile for profile in profiles if profile.slices == most]
    return [profile.id for profile in sorted(filling, key=lambda item: -item.multiprocessors)]


def _compute_instances(nvml: Nvml, instance: GpuInstanceHandle) -> list[int]:
    """Ids of the compute instances of a GPU instance."""
    found = []
    for compute_instance_id in range(MAX_COMPUTE_INSTANCES):
        try:
            nvml.compute_instance_by_id(instance, compute_instance_id)
        except NvmlError as error:
            if error.code not in (Code.NOT_FOUND, Code.INVALID_ARGUMENT):
                raise
        else:
            found.append(compute_instance_id)
    return found


def _until_free(
    nvml: Nvml,
    handle: DeviceHandle,
    change: Callable[[], T],
    problem: str,
    describe: DescribeProcess,
    gpu_instance_id: int | None = None,
    patience: float | None = None,
) -> T:
    """Do ``change``, again and again for a while if NVML says that something is in use."""
    deadline = time.monotonic() + (IN_USE_SECONDS if patience is None else patience)
    pause = _FIRST_PAUSE_SECONDS
    while True:
        try:
            return change()
        except NvmlError as error:
            if error.code != Code.IN_USE:
                raise
            if time.monotonic() + pause > deadline:
                users = _users(_processes(nvml, handle), gpu_instance_id, describe)
                raise MigOperationError(
                    "MigInUse", f"{problem}: {error}, {users}; trying again is safe"
                ) from error
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _processes(nvml: Nvml, handle: DeviceHandle) -> list[RunningProcess]:
    try:
        return nvml.running_processes(handle)
    except NvmlError:
        return []


def _in_the_way(
    nvml: Nvml, profiles: Sequence[MigProfile], handle: DeviceHandle, placement: Placement
) -> str:
    """Which instances that exist overlap the placement, in words."""
    found = [
        f"GPU instance {instance.id} ({profile.profile} at {instance.placement.start})"
        for profile in profiles
        for instance in _gpu_instances(nvml, profile.id, handle)
        if instance.placement.overlaps(placement)
    ]
    if found:
        return f"in the way, and not created by this driver: {', '.join(found)}"
    return "nothing overlaps its placement, so an engine that it needs is used up"


def _users(
    processes: Iterable[RunningProcess], gpu_instance_id: int | None, describe: DescribeProcess
) -> str:
    pids = sorted(
        {
            process.pid
            for process in processes
            if gpu_instance_id is None or process.gpu_instance_id in (None, gpu_instance_id)
        }
    )
    if not pids:
        return "NVML names no process that uses it"
    return "in use by process " + ", ".join(describe(pid) for pid in pids)
