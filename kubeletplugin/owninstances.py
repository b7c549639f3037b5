"""Which GPU instances on the hardware are those that claims of this node hold as partitions."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from driver.devices import OwnInstances
from driver.inventory import Gpu, GpuInstance, PciAddress
from driver.migoffer import foreign_instances
from kubeletplugin.store import ClaimRecord, HeldDevice


def own_instances(records: Iterable[ClaimRecord], gpus: Iterable[Gpu], boot_id: str) -> OwnInstances:
    """The ids of the GPU instances that this driver made, by GPU.

    An instance is ours when a claim of this boot holds a partition of its profile at its placement on this
    very card, see :func:`is_held`.
    """
    by_pci = {gpu.pci: gpu for gpu in gpus}
    found = [
        {gpu.pci: frozenset({instance.id})}
        for record in records
        if may_be_of_boot(record, boot_id)
        for held in record.devices
        if not held.admin_access
        and (gpu := by_pci.get(held.footprint.gpu)) is not None
        and gpu.uuid == held.gpu_uuid
        for instance in gpu.gpu_instances or ()
        if (held.profile_id, held.footprint.placement) == (instance.profile_id, instance.placement)
        and is_held(held, instance.id, _uuids_in(gpu, instance))
    ]
    return merged(*found)


Stranger = tuple[PciAddress, GpuInstance, tuple[str, ...]]
"""An instance on a GPU, with the UUIDs of the MIG devices in it."""


def strangers(gpus: Iterable[Gpu], own: OwnInstances) -> frozenset[Stranger]:
    """The GPU instances that no claim of this node holds."""
    return frozenset(
        (gpu.pci, instance, tuple(sorted(_uuids_in(gpu, instance))))
        for gpu in gpus
        for instance in foreign_instances(gpu, own.get(gpu.pci, frozenset()))
    )


def may_be_of_boot(record: ClaimRecord, boot_id: str) -> bool:
    """Whether the claim can have been prepared since the node was booted. Instances do not outlive a boot."""
    return not record.boot_id or not boot_id or record.boot_id == boot_id


def is_held(held: HeldDevice, gpu_instance_id: int, uuids: Collection[str]) -> bool:
    """Whether a GPU instance that lies in the place of a held partition is the one that was made for it.

    Ids say little, since they follow from the placement. But the id is noted before a compute instance is
    made, so what has one although no id is noted is not ours; and a MIG device has a UUID of its own, noted
    before the claim is prepared. ``uuids`` are those of the MIG devices in the GPU instance.
    """
    if held.gpu_instance_id is None:
        return not uuids
    if held.gpu_instance_id != gpu_instance_id:
        return False
    return not held.uuid or not uuids or held.uuid in uuids


def _uuids_in(gpu: Gpu, instance: GpuInstance) -> list[str]:
    return [mig.uuid for mig in gpu.mig_devices if mig.gpu_instance_id == instance.id]


def merged(*several: OwnInstances) -> OwnInstances:
    """What is in any of them."""
    result: dict[PciAddress, frozenset[int]] = {}
    for one in several:
        for pci, ids in one.items():
            result[pci] = result.get(pci, frozenset()) | ids
    return {pci: ids for pci, ids in result.items() if ids}
