"""The Container Device Interface spec as values, and its JSON form.

Field names, version rules and name rules are those of the CDI specification
(cncf-tags/container-device-interface, SPEC.md and ``specs-go``). A runtime drops a whole file for one
bad field, so a :class:`Spec` that would be dropped cannot be constructed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

_VENDOR_OR_CLASS = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_ENVIRONMENT_ENTRY = re.compile(r"[^=]+=", re.DOTALL)
_DEVICE_TYPES = ("", "b", "c", "u", "p")
_Entry = TypeVar("_Entry")
_HOOK_NAMES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")


class SpecError(ValueError):
    """A CDI spec breaks a rule of the CDI specification; the message names the object and the rule."""


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """One device node in the container.

    ``host_path`` is None when it equals ``path``. ``file_mode`` holds the permission bits (0o666), not
    the file type. ``permissions`` is the device cgroup's, a subset of ``rwm``; empty means ``rwm``.
    With ``type`` and a non-zero ``major`` the runtime makes the node without looking at the host's.
    """

    path: str
    host_path: str | None = None
    type: str = ""
    major: int | None = None
    minor: int | None = None
    file_mode: int | None = None
    permissions: str = ""


@dataclass(frozen=True, slots=True)
class Mount:
    """One bind mount. ``type`` is normally empty: a value raises the needed spec version to 0.4.0."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""


@dataclass(frozen=True, slots=True)
class Hook:
    """One OCI hook. ``path`` is a path of the host; ``args[0]`` is the program's name, as in ``execv``."""

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ContainerEdits:
    """What is done to a container's OCI configuration. Order is kept: later entries win in a runtime."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()

    def __add__(self, other: ContainerEdits) -> ContainerEdits:
        """Both edits as a new value, entries of ``self`` first, an equal entry kept once."""
        return ContainerEdits(
            env=_union(self.env, other.env),
            device_nodes=_union(self.device_nodes, other.device_nodes),
            mounts=_union(self.mounts, other.mounts),
            hooks=_union(self.hooks, other.hooks),
        )

    def __bool__(self) -> bool:
        return bool(self.env or self.device_nodes or self.mounts or self.hooks)

    @staticmethod
    def merge(edits: Iterable[ContainerEdits]) -> ContainerEdits:
        """The sum of all edits, in order."""
        return sum(edits, start=ContainerEdits())


@dataclass(frozen=True, slots=True)
class CdiDevice:
    """One named device and what a container that asks for it gets."""

    name: str
    edits: ContainerEdits


@dataclass(frozen=True, slots=True)
class Spec:
    """One CDI spec file: devices of one kind, and edits applied once for any of them.

    Raises:
        SpecError: when a runtime would refuse the file.
    """

    kind: str
    devices: tuple[CdiDevice, ...]
    edits: ContainerEdits = field(default_factory=ContainerEdits)

    def __post_init__(self) -> None:
        vendor, separator, device_class = self.kind.partition("/")
        if not (
            separator and _VENDOR_OR_CLASS.fullmatch(vendor) and _VENDOR_OR_CLASS.fullmatch(device_class)
        ):
            raise SpecError(
                f'CDI kind "{self.kind}" must be vendor/class; each part begins with a letter, ends with a '
                "letter or digit, and has only letters, digits, '_', '-' and '.' between"
            )
        if not self.devices:
            raise SpecError(f'CDI spec of kind "{self.kind}" has no device; at least one is needed')
        seen: set[str] = set()
        for device in self.devices:
            _check_device_name(device.name)
            if device.name in seen:
                raise SpecError(f'CDI device "{device.name}" occurs twice in the spec of kind "{self.kind}"')
            seen.add(device.name)
            if not device.edits:
                raise SpecError(
                    f'CDI device "{device.name}" changes nothing; a device needs at least one edit'
                )
            _check_edits(f'CDI device "{device.name}"', device.edits)
        _check_edits(f'CDI spec of kind "{self.kind}"', self.edits)


def minimum_version(spec: Spec) -> str:
    """The lowest ``cdiVersion`` that has every feature the spec uses, so that old runtimes accept it."""
    if "." in spec.kind.partition("/")[2]:
        return "0.6.0"
    all_edits = [spec.edits, *(device.edits for device in spec.devices)]
    if any(device.name[0].isdigit() for device in spec.devices) or any(
        node.host_path is not None for edits in all_edits for node in edits.device_nodes
    ):
        return "0.5.0"
    if any(mount.type for edits in all_edits for mount in edits.mounts):
        return "0.4.0"
    return "0.3.0"


def to_json(spec: Spec) -> bytes:
    """The file's content: UTF-8 JSON of one line, the same bytes for equal specs, empty fields left out."""
    own = _json(
        {
            "cdiVersion": minimum_version(spec),
            "kind": spec.kind,
            "devices": [
                {"name": device.name, "containerEdits": _edits_to_dict(device.edits)}
                for device in spec.devices
            ],
        }
    )
    if spec.edits:
        own = f'{own.removesuffix("}")},"containerEdits":{_spec_edits_json(spec.edits)}}}'
    return own.encode() + b"\n"


def from_json(content: bytes) -> Spec:
    """The spec in a file's content; fields that :func:`to_json` never writes are errors, as in a runtime.

    Raises:
        SpecError: not JSON, an unknown field, a wrong type, or a broken rule of the CDI specification.
    """
    try:
        document: Any = json.loads(content)
    except ValueError as error:
        raise SpecError(f"CDI spec is not JSON: {error}") from error
    fields = _Fields("CDI spec", document)
    version = fields.text("cdiVersion", required=True)
    spec = Spec(
        kind=fields.text("kind", required=True),
        devices=tuple(
            _device_from(_Fields(f"devices[{i}]", value)) for i, value in enumerate(fields.items("devices"))
        ),
        edits=_edits_from(fields.child("containerEdits")),
    )
    fields.finish()
    if _version_key(version) < _version_key(minimum_version(spec)):
        raise SpecError(
            f'cdiVersion "{version}" is too old for the content, which needs {minimum_version(spec)}'
        )
    return spec


# A spec's own edits are the same large value in each claim of a node: a hundred mounts and more.
@lru_cache(maxsize=4)
def _spec_edits_json(edits: ContainerEdits) -> str:
    return _json(_edits_to_dict(edits))


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def _union(left: tuple[_Entry, ...], right: tuple[_Entry, ...]) -> tuple[_Entry, ...]:
    return tuple(dict.fromkeys(left + right))


def _check_device_name(name: str) -> None:
    if not _DEVICE_NAME.fullmatch(name):
        raise SpecError(
            f'CDI device name "{name}" must begin and end with a letter or digit and have only letters, '
            "digits, '_', '-', '.' and ':' between"
        )


def _check_edits(owner: str, edits: ContainerEdits) -> None:
    for entry in edits.env:
        if not _ENVIRONMENT_ENTRY.match(entry):
            raise SpecError(f'{owner}: environment entry "{entry}" must be NAME=value')
    for node in edits.device_nodes:
        if not node.path:
            raise SpecError(f"{owner}: a device node has no path")
        if node.type not in _DEVICE_TYPES:
            raise SpecError(f'{owner}: device node {node.path} has type "{node.type}"; allowed: b, c, u, p')
        if node.permissions != "none" and not set(node.permissions) <= set("rwm"):
            raise SpecError(
                f'{owner}: device node {node.path} has permissions "{node.permissions}"; allowed: of r, w, m'
            )
    for mount in edits.mounts:
        if not (mount.host_path and mount.container_path):
            raise SpecError(
                f"{owner}: mount {mount.host_path!r} -> {mount.container_path!r} needs both paths"
            )
    for hook in edits.hooks:
        if hook.hook_name not in _HOOK_NAMES:
            raise SpecError(f'{owner}: hook "{hook.hook_name}" is unknown; allowed: {", ".join(_HOOK_NAMES)}')
        if not hook.path:
            raise SpecError(f"{owner}: a {hook.hook_name} hook has no path")
        for entry in hook.env:
            if not _ENVIRONMENT_ENTRY.match(entry):
                raise SpecError(
                    f'{owner}: environment entry "{entry}" of hook {hook.path} must be NAME=value'
                )


def _edits_to_dict(edits: ContainerEdits) -> dict[str, Any]:
    return _without_empty(
        {
            "env": list(edits.env),
            "deviceNodes": [
                _without_empty(
                    {
                        "path": node.path,
                        "hostPath": node.host_path,
                        "type": node.type,
                        "major": node.major,
                        "minor": node.minor,
                        "fileMode": node.file_mode,
                        "permissions": node.permissions,
                    }
                )
                for node in edits.device_nodes
            ],
            "mounts": [
                _without_empty(
                    {
                        "hostPath": mount.host_path,
                        "containerPath": mount.container_path,
                        "options": list(mount.options),
                        "type": mount.type,
                    }
                )
                for mount in edits.mounts
            ],
            "hooks": [
                _without_empty(
                    {
                        "hookName": hook.hook_name,
                        "path": hook.path,
                        "args": list(hook.args),
                        "env": list(hook.env),
                    }
                )
                for hook in edits.hooks
            ],
        }
    )


def _without_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    # A number 0 is kept: minor 0 is a real device.
    return {key: value for key, value in values.items() if value not in (None, "", [])}


def _version_key(version: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in version.split("."))
    except ValueError:
        raise SpecError(f'cdiVersion "{version}" must be three numbers with dots') from None


class _Fields:
    """Takes the fields of one JSON object, with type checks; what is left at the end is unknown."""

    def __init__(self, where: str, value: Any) -> None:
        if not isinstance(value, dict):
            raise SpecError(f"{where} must be an object, not {type(value).__name__}")
        self._where = where
        self._left: dict[str, Any] = dict(value)

    def text(self, key: str, *, required: bool = False) -> str:
        value = self._left.pop(key, "")
        if not isinstance(value, str):
            raise SpecError(f"{self._where}.{key} must be a string, not {type(value).__name__}")
        if required and not value:
            raise SpecError(f"{self._where}.{key} is missing")
        return value

    def number(self, key: str) -> int | None:
        value = self._left.pop(key, None)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise SpecError(f"{self._where}.{key} must be a whole number, not {value!r}")
        return value

    def items(self, key: str) -> list[Any]:
        value = self._left.pop(key, [])
        if not isinstance(value, list):
            raise SpecError(f"{self._where}.{key} must be a list, not {type(value).__name__}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        values = self.items(key)
        if not all(isinstance(value, str) for value in values):
            raise SpecError(f"{self._where}.{key} must be a list of strings")
        return tuple(values)

    def child(self, key: str) -> _Fields:
        return _Fields(f"{self._where}.{key}", self._left.pop(key, {}))

    def children(self, key: str) -> list[_Fields]:
        return [_Fields(f"{self._where}.{key}[{i}]", value) for i, value in enumerate(self.items(key))]

    def finish(self) -> None:
        if self._left:
            raise SpecError(f"{self._where} has unknown fields: {', '.join(sorted(self._left))}")


def _device_from(fields: _Fields) -> CdiDevice:
    device = CdiDevice(fields.text("name", required=True), _edits_from(fields.child("containerEdits")))
    fields.finish()
    return device


def _edits_from(fields: _Fields) -> ContainerEdits:
    edits = ContainerEdits(
        env=fields.texts("env"),
        device_nodes=tuple(_device_node_from(child) for child in fields.children("deviceNodes")),
        mounts=tuple(_mount_from(child) for child in fields.children("mounts")),
        hooks=tuple(_hook_from(child) for child in fields.children("hooks")),
    )
    fields.finish()
    return edits


def _device_node_from(fields: _Fields) -> DeviceNode:
    node = DeviceNode(
        path=fields.text("path", required=True),
        host_path=fields.text("hostPath") or None,
        type=fields.text("type"),
        major=fields.number("major"),
        minor=fields.number("minor"),
        file_mode=fields.number("fileMode"),
        permissions=fields.text("permissions"),
    )
    fields.finish()
    return node


def _mount_from(fields: _Fields) -> Mount:
    mount = Mount(
        host_path=fields.text("hostPath", required=True),
        container_path=fields.text("containerPath", required=True),
        options=fields.texts("options"),
        type=fields.text("type"),
    )
    fields.finish()
    return mount


def _hook_from(fields: _Fields) -> Hook:
    hook = Hook(
        hook_name=fields.text("hookName", required=True),
        path=fields.text("path", required=True),
        args=fields.texts("args"),
        env=fields.texts("env"),
    )
    fields.finish()
    return hook
