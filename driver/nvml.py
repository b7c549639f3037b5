"""NVML: the only module that touches the binding (``pynvml``, from the package ``nvidia-ml-py``).

Every method makes one NVML call, or the few that one answer takes, and returns plain values. NVML is
thread-safe; nothing here starts a thread or sets a deadline: callers run it in worker threads, one for each
GPU, because any call may take seconds or hang. Struct layouts and return codes are those of nvml.h 13.3.
"""

from __future__ import annotations

import _ctypes
import ctypes
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, NewType, TypeVar

import pynvml

from driver.inventory import Engines, PciAddress, Placement

DeviceHandle = NewType("DeviceHandle", object)
"""A GPU or a MIG device."""
GpuInstanceHandle = NewType("GpuInstanceHandle", object)
ComputeInstanceHandle = NewType("ComputeInstanceHandle", object)

T = TypeVar("T")

_INIT_WITHOUT_GPUS = 1
"""NVML_INIT_FLAG_NO_GPUS: a node whose GPUs come later is no failure."""


class Code(IntEnum):
    """nvmlReturn_t. A driver may answer with a number that is not here."""

    SUCCESS = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    ALREADY_INITIALIZED = 5
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    INSUFFICIENT_POWER = 8
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    IRQ_ISSUE = 11
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    CORRUPTED_INFOROM = 14
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    OPERATING_SYSTEM = 17
    LIB_RM_VERSION_MISMATCH = 18
    IN_USE = 19
    MEMORY = 20
    NO_DATA = 21
    VGPU_ECC_NOT_SUPPORTED = 22
    INSUFFICIENT_RESOURCES = 23
    FREQ_NOT_SUPPORTED = 24
    ARGUMENT_VERSION_MISMATCH = 25
    DEPRECATED = 26
    NOT_READY = 27
    GPU_NOT_FOUND = 28
    INVALID_STATE = 29
    RESET_TYPE_NOT_SUPPORTED = 30
    UNKNOWN = 999


class NvmlError(Exception):
    """An NVML call failed. Reads ``nvmlDeviceGetName: GPU_IS_LOST (15)``."""

    def __init__(self, call: str, code: int) -> None:
        self.call = call
        self.code = code
        self.name = Code(code).name if code in list(Code) else "error"
        super().__init__(f"{call}: {self.name} ({code})")


class NvmlUnavailable(Exception):
    """NVML cannot be loaded or initialised now; it may be later, when the driver is there."""


@dataclass(frozen=True, slots=True)
class MigMode:
    current: bool
    pending: bool


@dataclass(frozen=True, slots=True)
class Fabric:
    """nvmlGpuFabricInfoV_t, as far as it names a clique. ``completed``: registered with the fabric."""

    completed: bool
    cluster_uuid: uuid.UUID
    clique: int


@dataclass(frozen=True, slots=True)
class GpuInstanceProfile:
    """What a GPU instance of a profile has. ``name`` is NVML's text, such as ``MIG 1g.10gb``."""

    id: int
    name: str
    slices: int
    memory_mib: int
    instance_count: int
    engines: Engines


@dataclass(frozen=True, slots=True)
class GpuInstanceInfo:
    handle: GpuInstanceHandle
    id: int
    profile_id: int
    placement: Placement


@dataclass(frozen=True, slots=True)
class ComputeInstanceInfo:
    """``mig_device`` is the handle of the MIG device that the compute instance is."""

    mig_device: DeviceHandle
    placement: Placement


@dataclass(frozen=True, slots=True)
class MigAttributes:
    """nvmlDeviceAttributes_t of a MIG device; memory in MiB."""

    gpu_instance_slices: int
    compute_instance_slices: int
    memory_mib: int
    engines: Engines


@dataclass(frozen=True, slots=True)
class ComputeInstanceProfile:
    """What a compute instance of a profile has, of those that one GPU instance offers."""

    id: int
    slices: int
    multiprocessors: int


@dataclass(frozen=True, slots=True)
class RunningProcess:
    """A process that uses a GPU; the ids are ``None`` where it uses the GPU as a whole."""

    pid: int
    gpu_instance_id: int | None
    compute_instance_id: int | None


class VirtualizationMode(IntEnum):
    """nvmlGpuVirtualizationMode_t."""

    NONE = 0
    PASSTHROUGH = 1
    VGPU = 2
    HOST_VGPU = 3
    HOST_VSGA = 4


class RemoteDeviceType(IntEnum):
    """nvmlIntNvLinkDeviceType_t: what an NVLink leads to."""

    GPU = 0
    IBMNPU = 1
    SWITCH = 2
    UNKNOWN = 255


COMPUTE_INSTANCE_PROFILES = int(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT)
_NO_INSTANCE = 0xFFFFFFFF
MAX_NVLINKS = int(pynvml.NVML_NVLINK_MAX_LINKS)
GPU_INSTANCE_PROFILES = int(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT)
"""Values of the profile enumeration that the binding knows: below this. A newer driver has more."""

_ROOM_FOR_PLACEMENTS = 128
_ROOM_FOR_GPU_INSTANCES = 64


class Nvml:
    """NVML, loaded and initialised once for the process (the binding keeps one library per process)."""

    def __init__(self, library: Path) -> None:
        """Load the library at this absolute path and initialise it.

        The link is followed, so that after a driver upgrade a new attempt loads the new file.

        Raises:
            NvmlUnavailable: the library does not load, is no NVML, or answers an error to its initialisation,
                such as DRIVER_NOT_LOADED (9) or LIB_RM_VERSION_MISMATCH (18).
        """
        self.library = library.resolve()
        try:
            loaded = ctypes.CDLL(str(self.library))
        except OSError as error:
            raise NvmlUnavailable(f"{self.library} does not load: {error}") from error
        pynvml._nvmlGetFunctionPointer_cache.clear()
        pynvml.nvmlLib = loaded
        try:
            _call("nvmlInitWithFlags", pynvml.nvmlInitWithFlags, _INIT_WITHOUT_GPUS)
        except NvmlError as error:
            _forget()
            # Else the loader would answer the next attempt with this file, also when it has been replaced.
            _ctypes.dlclose(loaded._handle)
            raise NvmlUnavailable(f"{self.library}: {error}") from error

    def close(self) -> None:
        """Shut NVML down; no method may be called after it."""
        try:
            _call("nvmlShutdown", pynvml.nvmlShutdown)
        finally:
            _forget()

    def driver_version(self) -> str:
        return _text("nvmlSystemGetDriverVersion", pynvml.nvmlSystemGetDriverVersion)

    def cuda_driver_version(self) -> int:
        """CUDA version that the driver supports, ``1000 * major + 10 * minor``."""
        return int(_call("nvmlSystemGetCudaDriverVersion_v2", pynvml.nvmlSystemGetCudaDriverVersion_v2))

    def device_count(self) -> int:
        return int(_call("nvmlDeviceGetCount_v2", pynvml.nvmlDeviceGetCount))

    def device_by_index(self, index: int) -> DeviceHandle:
        return DeviceHandle(_call("nvmlDeviceGetHandleByIndex_v2", pynvml.nvmlDeviceGetHandleByIndex, index))

    def device_by_pci(self, pci: PciAddress) -> DeviceHandle:
        return DeviceHandle(
            _call("nvmlDeviceGetHandleByPciBusId_v2", pynvml.nvmlDeviceGetHandleByPciBusId, _bus_id(pci))
        )

    def uuid(self, device: DeviceHandle) -> str:
        return _text("nvmlDeviceGetUUID", pynvml.nvmlDeviceGetUUID, device)

    def name(self, device: DeviceHandle) -> str:
        return _text("nvmlDeviceGetName", pynvml.nvmlDeviceGetName, device)

    def pci_bus_id(self, device: DeviceHandle) -> str:
        """The bus id as NVML writes it: ``00000000:CA:00.0``."""
        return _bus_id_of(_call("nvmlDeviceGetPciInfo_v3", pynvml.nvmlDeviceGetPciInfo_v3, device))

    def minor_number(self, device: DeviceHandle) -> int:
        return int(_call("nvmlDeviceGetMinorNumber", pynvml.nvmlDeviceGetMinorNumber, device))

    def brand(self, device: DeviceHandle) -> int:
        """nvmlBrandType_t."""
        return int(_call("nvmlDeviceGetBrand", pynvml.nvmlDeviceGetBrand, device))

    def architecture(self, device: DeviceHandle) -> int:
        """nvmlDeviceArchitecture_t."""
        return int(_call("nvmlDeviceGetArchitecture", pynvml.nvmlDeviceGetArchitecture, device))

    def compute_capability(self, device: DeviceHandle) -> tuple[int, int]:
        major, minor = _call(
            "nvmlDeviceGetCudaComputeCapability", pynvml.nvmlDeviceGetCudaComputeCapability, device
        )
        return int(major), int(minor)

    def memory_bytes(self, device: DeviceHandle) -> int:
        """Total memory in bytes (nvmlMemory_t version 1: what nvidia-smi shows)."""
        return int(_call("nvmlDeviceGetMemoryInfo", pynvml.nvmlDeviceGetMemoryInfo, device).total)

    def cores(self, device: DeviceHandle) -> int:
        return int(_call("nvmlDeviceGetNumGpuCores", pynvml.nvmlDeviceGetNumGpuCores, device))

    def addressing_mode(self, device: DeviceHandle) -> int:
        """nvmlDeviceAddressingModeType_t: 0 none, 1 HMM, 2 ATS."""
        return int(_call("nvmlDeviceGetAddressingMode", pynvml.nvmlDeviceGetAddressingMode, device))

    def virtualization_mode(self, device: DeviceHandle) -> int:
        """nvmlGpuVirtualizationMode_t, see ``VirtualizationMode``."""
        return int(_call("nvmlDeviceGetVirtualizationMode", pynvml.nvmlDeviceGetVirtualizationMode, device))

    def fabric(self, device: DeviceHandle) -> Fabric:
        info = pynvml.c_nvmlGpuFabricInfo_v2_t()
        _call("nvmlDeviceGetGpuFabricInfoV", pynvml.nvmlDeviceGetGpuFabricInfoV, device, ctypes.byref(info))
        return Fabric(
            completed=info.state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED and info.status == Code.SUCCESS,
            cluster_uuid=uuid.UUID(bytes=bytes(info.clusterUuid)),
            clique=int(info.cliqueId),
        )

    def nvlink_active(self, device: DeviceHandle, link: int) -> bool:
        return bool(_call("nvmlDeviceGetNvLinkState", pynvml.nvmlDeviceGetNvLinkState, device, link))

    def nvlink_version(self, device: DeviceHandle, link: int) -> int:
        """nvmlNvlinkVersion_t, an enumeration and not the generation."""
        return int(_call("nvmlDeviceGetNvLinkVersion", pynvml.nvmlDeviceGetNvLinkVersion, device, link))

    def nvlink_remote_type(self, device: DeviceHandle, link: int) -> int:
        """nvmlIntNvLinkDeviceType_t, see ``RemoteDeviceType``."""
        call = pynvml.nvmlDeviceGetNvLinkRemoteDeviceType
        return int(_call("nvmlDeviceGetNvLinkRemoteDeviceType", call, device, link))

    def nvlink_remote_bus_id(self, device: DeviceHandle, link: int) -> str:
        call = pynvml.nvmlDeviceGetNvLinkRemotePciInfo
        return _bus_id_of(_call("nvmlDeviceGetNvLinkRemotePciInfo_v2", call, device, link))

    def mig_mode(self, device: DeviceHandle) -> MigMode:
        current, pending = _call("nvmlDeviceGetMigMode", pynvml.nvmlDeviceGetMigMode, device)
        return MigMode(bool(current), bool(pending))

    def gpu_instance_profile(self, device: DeviceHandle, profile: int) -> GpuInstanceProfile:
        """A profile by its place in the enumeration, not by its id."""
        call = pynvml.nvmlDeviceGetGpuInstanceProfileInfo
        return _profile(_call("nvmlDeviceGetGpuInstanceProfileInfoV", call, device, profile))

    def gpu_instance_profile_by_id(self, device: DeviceHandle, profile_id: int) -> GpuInstanceProfile:
        call = pynvml.nvmlDeviceGetGpuInstanceProfileInfoById
        return _profile(_call("nvmlDeviceGetGpuInstanceProfileInfoByIdV", call, device, profile_id))

    def max_mig_device_count(self, device: DeviceHandle) -> int:
        return int(_call("nvmlDeviceGetMaxMigDeviceCount", pynvml.nvmlDeviceGetMaxMigDeviceCount, device))

    def mig_device_by_index(self, device: DeviceHandle, index: int) -> DeviceHandle:
        call = pynvml.nvmlDeviceGetMigDeviceHandleByIndex
        return DeviceHandle(_call("nvmlDeviceGetMigDeviceHandleByIndex", call, device, index))

    def gpu_instance_id(self, mig_device: DeviceHandle) -> int:
        return int(_call("nvmlDeviceGetGpuInstanceId", pynvml.nvmlDeviceGetGpuInstanceId, mig_device))

    def compute_instance_id(self, mig_device: DeviceHandle) -> int:
        call = pynvml.nvmlDeviceGetComputeInstanceId
        return int(_call("nvmlDeviceGetComputeInstanceId", call, mig_device))

    def mig_attributes(self, mig_device: DeviceHandle) -> MigAttributes:
        attributes = _call("nvmlDeviceGetAttributes_v2", pynvml.nvmlDeviceGetAttributes_v2, mig_device)
        return MigAttributes(
            gpu_instance_slices=int(attributes.gpuInstanceSliceCount),
            compute_instance_slices=int(attributes.computeInstanceSliceCount),
            memory_mib=int(attributes.memorySizeMB),
            engines=Engines(
                multiprocessors=int(attributes.multiprocessorCount),
                copy_engines=int(attributes.sharedCopyEngineCount),
                decoders=int(attributes.sharedDecoderCount),
                encoders=int(attributes.sharedEncoderCount),
                jpeg_engines=int(attributes.sharedJpegCount),
                ofa_engines=int(attributes.sharedOfaCount),
            ),
        )

    def gpu_instance(self, device: DeviceHandle, gpu_instance_id: int) -> GpuInstanceInfo:
        call = pynvml.nvmlDeviceGetGpuInstanceById
        handle = _call("nvmlDeviceGetGpuInstanceById", call, device, gpu_instance_id)
        return self.gpu_instance_info(GpuInstanceHandle(handle))

    def gpu_instance_info(self, gpu_instance: GpuInstanceHandle) -> GpuInstanceInfo:
        info = _call("nvmlGpuInstanceGetInfo", pynvml.nvmlGpuInstanceGetInfo, gpu_instance)
        return GpuInstanceInfo(
            handle=gpu_instance,
            id=int(info.id),
            profile_id=int(info.profileId),
            placement=Placement(int(info.placement.start), int(info.placement.size)),
        )

    def gpu_instances(self, device: DeviceHandle, profile_id: int) -> tuple[GpuInstanceHandle, ...]:
        """The GPU instances of one profile that exist; MIG mode must be on.

        The count that NVML gives for a profile is wrong on some boards, so there is room for more.
        """
        found = (pynvml.c_nvmlGpuInstance_t * _ROOM_FOR_GPU_INSTANCES)()
        count = ctypes.c_uint(_ROOM_FOR_GPU_INSTANCES)
        call = pynvml.nvmlDeviceGetGpuInstances
        _call("nvmlDeviceGetGpuInstances", call, device, profile_id, found, ctypes.byref(count))
        return tuple(GpuInstanceHandle(handle) for handle in found[: count.value])

    def gpu_instance_placements(self, device: DeviceHandle, profile_id: int) -> tuple[Placement, ...]:
        """Where a GPU instance of this profile may be, by start, on a GPU that is empty."""
        found = (pynvml.c_nvmlGpuInstancePlacement_t * _ROOM_FOR_PLACEMENTS)()
        count = ctypes.c_uint(_ROOM_FOR_PLACEMENTS)
        call = pynvml.nvmlDeviceGetGpuInstancePossiblePlacements
        name = "nvmlDeviceGetGpuInstancePossiblePlacements_v2"
        _call(name, call, device, profile_id, found, ctypes.byref(count))
        return tuple(sorted(Placement(int(one.start), int(one.size)) for one in found[: count.value]))

    def resetless_mig(self, device: DeviceHandle) -> bool:
        """Whether MIG mode changes without a reset of the GPU (field IS_RESETLESS_MIG_SUPPORTED)."""
        field = int(pynvml.NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED)
        (answer,) = _call("nvmlDeviceGetFieldValues", pynvml.nvmlDeviceGetFieldValues, device, [field])
        if answer.nvmlReturn != Code.SUCCESS:
            raise NvmlError("nvmlDeviceGetFieldValues", int(answer.nvmlReturn))
        return bool(answer.value.uiVal)

    def compute_instance(
        self, gpu_instance: GpuInstanceHandle, compute_instance_id: int
    ) -> ComputeInstanceInfo:
        call = pynvml.nvmlGpuInstanceGetComputeInstanceById
        handle = _call("nvmlGpuInstanceGetComputeInstanceById", call, gpu_instance, compute_instance_id)
        info = _call("nvmlComputeInstanceGetInfo_v2", pynvml.nvmlComputeInstanceGetInfo_v2, handle)
        return ComputeInstanceInfo(
            mig_device=DeviceHandle(info.device),
            placement=Placement(int(info.placement.start), int(info.placement.size)),
        )

    def set_mig_mode(self, device: DeviceHandle, enabled: bool) -> int:
        """Ask for a MIG mode; returns the activation status: only ``Code.SUCCESS`` means that it holds."""
        return int(_call("nvmlDeviceSetMigMode", pynvml.nvmlDeviceSetMigMode, device, int(enabled)))

    def create_gpu_instance(
        self, device: DeviceHandle, profile_id: int, placement: Placement
    ) -> GpuInstanceHandle:
        """Make a GPU instance at exactly this placement."""
        place = pynvml.c_nvmlGpuInstancePlacement_t(placement.start, placement.size)
        call = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement
        return GpuInstanceHandle(
            _call("nvmlDeviceCreateGpuInstanceWithPlacement", call, device, profile_id, ctypes.byref(place))
        )

    def destroy_gpu_instance(self, gpu_instance: GpuInstanceHandle) -> None:
        _call("nvmlGpuInstanceDestroy", pynvml.nvmlGpuInstanceDestroy, gpu_instance)

    def compute_instance_profile(
        self, gpu_instance: GpuInstanceHandle, profile: int
    ) -> ComputeInstanceProfile:
        """A profile by its place in the enumeration, below ``COMPUTE_INSTANCE_PROFILES``, not by its id."""
        call = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo
        shared = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
        info = _call("nvmlGpuInstanceGetComputeInstanceProfileInfoV", call, gpu_instance, profile, shared)
        return ComputeInstanceProfile(int(info.id), int(info.sliceCount), int(info.multiprocessorCount))

    def create_compute_instance(
        self, gpu_instance: GpuInstanceHandle, profile_id: int
    ) -> tuple[ComputeInstanceHandle, int, DeviceHandle]:
        """Make a compute instance; returns it, its id, and the MIG device that it is."""
        call = pynvml.nvmlGpuInstanceCreateComputeInstance
        handle = _call("nvmlGpuInstanceCreateComputeInstance", call, gpu_instance, profile_id)
        info = _call("nvmlComputeInstanceGetInfo_v2", pynvml.nvmlComputeInstanceGetInfo_v2, handle)
        return ComputeInstanceHandle(handle), int(info.id), DeviceHandle(info.device)

    def compute_instance_by_id(
        self, gpu_instance: GpuInstanceHandle, compute_instance_id: int
    ) -> ComputeInstanceHandle:
        call = pynvml.nvmlGpuInstanceGetComputeInstanceById
        return ComputeInstanceHandle(
            _call("nvmlGpuInstanceGetComputeInstanceById", call, gpu_instance, compute_instance_id)
        )

    def destroy_compute_instance(self, compute_instance: ComputeInstanceHandle) -> None:
        _call("nvmlComputeInstanceDestroy", pynvml.nvmlComputeInstanceDestroy, compute_instance)

    def running_processes(self, device: DeviceHandle) -> list[RunningProcess]:
        """Processes with a compute context. Of a GPU in MIG mode: those of all its instances."""
        call = pynvml.nvmlDeviceGetComputeRunningProcesses_v3
        return [
            RunningProcess(
                int(process.pid), _instance_id(process.gpuInstanceId), _instance_id(process.computeInstanceId)
            )
            for process in _call("nvmlDeviceGetComputeRunningProcesses_v3", call, device)
        ]


def call_of_thread(thread: int) -> str:
    """The NVML function that the thread with this identity (``threading.get_ident``) is in now, or ``""``."""
    return _running.get(thread, "")


_running: dict[int, str] = {}


def _instance_id(number: int) -> int | None:
    return None if number == _NO_INSTANCE else int(number)


def _call(name: str, function: Callable[..., T], *arguments: object) -> T:
    thread = threading.get_ident()
    _running[thread] = name
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        raise NvmlError(name, int(error.value)) from None
    finally:
        del _running[thread]


def _text(name: str, function: Any, *arguments: object) -> str:
    """Call a string query. The binding decodes strictly; its undecorated function gives the bytes."""
    raw: bytes = _call(name, function.__wrapped__, *arguments)
    return raw.decode("utf-8", "replace")


def _field(struct: ctypes.Structure, name: str) -> str:
    """A char array of a struct, past the binding's own attribute access, which decodes strictly."""
    raw: bytes = object.__getattribute__(struct, name)
    return raw.decode("utf-8", "replace")


def _bus_id_of(info: ctypes.Structure) -> str:
    return _field(info, "busId")


def _bus_id(pci: PciAddress) -> str:
    return f"{pci.domain:08X}:{pci.bus:02X}:{pci.device:02X}.{pci.function:X}"


def _profile(info: Any) -> GpuInstanceProfile:
    return GpuInstanceProfile(
        id=int(info.id),
        name=_field(info, "name"),
        slices=int(info.sliceCount),
        memory_mib=int(info.memorySizeMB),
        instance_count=int(info.instanceCount),
        engines=Engines(
            multiprocessors=int(info.multiprocessorCount),
            copy_engines=int(info.copyEngineCount),
            decoders=int(info.decoderCount),
            encoders=int(info.encoderCount),
            jpeg_engines=int(info.jpegCount),
            ofa_engines=int(info.ofaCount),
        ),
    )


def _forget() -> None:
    """Make the binding forget the library, so that the next attempt loads another."""
    pynvml.nvmlLib = None
    pynvml._nvmlGetFunctionPointer_cache.clear()
