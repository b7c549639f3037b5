"""Tables for people who look at a node in standalone mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kubeletplugin.store import ClaimRecord


def inventory_table(slices: Sequence[Mapping[str, Any]]) -> str:
    """One line for each device of ResourceSlice objects, and one for all placements of a MIG profile.

    The names of those are written as a shell expands them: ``gpu-0000-65-00-0-mig-1g10gb-{6,4,5}``.
    """
    rows: dict[str, tuple[list[str], list[str]]] = {}
    for item in slices:
        for device in item["spec"].get("devices", []):
            value = {name: next(iter(entry.values())) for name, entry in device["attributes"].items()}
            base, _, start = str(device["name"]).rpartition("-")
            placeable = value["uuid"] == ""
            alone = value["nvlinkDomain"] in (value["uuid"], device["name"])
            columns = [
                str(value["type"]),
                str(value["productName"]),
                str(value["profile"]) or "-",
                str(device["capacity"]["memory"]["value"]),
                str(value["nvlinkLinks"]),
                "-" if alone else str(value["nvlinkDomain"]),
                str(value["uuid"]) or "-",
            ]
            _, starts = rows.setdefault(base if placeable else device["name"], (columns, []))
            starts += [start] if placeable else []
    head = ("DEVICE", "TYPE", "PRODUCT", "PROFILE", "MEMORY", "NVLINKS", "NVLINK DOMAIN", "UUID")
    return _aligned([head, *((_names(name, starts), *columns) for name, (columns, starts) in rows.items())])


def _names(name: str, starts: Sequence[str]) -> str:
    if not starts:
        return name
    return f"{name}-{starts[0]}" if len(starts) == 1 else f"{name}-{{{','.join(starts)}}}"


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


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = (
        "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    return "\n".join(lines)
