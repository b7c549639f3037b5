"""The plan: from one allocated claim, the devices of this node and what is held, to what is to be done.

A pure function of values: no clock, no NVML, no API server. Everything that can be wrong with a claim is
found here, before anything is touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from driver.claim import AllocatedClaim, AllocationResult, ClaimError, ClaimReference
from driver.devices import Device, Footprint
from driver.inventory import PciAddress

if TYPE_CHECKING:
    from driver.configuration import DeviceConfig


@dataclass(frozen=True, slots=True)
class Holding:
    """A device that a claim holds on this node; with admin access it is in nobody's way.

    Others may hold shares of the same device when this is a share of it.
    """

    claim: ClaimReference
    device: str
    footprint: Footprint
    admin_access: bool = False
    is_share: bool = False


@dataclass(frozen=True, slots=True)
class PlannedDevice:
    """One device to hand to the claim's containers. ``requests`` are base names."""

    requests: tuple[str, ...]
    pool: str
    device: Device
    admin_access: bool
    share_id: str | None
    memory_bytes: int | None
    config: DeviceConfig | None

    def goes_with(self, device: str, footprint: Footprint, *, is_share: bool) -> bool:
        """Whether it can be held beside something else: apart from it, or as shares of one device."""
        if self.share_id is not None and is_share and self.device.name == device:
            return True
        return not self.device.footprint.overlaps(footprint)


@dataclass(frozen=True, slots=True)
class PreparePlan:
    """What to do for one claim, in order of its results."""

    claim: AllocatedClaim
    devices: tuple[PlannedDevice, ...]

    @property
    def gpus(self) -> tuple[PciAddress, ...]:
        """The GPUs to lock, sorted, each once. Admin access changes nothing, so it needs no lock."""
        return tuple(sorted({item.device.gpu.pci for item in self.devices if not item.admin_access}))


def plan_prepare(claim: AllocatedClaim, devices: Mapping[str, Device], pool: str) -> PreparePlan:
    """Look up the claim's devices by name and choose each one's configuration.

    Args:
        claim: the claim as allocated.
        devices: this node's devices by name, the ones that are gone but still held included.
        pool: the name of this node's pool.

    Raises:
        ClaimError: allocated on another node, unknown device, or configuration that is wrong or does not fit.
    """
    if not claim.results:
        raise ClaimError(
            "NotAllocated", f"claim {claim.reference}: no device of this driver is allocated to it"
        )
    configs = [_parsed(entry.parameters, str(entry)) for entry in claim.configs]
    planned: dict[tuple[str, str | None], PlannedDevice] = {}
    for result in claim.results:
        if result.pool != pool:
            raise ClaimError(
                "OtherNode",
                f"claim {claim.reference}: request {result.request} was allocated from pool {result.pool}, "
                f"this node's pool is {pool}",
            )
        device = devices.get(result.device)
        if device is None and result.admin_access:
            # Who watches all devices is served with those that are there.
            continue
        if device is None:
            raise ClaimError(
                "UnknownDevice",
                f"claim {claim.reference}: device {result.device} of request {result.request} is not on this "
                "node; it was removed or is excluded: delete the pod to have it scheduled anew",
            )
        config = _config_for(claim, result, device, configs)
        key = (result.device, result.share_id)
        earlier = planned.get(key)
        requests = (*earlier.requests, result.base_request) if earlier else (result.base_request,)
        planned[key] = PlannedDevice(
            tuple(dict.fromkeys(requests)),
            result.pool,
            device,
            result.admin_access if earlier is None else result.admin_access and earlier.admin_access,
            result.share_id,
            result.memory_bytes,
            config,
        )
    if not planned:
        raise ClaimError(
            "UnknownDevice", f"claim {claim.reference}: none of its devices is on this node any more"
        )
    return PreparePlan(claim, tuple(planned.values()))


def check_conflicts(plan: PreparePlan, holdings: Iterable[Holding]) -> None:
    """Refuse the plan where another claim, or the claim itself, holds overlapping hardware.

    Raises:
        ClaimError: names the device and the claim that holds it.
    """
    wanted = [item for item in plan.devices if not item.admin_access]
    for holding in holdings:
        if holding.admin_access or holding.claim.uid == plan.claim.reference.uid:
            continue
        for item in wanted:
            if not item.goes_with(holding.device, holding.footprint, is_share=holding.is_share):
                raise ClaimError(
                    "InUse",
                    f"claim {plan.claim.reference}: device {item.device.name} overlaps {holding.device}, "
                    f"which is in use by claim {holding.claim}; it is free when that claim is unprepared",
                )
    for position, item in enumerate(wanted):
        for other in wanted[:position]:
            of_other = other.device
            if not item.goes_with(of_other.name, of_other.footprint, is_share=other.share_id is not None):
                raise ClaimError(
                    "InUse",
                    f"claim {plan.claim.reference}: its devices {other.device.name} and {item.device.name} "
                    "overlap",
                )


def _parsed(parameters: object, where: str) -> DeviceConfig:
    # Not at the top: it brings pydantic, 8 MiB that a node without configured claims need not hold.
    from driver.configuration import ConfigurationError, parse

    try:
        return parse(parameters)
    except ConfigurationError as error:
        raise ClaimError("BadConfig", f"{where}: {error}") from None


def _config_for(
    claim: AllocatedClaim, result: AllocationResult, device: Device, configs: list[DeviceConfig]
) -> DeviceConfig | None:
    """The last entry that is meant for this result: later ones override earlier ones."""
    wanted_kind = "GpuConfig" if device.is_whole_gpu else "MigDeviceConfig"
    for entry, config in zip(reversed(claim.configs), reversed(configs), strict=True):
        fits = config.kind == wanted_kind
        if entry.names(result):
            if not fits:
                raise ClaimError(
                    "BadConfig",
                    f"{entry}: kind {config.kind} cannot be applied to device {device.name} of request "
                    f"{result.request}; use {wanted_kind}",
                )
            return config
        if not entry.requests and fits:
            return config
    return None
