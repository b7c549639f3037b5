"""What people see who look at a node in standalone mode: tables, or the same as values for programs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from kubeletplugin.store import ClaimRecord, HeldDevice

# libyaml's is four times as fast, and a build of PyYAML may lack it.
_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def as_yaml(documents: Sequence[object]) -> str:
    """Plain values as YAML documents, keys in the order that they have."""
    text: str = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False)
    return text.rstrip()


def inventory_table(slices: Sequence[Mapping[str, Any]]) -> str:
    """One line for each device of ResourceSlice objects; one for all partitions of a GPU and a profile."""
    rows = [("DEVICE", "TYPE", "PRODUCT", "PROFILE", "MEMORY", "NVLINKS", "NVLINK DOMAIN", "UUID")]
    devices = [device for item in slices for device in item["spec"].get("devices", [])]
    for (name, has_uuid), group in itertools.groupby(devices, key=_line_of):
        same = list(group)
        device = same[0]
        if not has_uuid:
            starts = ",".join(str(one["name"]).rpartition("-")[2] for one in same)
            name = f"{name}-{{{starts}}}"
        value = {name: next(iter(entry.values())) for name, entry in device["attributes"].items()}
        own_domain = value["nvlinkDomain"] in (value["uuid"], device["name"])
        rows.append(
            (
                name,
                str(value["type"]),
                str(value["productName"]),
                str(value["profile"]) or "-",
                str(device["capacity"]["memory"]["value"]),
                str(value["nvlinkLinks"]),
                "-" if own_domain else str(value["nvlinkDomain"]),
                str(value["uuid"]) if has_uuid else "made for a claim",
            )
        )
    return _aligned(rows)


def _line_of(device: Mapping[str, Any]) -> tuple[str, bool]:
    """What the line of a device is called, and whether the device has a UUID: partitions have none yet."""
    name = str(device["name"])
    if device["attributes"]["uuid"]["string"]:
        return name, True
    return name.rpartition("-")[0], False


def claims_table(records: Sequence[ClaimRecord]) -> str:
    """One line for each device of each claim."""
    rows = [("CLAIM", "UID", "STATE", "REQUESTS", "DEVICE", "CDI DEVICE")]
    for record in records:
        for held in record.devices:
            rows.append(
                (
                    f"{record.claim.namespace}/{record.claim.name}",
                    record.claim.uid,
                    record.state.value,
                    ",".join(held.requests),
                    held.device,
                    held.cdi_device,
                )
            )
    return _aligned(rows)


def claims_as_values(records: Sequence[ClaimRecord]) -> list[dict[str, Any]]:
    """What :func:`claims_table` shows, for programs; what does not apply to a device is left out."""
    return [
        {
            "namespace": record.claim.namespace,
            "name": record.claim.name,
            "uid": record.claim.uid,
            "state": record.state.value,
            "devices": [_device(held) for held in record.devices],
        }
        for record in records
    ]


def _device(held: HeldDevice) -> dict[str, Any]:
    values = {
        "requests": list(held.requests),
        "pool": held.pool,
        "device": held.device,
        "shareID": held.share_id,
        "uuid": held.uuid,
        "adminAccess": held.admin_access or None,
        "cdiDevice": held.cdi_device,
    }
    return {name: value for name, value in values.items() if value is not None}


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = (
        "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    return "\n".join(lines)
