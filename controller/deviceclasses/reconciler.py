"""Keeps the DeviceClasses as they should be, while this replica leads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from controller.deviceclasses import offer
from controller.deviceclasses.desired import ClassSetting, DeviceClass, desired
from controller.deviceclasses.extendedresources import ExtendedResources
from controller.deviceclasses.ownership import (
    MADE_BY,
    MANAGER,
    Verdict,
    classes_named,
    is_ours,
    judge,
    owned,
)
from controller.parts import Surroundings
from driver.claim import DRIVER_NAME
from kube.conditions import Announce, Condition, Conditions, nobody
from kube.errors import ApiError, ApiUnavailable
from kube.events import ObjectReference
from kube.reflector import Change, Reflector
from kube.resources import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES, Object
from kube.workqueue import WorkQueue

_INVENTORY = ""
"""The key of the queue, no class's name, for what the nodes offer."""

_SETTLE_SECONDS = 0.2
"""Slices come in bursts."""

_RESYNC_SECONDS = 300.0
_USE_SECONDS = 60.0
"""How often a class that nothing backs and a claim names is looked at again."""

_SLICES_IN_A_PAGE = 20
"""One slice may have 100 KiB, and takes some times as much while it is read."""

_WITHHELD = Condition(
    "ExtendedResourcesWithheld",
    "the API server does not store extended resources of DeviceClasses (feature gate DRAExtendedResource), "
    "so pods that ask for nvidia.com/gpu or nvidia.com/mig-… in their limits are not served by this driver",
)

log = logging.getLogger(__name__)


class DeviceClasses:
    """Works on one class after another; what fails for one holds up no other."""

    def __init__(self, surroundings: Surroundings, settings: tuple[ClassSetting, ...]) -> None:
        self._client = surroundings.client
        self._events = surroundings.events
        self._metrics = surroundings.metrics
        self._grace_seconds = surroundings.settings.class_grace_seconds
        self._settings = settings
        self._extended = ExtendedResources(self._client, self._metrics.extended_resources_supported)
        self._queue: WorkQueue[str] = WorkQueue()
        self._slices = Reflector(
            self._client,
            RESOURCE_SLICES,
            on_change=lambda change, item: self._queue.add(_INVENTORY, _SETTLE_SECONDS),
            on_error=surroundings.watch_trouble(RESOURCE_SLICES),
            on_listed=lambda: self._queue.add(_INVENTORY),
            field_selector=f"spec.driver={DRIVER_NAME}",
            transform=offer.digest,
            page_size=_SLICES_IN_A_PAGE,
        )
        self._classes = Reflector(
            self._client,
            DEVICE_CLASSES,
            on_change=self._class_changed,
            on_error=surroundings.watch_trouble(DEVICE_CLASSES),
            # Whose a field is stands in what is usually left out.
            transform=lambda item: item,
        )
        self._wanted: Mapping[str, DeviceClass] = {}
        self._unbacked: dict[str, float] = {}
        self._conditions: dict[str, Conditions] = {}
        self._remarks = Conditions(nobody)
        self._withheld = Conditions(self._announcer(DRIVER_NAME))

    async def run(self) -> None:
        """Never returns; ends by cancellation."""
        try:
            await self._run()
        finally:
            # Another replica counts them now.
            self._metrics.classes.set(0)
            self._metrics.unbacked_classes.set(0)

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._slices.run())
            group.create_task(self._classes.run())
            group.create_task(self._extended.run())
            await self._slices.synced.wait()
            await self._classes.synced.wait()
            await self._extended.answer()
            # Before any class is worked on: without it, none would seem to be wanted.
            self._look_at_offer()
            group.create_task(self._follow_answer())
            group.create_task(self._resync())
            while True:
                await self._work(await self._queue.get())

    def _class_changed(self, change: Change, item: Object) -> None:
        self._queue.add(item["metadata"]["name"])

    async def _follow_answer(self) -> None:
        while True:
            await self._extended.changed.wait()
            self._extended.changed.clear()
            self._withheld.stand([] if self._extended.supported else [_WITHHELD])
            self._add_all()

    async def _resync(self) -> None:
        while True:
            self._queue.add(_INVENTORY)
            self._add_all()
            await asyncio.sleep(_RESYNC_SECONDS)

    def _add_all(self) -> None:
        for name in {*self._wanted, *(name for _, name in self._classes.items)}:
            self._queue.add(name)

    async def _work(self, name: str) -> None:
        """Bring one class to what it should be, or look at what the nodes offer now."""
        if name == _INVENTORY:
            self._look_at_offer()
            return
        trouble: list[Condition] = []
        try:
            trouble = await self._reconcile(name)
        except ApiUnavailable as error:
            self._failed(name, error)
            return
        except ApiError as error:
            self._failed(name, error, error.retry_after)
            if error.conflict or error.not_found:
                return
            trouble = [Condition("ClassRefused", f"the API server refuses DeviceClass {name}: {error}")]
        else:
            self._queue.succeeded(name)
        self._tell(name, trouble)

    def _failed(self, name: str, error: Exception, at_least: float | None = None) -> None:
        self._metrics.class_errors.inc()
        log.debug("DeviceClass %s: %s", name, error)
        self._queue.failed(name, at_least)

    def _tell(self, name: str, conditions: list[Condition]) -> None:
        if conditions or name in self._conditions:
            self._conditions.setdefault(name, Conditions(self._announcer(name))).stand(conditions)
        if not conditions:
            self._conditions.pop(name, None)

    def _announcer(self, name: str) -> Announce:
        about = ObjectReference(DEVICE_CLASSES.group_version, "DeviceClass", name)
        return lambda reason, message: self._events.warning(about, reason, message)

    def _look_at_offer(self) -> None:
        found = desired(offer.profiles_on_offer(self._slices.items.values()), self._settings)
        self._remarks.stand(Condition("ClassLeftOut", remark) for remark in found.remarks)
        before, self._wanted = self._wanted, found.classes
        self._metrics.classes.set(len(self._wanted))
        for name in {*before, *self._wanted}:
            if before.get(name) != self._wanted.get(name):
                self._queue.add(name)

    async def _reconcile(self, name: str) -> list[Condition]:
        """Do what is to be done with one class; returns what a person should know of it.

        Raises:
            ApiError, ApiUnavailable: it could not be done.
        """
        live = self._classes.items.get(("", name))
        if live is not None and live["metadata"].get("deletionTimestamp"):
            return []
        wanted = self._wanted.get(name)
        if wanted is None and live is not None:
            return await self._retire(name, live)
        self._backed(name)
        if wanted is None:
            return []
        verdict = judge(live, wanted, with_extended_resource=self._extended.supported)
        if verdict.body is not None:
            await self._apply(name, verdict.body)
        return _conditions(name, verdict)

    async def _apply(self, name: str, body: Object) -> None:
        stored = await self._client.apply(DEVICE_CLASSES, name, body, field_manager=MANAGER, force=False)
        self._metrics.class_writes.labels("apply").inc()
        log.info("DeviceClass %s is applied", name)
        self._extended.stored(body, stored)

    async def _retire(self, name: str, live: Object) -> list[Condition]:
        """Delete a class that nothing backs, if it is ours, its time is over and no claim names it."""
        if not is_ours(live):
            self._backed(name)
            return _taken_over(name, live)
        now = asyncio.get_running_loop().time()
        left = self._unbacked.setdefault(name, now) + self._grace_seconds - now
        self._metrics.unbacked_classes.set(len(self._unbacked))
        if left > 0:
            self._queue.add(name, left)
            return []
        claims, _ = await self._client.list(RESOURCE_CLAIMS, transform=_naming)
        if any(name in claim[_CLASSES] for claim in claims):
            self._queue.add(name, min(self._grace_seconds, _USE_SECONDS))
            return []
        metadata = live["metadata"]
        await self._client.delete(
            DEVICE_CLASSES, name, uid=metadata["uid"], resource_version=metadata["resourceVersion"]
        )
        self._metrics.class_writes.labels("delete").inc()
        log.info("DeviceClass %s is deleted: no node offers its devices, and no claim names it", name)
        self._backed(name)
        return []

    def _backed(self, name: str) -> None:
        """The class is there because it should be, or it is gone: no time runs for it."""
        self._unbacked.pop(name, None)
        self._metrics.unbacked_classes.set(len(self._unbacked))


def _conditions(name: str, verdict: Verdict) -> list[Condition]:
    if verdict.foreign:
        return [
            Condition(
                "ClassOfOthers",
                f"DeviceClass {name} was made by {verdict.kept['selectors']} with other selectors, and is "
                "left alone: delete it, and it is made as it should be",
            )
        ]
    return [
        Condition(
            "FieldKept",
            f"DeviceClass {name}: field spec.{field} was set by {manager} to another value, and stays: "
            "remove the field, and it is set as it should be",
        )
        for field, manager in sorted(verdict.kept.items())
    ]


def _taken_over(name: str, live: Object) -> list[Condition]:
    """A class that we made and that others changed stays; one that others made is no concern of ours."""
    if (live["metadata"].get("annotations") or {}).get(MADE_BY) != MANAGER:
        return []
    managers = ", ".join(sorted(set(owned(live).others.values())))
    return [
        Condition(
            "ClassKept",
            f"DeviceClass {name} is not needed any more, and stays, because {managers} has changed it: "
            "delete it when nobody uses it",
        )
    ]


_CLASSES = "classes"


def _naming(claim: Object) -> Object:
    return {_CLASSES: classes_named(claim)}
