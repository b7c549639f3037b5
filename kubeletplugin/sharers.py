"""Sharers: the other claims that hold shares of a claim's devices.

A shared partition is made with its first share and destroyed with its last. So whoever comes later takes over
what is known of the instance, and whoever goes earlier leaves it to the others. All of this happens under the
lock of the GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from driver.resourceslices import way_of_sharing
from kubeletplugin.migoperations import Instance
from kubeletplugin.owninstances import is_held, may_be_of_boot
from kubeletplugin.store import ClaimRecord, HeldDevice, Store


def is_share(held: HeldDevice) -> bool:
    """Whether other claims may hold the device too."""
    return held.share_id is not None and not held.admin_access


def shared_by_others(records: Iterable[ClaimRecord], record: ClaimRecord) -> frozenset[str]:
    """The names of the record's devices of which another claim of the same boot holds a share, too."""
    every = list(records)
    return frozenset(
        held.device for held in record.devices if is_share(held) and any(_others(every, record, held))
    )


def held_alone(claims: Mapping[str, ClaimRecord], record: ClaimRecord) -> ClaimRecord:
    """Of the record's devices those that no other claim shares, as they stand in the store.

    Who asks has the GPUs' locks only now: what stood in the record before may have been handed over since.
    """
    stored = claims.get(record.claim.uid)
    if stored is None:
        return replace(record, devices=())
    names = {held.device for held in record.devices}
    mine = replace(stored, devices=tuple(held for held in stored.devices if held.device in names))
    shared = shared_by_others(claims.values(), mine)
    return replace(mine, devices=tuple(held for held in mine.devices if held.device not in shared))


def is_made_for_others(
    records: Iterable[ClaimRecord], record: ClaimRecord, held: HeldDevice, found: Instance
) -> bool:
    """Whether an instance in the place of a shared partition was made for another claim that has a share."""
    return any(
        is_share(one)
        and (one.device, one.gpu_uuid) == (held.device, held.gpu_uuid)
        and one.gpu_instance_id is not None
        and is_held(one, found.gpu_instance_id, found.uuids)
        for other in records
        if other.claim.uid != record.claim.uid and may_be_of_boot(other, record.boot_id)
        for one in other.devices
    )


def joined(records: Iterable[ClaimRecord], record: ClaimRecord) -> ClaimRecord:
    """The record, with the instances of shared partitions that other claims have already."""
    every = list(records)
    return replace(record, devices=tuple(_joined(every, record, held) for held in record.devices))


def hand_over(store: Store, record: ClaimRecord) -> None:
    """Before a record is forgotten: the others learn what only this one knows of what they share."""
    for held in filter(is_share, record.devices):
        for other in list(_others(store.claims().values(), record, held)):
            devices = tuple(_heir(one, held) if _is_same(one, held) else one for one in other.devices)
            if devices != other.devices:
                store.put(replace(other, devices=devices))


def _joined(records: Iterable[ClaimRecord], record: ClaimRecord, held: HeldDevice) -> HeldDevice:
    if not is_share(held):
        return held
    others = [one for other in _others(records, record, held) for one in other.devices if _is_same(one, held)]
    if others:
        # It is shared in the way in which the others were given it, whatever the policy wants by now. And one
        # value for all: what is published of a device is the larger part of a record.
        of_others = [one.published for one in others]
        way = way_of_sharing(held.published)
        other_ways = (published for published in of_others if way_of_sharing(published) != way)
        alike = next((published for published in of_others if published == held.published), held.published)
        held = replace(held, published=next(other_ways, alike))
    if held.gpu_instance_id is None and held.profile_id is not None:
        known = max(others, key=lambda one: (one.gpu_instance_id is not None, one.uuid), default=held)
        return _with_instance_of(held, known)
    return held


def _heir(other: HeldDevice, held: HeldDevice) -> HeldDevice:
    if other.gpu_instance_id is None and other.profile_id is not None:
        other = _with_instance_of(other, held)
    elif other.profile_id is None and other.uuid == held.uuid:
        # A rebuilt record may not tell that the MIG device was made for claims.
        other = replace(other, profile_id=held.profile_id)
    return replace(other, restore_mig=other.restore_mig or held.restore_mig)


def _with_instance_of(held: HeldDevice, known: HeldDevice) -> HeldDevice:
    return replace(
        held,
        uuid=known.uuid,
        gpu_instance_id=known.gpu_instance_id,
        compute_instance_id=known.compute_instance_id,
    )


def _others(records: Iterable[ClaimRecord], record: ClaimRecord, held: HeldDevice) -> Iterator[ClaimRecord]:
    for other in records:
        is_other = other.claim.uid != record.claim.uid and may_be_of_boot(other, record.boot_id)
        if is_other and any(_is_same(one, held) for one in other.devices):
            yield other


def _is_same(one: HeldDevice, held: HeldDevice) -> bool:
    """Whether both are shares of one device, and not of two instances that lay in one place in turn."""
    if not is_share(one) or (one.device, one.gpu_uuid) != (held.device, held.gpu_uuid):
        return False
    return one.uuid == held.uuid or not one.uuid or not held.uuid
