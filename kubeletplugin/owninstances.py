"""Which GPU instances on the hardware are those that claims of this node hold as partitions."""

from __future__ import annotations

from collections.abc import Iterable

from driver.devices import OwnInstances
from driver.inventory import Gpu, GpuInstance, PciAddress
from kubeletplugin.store import ClaimRecord, HeldDevice


def own_instances(records: Iterable[ClaimRecord], gpus: Iterable[Gpu], boot_id: str) -> OwnInstances:
    """The ids of the GPU instances that this driver made, by GPU.

    An instance is ours when a claim of this boot holds a partition of its profile at its placement on this
    very card, under its id if that was noted already. Instances do not outlive a boot, and their ids are used
    again.
    """
    by_pci = {gpu.pci: gpu for gpu in gpus}
    found = [
        {gpu.pci: frozenset({instance.id})}
        for record in records
        if record.boot_id == boot_id
        for held in record.devices
        if (gpu := by_pci.get(held.footprint.gpu)) is not None and gpu.uuid == held.gpu_uuid
        for instance in gpu.gpu_instances or ()
        if _is_held(instance, held)
    ]
    return merged(*found)


def _is_held(instance: GpuInstance, held: HeldDevice) -> bool:
    held_as = (held.profile_id, held.footprint.placement)
    return held_as == (instance.profile_id, instance.placement) and held.gpu_instance_id in (
        None,
        instance.id,
    )


def merged(*several: OwnInstances) -> OwnInstances:
    """What is in any of them."""
    result: dict[PciAddress, frozenset[int]] = {}
    for one in several:
        for pci, ids in one.items():
            result[pci] = result.get(pci, frozenset()) | ids
    return {pci: ids for pci, ids in result.items() if ids}
