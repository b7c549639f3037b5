"""Discovery: read a node's GPUs through NVML and sysfs into an inventory.

``read_gpu`` reads one GPU and may run in a worker thread of its own; ``assemble`` puts the readings
together and is pure. Each NVML query is made once for a GPU, whatever the number of its devices; but what
MIG decides is read anew when it changed meanwhile. A query that fails leaves its field empty and is named
in the inventory; only without UUID or PCI address, or when the GPU is lost, is a GPU set aside.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from driver.enumerations import (
    ADDRESSING_MODES,
    ARCHITECTURES,
    BRANDS,
    CORES_PER_MULTIPROCESSOR,
    HOPPER,
    NVLINK_VERSIONS,
    UNKNOWN_ARCHITECTURE,
)
from driver.fieldreader import FieldReader
from driver.hostfiles import HostRoots
from driver.inventory import (
    Engines,
    Gpu,
    Inventory,
    MigProfile,
    PciAddress,
    UnreadableField,
    UnreadableGpu,
)
from driver.migdevices import MigInstances, read_mig
from driver.migprofiles import read_profiles, whole_gpu_engines, with_placements
from driver.nvml import (
    MAX_NVLINKS,
    Code,
    DeviceHandle,
    MigMode,
    Nvml,
    NvmlError,
    RemoteDeviceType,
    VirtualizationMode,
)
from driver.topology import GpuLinks, Link, Remote, nvlinks
from driver.versions import UNKNOWN, cuda_version

NODE = "node"
"""Stands for the GPU in ``UnreadableField`` when the query is not about one GPU."""


@dataclass(frozen=True, slots=True)
class NodeReading:
    """What is read once for the node. ``gpu_count`` is how many indexes there are to read."""

    gpu_count: int
    driver_version: str
    cuda_driver_version: str
    display_functions: tuple[PciAddress, ...]
    failures: tuple[UnreadableField, ...]


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU, still without ``nvlink``, and its active links; ``None`` if they cannot be read or used.

    In MIG mode they cannot be used; they are here all the same where the mode changes without a reset.
    ``settled``: MIG did not change while it was read, or not each time that it was tried.
    """

    gpu: Gpu
    links: GpuLinks | None
    failures: tuple[UnreadableField, ...]
    settled: bool = True


RunOnGpus = Callable[
    [Callable[[int], GpuReading | UnreadableGpu], Iterable[int]], Iterable[GpuReading | UnreadableGpu]
]
"""How to read several GPUs: the built-in ``map``, or an executor's, which reads them at the same time."""


def discover(nvml: Nvml, roots: HostRoots, run_on_gpus: RunOnGpus = map) -> Inventory:
    """Read the whole node.

    Raises:
        NvmlError: NVML does not even tell how many GPUs there are.
    """
    node = read_node(nvml, roots)
    readings = run_on_gpus(lambda index: read_gpu(nvml, roots, index), range(node.gpu_count))
    return assemble(node, list(readings))


def read_node(nvml: Nvml, roots: HostRoots) -> NodeReading:
    """Read what the node's GPUs have in common.

    Raises:
        NvmlError: NVML does not even tell how many GPUs there are.
    """
    reader = FieldReader(NODE)
    return NodeReading(
        gpu_count=nvml.device_count(),
        driver_version=reader.read("driverVersion", nvml.driver_version, ""),
        cuda_driver_version=cuda_version(reader.read("cudaDriverVersion", nvml.cuda_driver_version, 0)),
        display_functions=roots.nvidia_display_functions(),
        failures=tuple(reader.failures),
    )


def read_gpu(
    nvml: Nvml,
    roots: HostRoots,
    index: int,
    earlier: GpuReading | None = None,
) -> GpuReading | UnreadableGpu:
    """Read the GPU with this NVML index. Never raises for anything that NVML or sysfs answers.

    What the driver fixes for a GPU and its MIG mode (engines, profiles, placements) is taken over from an
    ``earlier`` reading, which must be of the same driver.

    A MIG mode that changes without a reset comes and goes with claims, so the NVLinks of such a GPU are told
    as they were with the mode off where the driver shows none with it on.
    """
    known_as = f"index {index}"
    try:
        handle = nvml.device_by_index(index)
        uuid = nvml.uuid(handle)
        if not uuid:
            return UnreadableGpu(known_as, "nvmlDeviceGetUUID: the UUID is empty")
        known_as = uuid
        pci = PciAddress.parse(nvml.pci_bus_id(handle))
        identity = Gpu(uuid=uuid, pci=pci, index=index)
        return _read_fields(nvml, roots, handle, identity, earlier)
    except (NvmlError, ValueError) as error:
        return UnreadableGpu(known_as, str(error))


def assemble(
    node: NodeReading,
    readings: Sequence[GpuReading | UnreadableGpu],
    whole: Collection[PciAddress] = (),
) -> Inventory:
    """Put the readings together: GPUs by PCI address, NVLink islands, what could not be read. Pure.

    A GPU in MIG mode has no NVLink, unless it is among ``whole``: MIG mode is turned off for who gets it.
    """
    read = sorted(
        (reading for reading in readings if isinstance(reading, GpuReading)), key=lambda r: r.gpu.pci
    )
    unreadable = tuple(reading for reading in readings if isinstance(reading, UnreadableGpu))
    nvlink = nvlinks(
        [
            reading.links
            for reading in read
            if reading.links is not None and (not reading.gpu.mig_enabled or reading.gpu.pci in whole)
        ]
    )
    missing = set(node.display_functions) - {reading.gpu.pci for reading in read}
    return Inventory(
        driver_version=node.driver_version,
        cuda_driver_version=node.cuda_driver_version,
        gpus=tuple(replace(reading.gpu, nvlink=nvlink.get(reading.gpu.pci)) for reading in read),
        unreadable_gpus=unreadable,
        unreadable_fields=node.failures + tuple(f for reading in read for f in reading.failures),
        waiting_for_driver=max(0, len(missing) - len(unreadable)),
    )


def _read_fields(
    nvml: Nvml,
    roots: HostRoots,
    handle: DeviceHandle,
    identity: Gpu,
    earlier: GpuReading | None,
) -> GpuReading:
    reader = FieldReader(identity.uuid)
    read = reader.read
    unsupported = [Code.NOT_SUPPORTED]
    virtualization = read(
        "virtualizationMode", lambda: nvml.virtualization_mode(handle), 0, absent=unsupported
    )
    is_vgpu = virtualization == VirtualizationMode.VGPU
    capability = read("cudaComputeCapability", lambda: nvml.compute_capability(handle), None)
    architecture = read("architecture", lambda: nvml.architecture(handle), -1)
    mig = _read_mig_state(nvml, handle, reader, identity, earlier, capability, is_vgpu=is_vgpu)
    gpu = replace(
        identity,
        minor=read("minor", lambda: nvml.minor_number(handle), None),
        product_name=read("productName", lambda: nvml.name(handle), ""),
        brand=BRANDS.get(read("brand", lambda: nvml.brand(handle), -1), ""),
        architecture=ARCHITECTURES.get(architecture, ""),
        compute_capability=f"{capability[0]}.{capability[1]}.0" if capability else UNKNOWN,
        memory_bytes=read("memory", lambda: nvml.memory_bytes(handle), 0),
        engines=mig.geometry.engines,
        addressing_mode=ADDRESSING_MODES.get(
            read("addressingMode", lambda: nvml.addressing_mode(handle), -1, absent=unsupported), ""
        ),
        pcie_root=read("pcieRoot", lambda: roots.pcie_root(identity.pci), None),
        numa_node=read("numaNode", lambda: roots.numa_node(identity.pci), None),
        fabric_clique=read("fabricClique", lambda: _fabric_clique(nvml, handle), None, absent=unsupported),
        mig_capable=mig.capable,
        mig_enabled=mig.mode.current,
        mig_pending=mig.mode.pending,
        is_vgpu=is_vgpu,
        mig_devices=mig.instances.mig_devices,
        profiles=mig.geometry.profiles,
        gpu_instances=mig.instances.gpu_instances,
        resetless_mig=mig.capable and _resetless_mig(nvml, handle, reader, architecture),
    )
    usable = not gpu.mig_enabled or gpu.resetless_mig
    links = _read_links(nvml, handle, reader, gpu) if usable else None
    if gpu.mig_enabled and links is not None and not links.links and earlier is not None:
        links = earlier.links if earlier.gpu.uuid == gpu.uuid else links
    return GpuReading(gpu, links, tuple(reader.failures), mig.settled)


def _fabric_clique(nvml: Nvml, handle: DeviceHandle) -> str | None:
    """``<cluster uuid>.<clique>``; the cluster UUID of a board with its own NVSwitches is 0: no clique."""
    fabric = nvml.fabric(handle)
    if not fabric.completed or fabric.cluster_uuid.int == 0:
        return None
    return f"{fabric.cluster_uuid}.{fabric.clique}"


@dataclass(frozen=True, slots=True)
class _Geometry:
    """What a GPU is made of, and what it can be cut into."""

    engines: Engines
    profiles: tuple[MigProfile, ...]


_GEOMETRY_FIELDS = ("cudaComputeCapability", "engines", "multiprocessors", "migProfiles")


def _known_geometry(
    earlier: GpuReading | None, identity: Gpu, mode: MigMode, *, mig_capable: bool
) -> _Geometry | None:
    """The geometry as read before, if it was read without a failure for this card in this MIG mode."""
    if earlier is None or not earlier.settled:
        return None
    gpu = earlier.gpu
    known = (gpu.uuid, gpu.mig_capable, gpu.mig_enabled)
    if known != (identity.uuid, mig_capable, mode.current):
        return None
    if any(failure.field.startswith(_GEOMETRY_FIELDS) for failure in earlier.failures):
        return None
    return _Geometry(gpu.engines, gpu.profiles)


def _read_geometry(
    nvml: Nvml,
    handle: DeviceHandle,
    reader: FieldReader,
    capability: tuple[int, int] | None,
    *,
    mig_capable: bool,
) -> _Geometry:
    """The engines of the whole GPU and its profiles.

    NVML counts only CUDA cores; the rest is known by the largest MIG profile, where there is one.
    """
    profiles = read_profiles(nvml, handle, reader) if mig_capable else []
    engines = whole_gpu_engines(profiles)
    cores = reader.read("multiprocessors", lambda: nvml.cores(handle), 0, absent=[Code.NOT_SUPPORTED])
    per_multiprocessor = CORES_PER_MULTIPROCESSOR.get(capability) if capability else None
    if cores and per_multiprocessor:
        engines = replace(engines, multiprocessors=cores // per_multiprocessor)
    return _Geometry(engines, with_placements(nvml, handle, reader, profiles))


_MOST_MIG_READINGS = 3


@dataclass(frozen=True, slots=True)
class _MigState:
    """The MIG mode and what it decides. ``settled``: nothing changed while it was read."""

    capable: bool
    mode: MigMode
    geometry: _Geometry
    instances: MigInstances
    settled: bool


def _read_mig_state(
    nvml: Nvml,
    handle: DeviceHandle,
    reader: FieldReader,
    identity: Gpu,
    earlier: GpuReading | None,
    capability: tuple[int, int] | None,
    *,
    is_vgpu: bool,
) -> _MigState:
    """What NVML tells by many queries, of one moment: read again if somebody changed it meanwhile."""
    for _ in range(_MOST_MIG_READINGS):
        attempt = FieldReader(identity.uuid)
        state = _read_mig_once(nvml, handle, attempt, identity, earlier, capability, is_vgpu=is_vgpu)
        if state.settled:
            break
    reader.failures.extend(attempt.failures)
    return state


def _read_mig_once(
    nvml: Nvml,
    handle: DeviceHandle,
    reader: FieldReader,
    identity: Gpu,
    earlier: GpuReading | None,
    capability: tuple[int, int] | None,
    *,
    is_vgpu: bool,
) -> _MigState:
    def read_mode(empty: MigMode | None) -> MigMode | None:
        return reader.read("migMode", lambda: nvml.mig_mode(handle), empty, absent=[Code.NOT_SUPPORTED])

    before = read_mode(None)
    capable = before is not None and not is_vgpu
    mode = before or MigMode(current=False, pending=False)
    geometry = _known_geometry(earlier, identity, mode, mig_capable=capable) or _read_geometry(
        nvml, handle, reader, capability, mig_capable=capable
    )
    of_instances = FieldReader(identity.uuid)
    instances = read_mig(nvml, handle, of_instances, geometry.profiles) if mode.current else MigInstances()
    after = mode if before is None else read_mode(mode) or mode
    settled = after == mode and instances.settled
    if mode.current and not after.current:
        # With the mode off there is none, whatever was met of them, or could not be read any more.
        return _MigState(capable, after, geometry, MigInstances(), settled)
    reader.failures.extend(of_instances.failures)
    return _MigState(capable, mode, geometry, instances, settled)


def _resetless_mig(nvml: Nvml, handle: DeviceHandle, reader: FieldReader, architecture: int) -> bool:
    """Whether MIG mode changes without a reset; where the driver does not tell, Hopper and later do."""
    absent = [Code.NOT_SUPPORTED, Code.INVALID_ARGUMENT, Code.FUNCTION_NOT_FOUND]
    answer = reader.read("resetlessMig", lambda: nvml.resetless_mig(handle), None, absent=absent)
    return HOPPER <= architecture < UNKNOWN_ARCHITECTURE if answer is None else answer


def _read_links(nvml: Nvml, handle: DeviceHandle, reader: FieldReader, gpu: Gpu) -> GpuLinks | None:
    """The GPU's active links, or ``None`` when its NVLink state cannot be read."""
    links: list[Link] = []
    version = UNKNOWN
    for number in range(MAX_NVLINKS):
        try:
            active = nvml.nvlink_active(handle, number)
        except NvmlError as error:
            if error.code == Code.INVALID_ARGUMENT:
                break
            if error.code == Code.NOT_SUPPORTED:
                continue
            if error.code == Code.GPU_IS_LOST:
                raise
            reader.note("nvlink", error)
            return None
        if not active:
            continue
        if not links:
            enumerated = reader.read("nvlinkVersion", lambda n=number: nvml.nvlink_version(handle, n), 0)  # type: ignore[misc]
            version = NVLINK_VERSIONS.get(enumerated, UNKNOWN)
        links.append(_read_link(nvml, handle, reader, number))
    return GpuLinks(gpu.uuid, gpu.pci, tuple(links), version, gpu.fabric_clique)


def _read_link(nvml: Nvml, handle: DeviceHandle, reader: FieldReader, number: int) -> Link:
    remotes = {RemoteDeviceType.GPU: Remote.GPU, RemoteDeviceType.SWITCH: Remote.SWITCH}
    kind = reader.read("nvlinkRemote", lambda: nvml.nvlink_remote_type(handle, number), -1)
    pci = reader.read(
        "nvlinkRemote", lambda: PciAddress.parse(nvml.nvlink_remote_bus_id(handle, number)), None
    )
    return Link(remotes.get(kind, Remote.OTHER), pci)  # type: ignore[call-overload]
