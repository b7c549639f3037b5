"""Which DeviceClasses there should be: a pure function of the MIG profiles on offer and of the settings."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from driver.claim import DRIVER_NAME
from kube.names import is_subdomain
from kube.resources import Object

_OURS = f'device.driver == "{DRIVER_NAME}"'
_ATTRIBUTES = f'device.attributes["{DRIVER_NAME}"]'
_LONGEST_RESOURCE_NAME = 63
"""Characters after the ``/`` of an extended resource's name (Kubernetes API, qualified names)."""

_RESOURCE_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_PROFILE_CLASS = re.compile(rf"mig-.+\.{re.escape(DRIVER_NAME)}")


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """What is to stand in a DeviceClass; ``extended_resource`` is empty for none."""

    name: str
    selectors: tuple[Object, ...]
    config: tuple[Object, ...] = ()
    extended_resource: str = ""

    def spec(self, *, with_extended_resource: bool) -> Object:
        """The spec as the API has it; fields that say nothing are left out."""
        spec: Object = {}
        if self.selectors:
            spec["selectors"] = list(self.selectors)
        if self.config:
            spec["config"] = list(self.config)
        if self.extended_resource and with_extended_resource:
            spec["extendedResourceName"] = self.extended_resource
        return spec


@dataclass(frozen=True, slots=True)
class ClassSetting:
    """What an administrator wants of one class; ``None`` leaves a field as it would be."""

    name: str
    enabled: bool = True
    selectors: tuple[Object, ...] | None = None
    config: tuple[Object, ...] | None = None
    extended_resource: str | None = None


@dataclass(frozen=True, slots=True)
class Desired:
    """The classes by name, and in words what was left out of them and why."""

    classes: Mapping[str, DeviceClass]
    remarks: tuple[str, ...]


def selector(*conditions: str) -> Object:
    """A CEL selector for devices of this driver for which all conditions hold.

    The driver comes first, so that no attribute is read that a device of another driver lacks.
    """
    return {"cel": {"expression": " && ".join((_OURS, *conditions))}}


STANDARD = (
    DeviceClass(DRIVER_NAME, (selector(f'{_ATTRIBUTES}.type == "gpu"'),), (), "nvidia.com/gpu"),
    DeviceClass("mig.nvidia.com", (selector(f'{_ATTRIBUTES}.type == "mig"'),)),
    DeviceClass(
        f"shared.{DRIVER_NAME}",
        (selector("device.allowMultipleAllocations"),),
        (),
        "nvidia.com/gpu.shared",
    ),
)


def may_be_made(name: str) -> bool:
    """Whether the controller makes a class of this name by itself, always or for a MIG profile."""
    return any(name == standard.name for standard in STANDARD) or bool(_PROFILE_CLASS.fullmatch(name))


def profile_label(profile: str) -> str:
    """A MIG profile as the device plugin's resources name it: ``1g.10gb+me`` → ``1g.10gb.me``."""
    return re.sub(r"[^a-z0-9.-]+", ".", profile.lower()).strip(".-")


def desired(profiles: Collection[str], settings: Iterable[ClassSetting]) -> Desired:
    """The classes there should be.

    ``profiles`` are the MIG profiles that any node offers, as their devices name them. An extended resource
    belongs to one class: one that the settings give to a class is taken from the class that would have it.
    """
    made, remarks = _profile_classes(profiles)
    classes = {each.name: each for each in (*STANDARD, *made)}
    chosen = list(settings)
    taken = {setting.extended_resource: setting.name for setting in chosen if setting.extended_resource}
    for name, each in classes.items():
        owner = taken.get(each.extended_resource, name)
        if owner != name:
            remarks.append(
                f"DeviceClass {name} goes without extended resource {each.extended_resource}: the settings "
                f"give it to DeviceClass {owner}"
            )
            classes[name] = replace(each, extended_resource="")
    for setting in chosen:
        _change(classes, setting)
    return Desired(classes, tuple(remarks))


def _change(classes: dict[str, DeviceClass], setting: ClassSetting) -> None:
    if not setting.enabled:
        classes.pop(setting.name, None)
        return
    known = classes.get(setting.name)
    if known is None:
        if setting.selectors is None:
            # A change to the class of a profile that no node offers now.
            return
        known = DeviceClass(setting.name, ())
    if setting.selectors is not None:
        known = replace(known, selectors=setting.selectors)
    if setting.config is not None:
        known = replace(known, config=setting.config)
    if setting.extended_resource is not None:
        known = replace(known, extended_resource=setting.extended_resource)
    classes[setting.name] = known


def _profile_classes(profiles: Collection[str]) -> tuple[list[DeviceClass], list[str]]:
    by_label: dict[str, list[str]] = {}
    for profile in sorted(profiles):
        by_label.setdefault(profile_label(profile), []).append(profile)
    made, remarks = [], []
    for label, named in by_label.items():
        name, resource = f"mig-{label}.{DRIVER_NAME}", f"mig-{label}"
        fits = len(resource) <= _LONGEST_RESOURCE_NAME and _RESOURCE_NAME.fullmatch(resource)
        if not (label and is_subdomain(name) and fits):
            remarks.append(
                f"MIG profile {', '.join(map(repr, named))} gets no DeviceClass: {name!r} cannot be its name"
            )
            continue
        made.append(DeviceClass(name, (_profile_selector(named),), (), f"nvidia.com/{resource}"))
    return made, remarks


def _profile_selector(profiles: Sequence[str]) -> Object:
    attribute = f"{_ATTRIBUTES}.profile"
    quoted = [f'"{_escaped(profile)}"' for profile in profiles]
    is_one = f"{attribute} == {quoted[0]}" if len(quoted) == 1 else f"{attribute} in [{', '.join(quoted)}]"
    return selector(f'{_ATTRIBUTES}.type == "mig"', is_one)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
