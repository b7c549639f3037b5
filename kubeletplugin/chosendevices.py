"""Devices that a person chooses for a claim, as the allocation that a scheduler would have written. Pure.

Counts are checked, because what uses the claim counts on them. Selectors, constraints and capacity are not,
nor how many shares of a device there are: who chooses by hand knows better.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from driver.claim import DRIVER_NAME


class ChoiceError(Exception):
    """The chosen devices are not what the claim asks for; the text names the request and what is allowed."""


@dataclass(frozen=True, slots=True)
class _Request:
    """A request, or a sub-request of one (``request/subrequest``). ``count`` is ``None`` for all devices.

    ``capacity`` is what it asks for of each device, quantities by name.
    """

    name: str
    count: int | None
    admin_access: bool
    capacity: Mapping[str, Any]

    @property
    def base(self) -> str:
        return self.name.partition("/")[0]

    def check(self, devices: Sequence[str]) -> None:
        if self.count is not None and len(devices) != self.count:
            raise ChoiceError(
                f"request {self.name} asks for {_devices(self.count)}, and --device names {len(devices)} "
                f"({', '.join(devices)}); give --device {self.name}=DEVICE once for each"
            )


def allocation(
    devices: Mapping[str, Any],
    chosen: Sequence[str],
    pool: str,
    *,
    claim_uid: str,
    shared: Mapping[str, Mapping[str, str]],
) -> dict[str, Any]:
    """``status.allocation`` for the ``spec.devices`` of a claim, with each choice ``[REQUEST=]DEVICE``.

    Of a ``shared`` device the claim gets a share, the same one each time; the values are what a share takes
    of each capacity that the claim does not ask for.

    Raises:
        ChoiceError: a choice names no request of the claim or no device, a device twice, or more or fewer
            devices than a request asks for; or configuration is for a request that is not there.
    """
    bases, requests = _requests(devices)
    by_request: dict[str, list[str]] = {}
    for choice in chosen:
        request, device = _choice(choice, requests)
        by_request.setdefault(request.name, []).append(device)
        if not request.admin_access and _times(device, by_request, requests) > 1:
            raise ChoiceError(f"--device {choice}: {device} is named twice; a claim has a device once")
    for base in bases:
        used = [requests[name] for name in by_request if requests[name].base == base]
        if not used:
            allowed = " or ".join(name for name, request in requests.items() if request.base == base)
            raise ChoiceError(f"request {base} has no device; name one with --device {allowed}=DEVICE")
        if len(used) > 1:
            names = ", ".join(request.name for request in used)
            raise ChoiceError(f"request {base} is met by one of its sub-requests; --device names {names}")
        used[0].check(by_request[used[0].name])
    results = [
        _result(requests[name], device, pool) | _share(requests[name], device, claim_uid, shared)
        for name, devices in by_request.items()
        for device in devices
    ]
    configs = [{"source": "FromClaim", **entry} for entry in devices.get("config") or []]
    for index, config in enumerate(configs):
        for name in config.get("requests") or ():
            if name not in (*bases, *requests):
                allowed = ", ".join(dict.fromkeys((*bases, *requests)))
                raise ChoiceError(f"spec.devices.config[{index}]: it has no request {name}; it has {allowed}")
    return {"devices": {"results": results, "config": configs}}


def _requests(devices: Mapping[str, Any]) -> tuple[list[str], dict[str, _Request]]:
    """The names of the claim's requests, and by name those that can be met: requests or sub-requests."""
    bases: list[str] = []
    found: dict[str, _Request] = {}
    for entry in devices.get("requests") or []:
        name = str(entry["name"])
        bases.append(name)
        exactly, alternatives = entry.get("exactly"), entry.get("firstAvailable")
        if (exactly is None) == (not alternatives):
            raise ChoiceError(f"request {name} must have one of exactly and firstAvailable")
        parts = [(name, exactly)] if exactly is not None else []
        parts += [(f"{name}/{part['name']}", part) for part in alternatives or []]
        found |= {full: _request(full, part) for full, part in parts}
    if not bases:
        raise ChoiceError("it has no spec.devices.requests")
    return bases, found


def _request(name: str, part: Mapping[str, Any]) -> _Request:
    capacity = (part.get("capacity") or {}).get("requests") or {}
    return _Request(name, _count(part), bool(part.get("adminAccess")), capacity)


def _count(part: Mapping[str, Any]) -> int | None:
    return None if part.get("allocationMode") == "All" else part.get("count") or 1


def _choice(choice: str, requests: Mapping[str, _Request]) -> tuple[_Request, str]:
    name, separator, device = choice.rpartition("=")
    allowed = ", ".join(requests)
    if not device:
        raise ChoiceError(f"--device {choice}: it names no device; give [REQUEST=]DEVICE (see inventory)")
    if not separator:
        if len(requests) != 1:
            raise ChoiceError(f"--device {choice}: name the request too, one of {allowed}")
        name = next(iter(requests))
    if name not in requests:
        raise ChoiceError(f"--device {choice}: the claim has no request {name}; it has {allowed}")
    return requests[name], device


def _times(device: str, by_request: Mapping[str, Sequence[str]], requests: Mapping[str, _Request]) -> int:
    """How often a device is chosen, other than with admin access."""
    return sum(chosen.count(device) for name, chosen in by_request.items() if not requests[name].admin_access)


def _result(request: _Request, device: str, pool: str) -> dict[str, Any]:
    result = {"request": request.name, "driver": DRIVER_NAME, "pool": pool, "device": device}
    return {**result, "adminAccess": True} if request.admin_access else result


def _share(
    request: _Request, device: str, claim_uid: str, shared: Mapping[str, Mapping[str, str]]
) -> dict[str, Any]:
    if device not in shared:
        return {}
    share_id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{claim_uid}/{request.name}/{device}"))
    asked = {name: str(quantity) for name, quantity in request.capacity.items()}
    return {"shareID": share_id, "consumedCapacity": {**shared[device], **asked}}


def _devices(count: int) -> str:
    return "1 device" if count == 1 else f"{count} devices"
