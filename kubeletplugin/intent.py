"""The intent: the one transaction in which a plan is checked against all that is held, and written down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from driver.claim import SCHEDULE_ANEW, ClaimError
from driver.plan import Holding, PreparePlan, check_conflicts, check_intervals
from driver.resourceslices import way_of_sharing
from driver.timeslicing import Interval
from kubeletplugin.owninstances import may_be_of_boot
from kubeletplugin.sharers import hand_over, is_share, joined, shared_by_others
from kubeletplugin.store import ClaimRecord, ClaimState, HeldDevice, Store


@dataclass(frozen=True, slots=True)
class Intent:
    """What was written down. ``before`` is the claim's earlier record, ``record`` the one to go on with.

    What exists of partitions was taken over: from ``before`` if it is ``continued``, from an attempt of this
    boot, and from other claims, which hold shares of the devices in ``joined``.
    """

    before: ClaimRecord | None
    record: ClaimRecord
    continued: bool
    joined: frozenset[str]


def begin(
    store: Store,
    plan: PreparePlan,
    wanted: ClaimRecord,
    asked_at: float,
    why_not_offered: Callable[[str], str],
) -> Intent:
    """Check the plan against the store and write the intent down. Raises ClaimError."""
    reference = plan.claim.reference
    given_up = store.unprepared_at(reference.uid)
    if given_up is not None and given_up >= asked_at:
        raise ClaimError(
            "Unprepared", f"claim {reference} was unprepared while this Prepare waited; nothing was prepared"
        )
    before = store.claims().get(reference.uid)
    if before is not None:
        _check_same_hardware(before, wanted)
    had = {held.device for held in before.devices} if before is not None else set()
    for item in plan.devices:
        name = item.device.name
        if name not in had and (why := why_not_offered(name)):
            raise ClaimError(
                "NotOffered",
                f"claim {reference}: device {name} {why}",
                SCHEDULE_ANEW,
            )
    check_held(store, plan)
    check_intervals(plan, _holdings(store))
    begun = wanted if before is None else _as_given_out(before, _taken_over(before, wanted))
    shared = frozenset[str]()
    if any(is_share(held) for held in begun.devices):
        begun = joined(store.claims().values(), begun)
        shared = shared_by_others(store.claims().values(), begun)
    if before is None or before.state is not ClaimState.PREPARED or _asked(before) != _asked(wanted):
        if before is not None:
            hand_over(store, replace(before, devices=_let_go(before, wanted)))
        store.put(begun)
    continued = before is not None and may_be_of_boot(before, wanted.boot_id)
    return Intent(before, begun, continued, shared)


def forget(store: Store, record: ClaimRecord) -> None:
    """Remove a claim's record; what others share with it is theirs from now on."""
    hand_over(store, record)
    store.remove(record.claim.uid)


def _let_go(before: ClaimRecord, wanted: ClaimRecord) -> tuple[HeldDevice, ...]:
    """What the claim had before and has no more."""
    names = {held.device for held in wanted.devices}
    return tuple(held for held in before.devices if held.device not in names)


def check_held(store: Store, plan: PreparePlan) -> None:
    """Refuse the plan where a claim in the store holds what it wants. Raises ClaimError."""
    check_conflicts(plan, _holdings(store))


def _holdings(store: Store) -> Iterator[Holding]:
    return (holding for record in store.claims().values() for holding in record.holdings())


def _asked(record: ClaimRecord) -> set[tuple[str, str | None, Interval | None]]:
    return {(held.device, held.share_id, held.interval) for held in record.devices}


def _taken_over(before: ClaimRecord, wanted: ClaimRecord) -> ClaimRecord:
    """What is wanted, with the instances that an earlier attempt of this boot has made."""
    if not may_be_of_boot(before, wanted.boot_id):
        return wanted
    earlier = {held.device: held for held in before.devices if not held.admin_access}
    devices = []
    for held in wanted.devices:
        known = None if held.admin_access else earlier.get(held.device)
        if known is not None and held.profile_id is not None and known.profile_id == held.profile_id:
            held = replace(
                held,
                uuid=known.uuid,
                gpu_instance_id=known.gpu_instance_id,
                compute_instance_id=known.compute_instance_id,
            )
        elif known is not None:
            # Until the hardware is read anew, what a rebuilt record says is ours looks like anybody's.
            made = known.profile_id is not None and known.uuid == held.uuid
            held = replace(
                held, restore_mig=known.restore_mig, profile_id=known.profile_id if made else held.profile_id
            )
        devices.append(held)
    return replace(wanted, devices=tuple(devices))


def _as_given_out(before: ClaimRecord, wanted: ClaimRecord) -> ClaimRecord:
    """What is wanted, each device shared in the way in which it was given to the claim.

    The policy may want another one by now, which waits until nobody holds the device.
    """
    earlier = {(held.device, held.share_id, held.gpu_uuid): held for held in before.devices}
    devices = []
    for held in wanted.devices:
        known = earlier.get((held.device, held.share_id, held.gpu_uuid))
        if known is not None and way_of_sharing(known.published) != way_of_sharing(held.published):
            held = replace(held, published=known.published)
        devices.append(held)
    return replace(wanted, devices=tuple(devices))


def _check_same_hardware(before: ClaimRecord, wanted: ClaimRecord) -> None:
    earlier = {held.device: held for held in before.devices}
    for held in wanted.devices:
        known = earlier.get(held.device)
        # Nothing is known of a GPU that was away when the store was rebuilt.
        if known is not None and known.gpu_uuid not in ("", held.gpu_uuid):
            raise ClaimError(
                "CardSwapped",
                f"claim {wanted.claim}: device {held.device} was GPU {known.gpu_uuid} when the claim was "
                f"prepared and is GPU {held.gpu_uuid} now",
                "delete the pods that use the claim",
            )
