"""Tables for people who look at a node in standalone mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kubeletplugin.store import ClaimRecord


def inventory_table(slices: Sequence[Mapping[str, Any]]) -> str:
    """One line for each device of ResourceSlice objects."""
    rows = [("DEVICE", "TYPE", "PRODUCT", "PROFILE", "MEMORY", "NVLINKS", "NVLINK DOMAIN", "UUID")]
    for item in slices:
        for device in item["spec"].get("devices", []):
            value = {name: next(iter(entry.values())) for name, entry in device["attributes"].items()}
            domain = "-" if value["nvlinkDomain"] == value["uuid"] else str(value["nvlinkDomain"])
            rows.append(
                (
                    device["name"],
                    str(value["type"]),
                    str(value["productName"]),
                    str(value["profile"]) or "-",
                    str(device["capacity"]["memory"]["value"]),
                    str(value["nvlinkLinks"]),
                    domain,
                    str(value["uuid"]),
                )
            )
    return _aligned(rows)


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
