"""Checks a CDI spec file as a runtime does, written from the CDI specification alone.

It shares no code with the package ``cdi``, so that a misreading there is found here. Rules: SPEC.md of
cncf-tags/container-device-interface, its JSON schema, and the validation its Go library applies.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

KNOWN_VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
HOOK_STAGES = {"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"}

_SPEC_FIELDS = {"cdiVersion": str, "kind": str, "annotations": dict, "devices": list, "containerEdits": dict}
_DEVICE_FIELDS = {"name": str, "annotations": dict, "containerEdits": dict}
_EDIT_FIELDS = {
    "env": list,
    "deviceNodes": list,
    "netDevices": list,
    "hooks": list,
    "mounts": list,
    "intelRdt": dict,
    "additionalGids": list,
}
_NODE_FIELDS = {
    "path": str,
    "hostPath": str,
    "type": str,
    "major": int,
    "minor": int,
    "fileMode": int,
    "permissions": str,
    "uid": int,
    "gid": int,
}
_MOUNT_FIELDS = {"hostPath": str, "containerPath": str, "options": list, "type": str}
_HOOK_FIELDS = {"hookName": str, "path": str, "args": list, "env": list, "timeout": int}


class InvalidSpecError(Exception):
    """A runtime would drop the file or fail the container."""


def validate(content: bytes) -> dict[str, Any]:
    """The parsed document of a valid spec file.

    Raises:
        InvalidSpecError: the first broken rule.
    """
    try:
        document = json.loads(content)
    except ValueError as error:
        raise InvalidSpecError(f"not JSON: {error}") from error
    _object("spec", document, _SPEC_FIELDS, required=("cdiVersion", "kind", "devices"))
    version = document["cdiVersion"]
    _require(version in KNOWN_VERSIONS, f"unknown cdiVersion {version}")
    _check_kind(document["kind"])
    _require(bool(document["devices"]), "no devices")
    names = []
    for device in document["devices"]:
        _object("device", device, _DEVICE_FIELDS, required=("name", "containerEdits"))
        _require(
            re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?", device["name"]) is not None,
            f"bad device name {device['name']}",
        )
        names.append(device["name"])
        _check_edits(device["name"], device["containerEdits"])
        _require(any(device["containerEdits"].values()), f"device {device['name']} has empty edits")
    _require(len(set(names)) == len(names), f"device names are not unique: {names}")
    _check_edits("spec", document.get("containerEdits", {}))
    needed = required_version(document)
    _require(
        KNOWN_VERSIONS.index(version) >= KNOWN_VERSIONS.index(needed),
        f"cdiVersion {version} is lower than {needed}, which the content needs",
    )
    return document  # type: ignore[no-any-return]


def required_version(document: dict[str, Any]) -> str:
    """The lowest spec version that has all that the document uses."""
    edits = [
        document.get("containerEdits", {}),
        *(device["containerEdits"] for device in document["devices"]),
    ]
    if any(edit.get("netDevices") for edit in edits):
        return "1.1.0"
    if any(edit.get("intelRdt") or edit.get("additionalGids") for edit in edits):
        return "0.7.0"
    annotated = [document, *document["devices"]]
    if any(item.get("annotations") for item in annotated) or "." in document["kind"].split("/")[1]:
        return "0.6.0"
    if any(device["name"][0].isdigit() for device in document["devices"]) or any(
        "hostPath" in node for edit in edits for node in edit.get("deviceNodes", [])
    ):
        return "0.5.0"
    if any(mount.get("type") for edit in edits for mount in edit.get("mounts", [])):
        return "0.4.0"
    return "0.3.0"


def _check_kind(kind: str) -> None:
    parts = kind.split("/")
    _require(len(parts) == 2, f"kind {kind} is not vendor/class")
    for part in parts:
        _require(
            re.fullmatch(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?", part) is not None,
            f"bad part of kind {kind}",
        )


def _check_edits(owner: str, edits: dict[str, Any]) -> None:
    _object(f"edits of {owner}", edits, _EDIT_FIELDS)
    _check_environment(owner, edits.get("env", []))
    for node in edits.get("deviceNodes", []):
        _object(f"device node of {owner}", node, _NODE_FIELDS, required=("path",))
        _require(node["path"].startswith("/"), f"device node path {node['path']} is not absolute")
        _require(node.get("type", "") in ("", "b", "c", "u", "p"), f"device node type of {node['path']}")
        permissions = node.get("permissions", "")
        _require(permissions == "none" or set(permissions) <= set("rwm"), f"permissions of {node['path']}")
        _require(
            0 <= node.get("fileMode", 0) <= 0o7777, f"file mode of {node['path']} is not permission bits"
        )
    for mount in edits.get("mounts", []):
        _object(f"mount of {owner}", mount, _MOUNT_FIELDS, required=("hostPath", "containerPath"))
        _strings(f"options of {mount['containerPath']}", mount.get("options", []))
        for key in ("hostPath", "containerPath"):
            _require(mount[key].startswith("/"), f"{key} {mount[key]} is not absolute")
    for hook in edits.get("hooks", []):
        _object(f"hook of {owner}", hook, _HOOK_FIELDS, required=("hookName", "path"))
        _require(hook["hookName"] in HOOK_STAGES, f"unknown hook {hook['hookName']}")
        _strings(f"args of {hook['path']}", hook.get("args", []))
        _check_environment(hook["path"], hook.get("env", []))


def _check_environment(owner: str, entries: list[Any]) -> None:
    _strings(f"env of {owner}", entries)
    for entry in entries:
        _require(entry.find("=") > 0, f"env entry {entry!r} of {owner} is not NAME=value")


def _object(what: str, value: Any, fields: Mapping[str, type], *, required: tuple[str, ...] = ()) -> None:
    _require(isinstance(value, dict), f"{what} is no object")
    unknown = set(value) - set(fields)
    _require(not unknown, f"{what} has unknown fields {sorted(unknown)}")
    for name, item in value.items():
        _require(
            isinstance(item, fields[name]) and not isinstance(item, bool),
            f"{name} of {what} has a wrong type",
        )
    for name in required:
        _require(name in value and value[name] != "", f"{what} lacks {name}")


def _strings(what: str, values: list[Any]) -> None:
    _require(all(isinstance(value, str) for value in values), f"{what} is no list of strings")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidSpecError(message)
