"""The catalogue of what a published device tells about itself: its attributes and capacities.

Every device, whole GPU or MIG device, has every attribute, so that no CEL selector meets a missing one,
which would make the scheduler give up on the pod. Where a value does not apply it is empty; where an empty
value could match another device's in a ``matchAttribute`` constraint it is the device's own UUID, or, for
``pcieRoot`` and ``numaNode``, left out. ``docs/attributes.md`` shows this catalogue to users.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from driver.devices import Device
from driver.inventory import Engines, Inventory, NvLink
from driver.migprofiles import Extensions, extensions
from driver.shares import SHARES, request_policies
from driver.versions import semantic_version

MAX_STRING_BYTES = 64
"""Bytes in a string or version attribute (Kubernetes API, DeviceAttribute)."""

_MIB = 1024 * 1024

Value = str | int | bool | None


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute: its qualified name, its type in the API, and how a device's value is found.

    A name without a domain is in the driver's. ``None`` as value leaves the attribute out.
    """

    name: str
    type: str
    values: str
    source: str
    since: str
    value: Callable[[Device, Inventory], Value]


@dataclass(frozen=True, slots=True)
class Capacity:
    """One capacity: its name, its unit, and how a device's quantity is found."""

    name: str
    unit: str
    values: str
    source: str
    since: str
    quantity: Callable[[Device], str]


def attributes(device: Device, inventory: Inventory) -> dict[str, dict[str, Any]]:
    """A device's attributes as the API has them: ``{"type": {"string": "gpu"}, …}``."""
    found = {}
    for attribute in ATTRIBUTES:
        value = attribute.value(device, inventory)
        if value is not None:
            found[attribute.name] = {attribute.type: _cut(value) if isinstance(value, str) else value}
    return found


def capacity(device: Device) -> dict[str, dict[str, Any]]:
    """A device's capacities as the API has them: ``{"memory": {"value": "81559Mi"}, …}``.

    Those of a shareable device have a ``requestPolicy``, too.
    """
    quantities = {capacity.name: capacity.quantity(device) for capacity in CAPACITIES}
    policies = request_policies(device.shares, quantities) if device.shares is not None else {}
    return {
        name: {"value": quantity, **({"requestPolicy": policies[name]} if name in policies else {})}
        for name, quantity in quantities.items()
    }


def _cut(text: str) -> str:
    """The text, or as much of it as fits, without half a character at the end."""
    return text.encode("utf-8", "replace")[:MAX_STRING_BYTES].decode("utf-8", "ignore")


def _engines(device: Device) -> Engines:
    if device.partition is not None:
        return device.partition.profile.engines
    return device.gpu.engines if device.mig is None else device.mig.engines


def _memory(device: Device) -> str:
    size = device.memory_bytes
    return f"{size // _MIB}Mi" if size and size % _MIB == 0 else str(size)


def _profile(device: Device) -> str:
    return device.profile or ""


def _extensions(device: Device) -> Extensions:
    mig = device.mig
    if mig is not None:
        return Extensions(mig.media_extensions, mig.all_media_extensions, mig.graphics)
    return extensions(_profile(device))


def _own_identity(device: Device) -> str:
    """What no other device has: the UUID, or the name of a partition, which has none yet.

    The parent's UUID would not do: two partitions of one GPU would match each other by it.
    """
    return device.uuid or device.name


def _nvlink(device: Device) -> NvLink:
    """NVLink as the device has it: a MIG device or a partition has none."""
    return (device.gpu.nvlink if device.is_whole_gpu else None) or NvLink(_own_identity(device))


def _fabric_clique(device: Device, inventory: Inventory) -> str:
    return (device.gpu.fabric_clique if device.is_whole_gpu else None) or _own_identity(device)


_FIRST = "0.1"

ATTRIBUTES = (
    Attribute(
        "type",
        "string",
        "`gpu`, `mig`",
        "which kind of device this is",
        _FIRST,
        lambda device, _: "gpu" if device.is_whole_gpu else "mig",
    ),
    Attribute(
        "uuid",
        "string",
        "`GPU-…` or `MIG-…`; empty on a partition, which gets one when it is made",
        "NVML GetUUID of the GPU or the MIG device",
        _FIRST,
        lambda device, _: device.uuid,
    ),
    Attribute(
        "parentUUID",
        "string",
        "`GPU-…`; a whole GPU has its own",
        "NVML GetUUID of the GPU",
        _FIRST,
        lambda device, _: device.gpu.uuid,
    ),
    Attribute(
        "productName",
        "string",
        "such as `NVIDIA H100 80GB HBM3`",
        "NVML GetName of the GPU",
        _FIRST,
        lambda device, _: device.gpu.product_name,
    ),
    Attribute(
        "brand",
        "string",
        "such as `Nvidia`, `NvidiaRTX`, `Tesla`",
        "NVML GetBrand",
        _FIRST,
        lambda device, _: device.gpu.brand,
    ),
    Attribute(
        "architecture",
        "string",
        "such as `Turing`, `Ampere`, `Ada Lovelace`, `Hopper`, `Blackwell`",
        "NVML GetArchitecture",
        _FIRST,
        lambda device, _: device.gpu.architecture,
    ),
    Attribute(
        "cudaComputeCapability",
        "version",
        "such as `9.0.0`",
        "NVML GetCudaComputeCapability",
        _FIRST,
        lambda device, _: semantic_version(device.gpu.compute_capability),
    ),
    Attribute(
        "driverVersion",
        "version",
        "such as `580.105.8`; three numbers, no leading zeros",
        "NVML SystemGetDriverVersion",
        _FIRST,
        lambda _, inventory: semantic_version(inventory.driver_version),
    ),
    Attribute(
        "cudaDriverVersion",
        "version",
        "such as `13.0.0`",
        "NVML SystemGetCudaDriverVersion",
        _FIRST,
        lambda _, inventory: semantic_version(inventory.cuda_driver_version),
    ),
    Attribute(
        "profile",
        "string",
        "such as `1g.10gb`, `1c.3g.40gb`; empty on a whole GPU",
        "NVML GetGpuInstanceProfileInfo",
        _FIRST,
        lambda device, _: _profile(device),
    ),
    Attribute(
        "addressingMode",
        "string",
        "`HMM`, `ATS`, `None`; empty if the GPU has no such mode",
        "NVML GetAddressingMode",
        _FIRST,
        lambda device, _: device.gpu.addressing_mode,
    ),
    Attribute(
        "resource.kubernetes.io/pciBusID",
        "string",
        "such as `0000:65:00.0`",
        "NVML GetPciInfo, written as in sysfs",
        _FIRST,
        lambda device, _: str(device.gpu.pci),
    ),
    Attribute(
        "resource.kubernetes.io/pcieRoot",
        "string",
        "such as `pci0000:64`; left out if unknown",
        "sysfs link of the PCI function",
        _FIRST,
        lambda device, _: device.gpu.pcie_root,
    ),
    Attribute(
        "resource.kubernetes.io/numaNode",
        "int",
        "number of the NUMA node; left out if unknown",
        "sysfs `numa_node`",
        _FIRST,
        lambda device, _: device.gpu.numa_node,
    ),
    Attribute(
        "nvlinkLinks",
        "int",
        "number of active links; 0 on a MIG device",
        "NVML GetNvLinkState",
        _FIRST,
        lambda device, _: _nvlink(device).links,
    ),
    Attribute(
        "nvlinkVersion",
        "version",
        "such as `4.0.0`; `0.0.0` without an active link",
        "NVML GetNvLinkVersion",
        _FIRST,
        lambda device, _: _nvlink(device).version,
    ),
    Attribute(
        "nvlinkDomain",
        "string",
        "the same for GPUs of a node that reach each other over NVLink; else the device's own UUID or name",
        "computed from the links",
        _FIRST,
        lambda device, _: _nvlink(device).domain,
    ),
    Attribute(
        "nvlinkPeers",
        "int",
        "number of GPUs of the node that are one link, or one switch fabric, away",
        "computed from the links",
        _FIRST,
        lambda device, _: _nvlink(device).peers,
    ),
    Attribute(
        "fabricClique",
        "string",
        "`<cluster uuid>.<clique>`, the same on all nodes of a clique; else the device's own UUID or name",
        "NVML GetGpuFabricInfo",
        _FIRST,
        _fabric_clique,
    ),
    Attribute(
        "migCapable",
        "bool",
        "whether the GPU can be partitioned; false in a vGPU guest",
        "NVML GetMigMode",
        _FIRST,
        lambda device, _: device.gpu.mig_capable,
    ),
    Attribute(
        "mediaExtensions",
        "bool",
        "whether the profile is a `+me` or `+me.all`; false on a whole GPU",
        "the profile",
        _FIRST,
        lambda device, _: _extensions(device).media,
    ),
    Attribute(
        "allMediaExtensions",
        "bool",
        "whether the profile is a `+me.all`; false on a whole GPU",
        "the profile",
        _FIRST,
        lambda device, _: _extensions(device).all_media,
    ),
    Attribute(
        "graphics",
        "bool",
        "whether the profile is a `+gfx`; false on a whole GPU",
        "the profile",
        _FIRST,
        lambda device, _: _extensions(device).graphics,
    ),
)

CAPACITIES = (
    Capacity(
        "memory",
        "bytes",
        "total as nvidia-smi shows it, in Mi if whole; 0 if NVML does not tell",
        "NVML GetMemoryInfo; MIG: GetAttributes, or the profile",
        _FIRST,
        _memory,
    ),
    Capacity(
        "multiprocessors",
        "count",
        "streaming multiprocessors",
        "NVML GetNumGpuCores; MIG: GetAttributes, or the profile",
        _FIRST,
        lambda device: str(_engines(device).multiprocessors),
    ),
    Capacity(
        "copyEngines",
        "count",
        "0 if NVML does not tell",
        "largest MIG profile; MIG: GetAttributes, or the profile",
        _FIRST,
        lambda device: str(_engines(device).copy_engines),
    ),
    Capacity(
        "decoders",
        "count",
        "0 if NVML does not tell",
        "largest MIG profile; MIG: GetAttributes, or the profile",
        _FIRST,
        lambda device: str(_engines(device).decoders),
    ),
    Capacity(
        "encoders",
        "count",
        "0 if NVML does not tell",
        "largest MIG profile; MIG: GetAttributes, or the profile",
        _FIRST,
        lambda device: str(_engines(device).encoders),
    ),
    Capacity(
        "jpegEngines",
        "count",
        "0 if NVML does not tell",
        "largest MIG profile; MIG: GetAttributes, or the profile",
        _FIRST,
        lambda device: str(_engines(device).jpeg_engines),
    ),
    Capacity(
        "ofaEngines",
        "count",
        "0 if NVML does not tell",
        "largest MIG profile; MIG: GetAttributes, or the profile",
        _FIRST,
        lambda device: str(_engines(device).ofa_engines),
    ),
    Capacity(
        SHARES,
        "count",
        "places for claims to share the device; 0 where it has no such places",
        "`shares` of the node policy",
        "0.2",
        lambda device: str(device.shares.places if device.shares is not None else 0),
    ),
)
