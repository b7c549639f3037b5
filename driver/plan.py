"""The plan: from one allocated claim, the devices of this node and what is held, to what is to be done.

A pure function of values: no clock, no NVML, no API server. Everything that can be wrong with a claim is
found here, before anything is touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from driver.claim import SCHEDULE_ANEW, AllocatedClaim, AllocationResult, ClaimError, ClaimReference
from driver.devices import Device, Footprint
from driver.inventory import PciAddress
from driver.timeslicing import Interval

if TYPE_CHECKING:
    from driver.configuration import DeviceConfig


@dataclass(frozen=True, slots=True)
class Holding:
    """A device that a claim holds on this node; with admin access it is in nobody's way.

    Others may hold shares of the same device when this is a share of it.
    ``interval`` is the time-slice interval that the claim asked for, if any.
    """

    claim: ClaimReference
    device: str
    footprint: Footprint
    admin_access: bool = False
    interval: Interval | None = None
    is_share: bool = False


@dataclass(frozen=True, slots=True)
class PlannedDevice:
    """One device to hand to the claim's containers. ``requests`` are base names.

    ``interval`` is the time-slice interval that its GPU is to have, ``None`` where nothing is to be set.
    """

    requests: tuple[str, ...]
    pool: str
    device: Device
    admin_access: bool
    share_id: str | None
    memory_bytes: int | None
    config: DeviceConfig | None
    interval: Interval | None = None

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
                "node; it was removed or is excluded",
                SCHEDULE_ANEW,
            )
        config = _config_for(claim, result, device, configs)
        interval = _interval(config, result)
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
            interval if earlier is None else interval or earlier.interval,
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
                    f"claim {plan.claim.reference}: {_in_the_way(item, holding)} by claim {holding.claim}",
                    "it is free when that claim is unprepared",
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


def _in_the_way(item: PlannedDevice, holding: Holding) -> str:
    """How the device that a claim wants meets one that another holds, as the beginning of a sentence."""
    name = item.device.name
    if name == holding.device and item.share_id is not None:
        return f"device {name}, which it has a share of, is in use as a whole"
    if name == holding.device and holding.is_share:
        return f"device {name}, which it has as a whole, is in use in shares"
    if name == holding.device:
        return f"device {name} is in use"
    return f"device {name} overlaps {holding.device}, which is in use"


def check_intervals(plan: PreparePlan, holdings: Iterable[Holding]) -> None:
    """Refuse the plan where it asks for another time-slice interval than who shares the GPU, or than itself.

    Raises:
        ClaimError: names the GPU, both intervals, and the claim that asked first.
    """
    wanted = {item.device.gpu.pci: item for item in plan.devices if item.interval is not None}
    if not wanted:
        return
    for item in plan.devices:
        chosen = wanted.get(item.device.gpu.pci)
        if chosen is not None and item.interval not in (None, chosen.interval):
            raise ClaimError(
                "IntervalInUse",
                f"claim {plan.claim.reference}: it asks for the time-slice intervals {item.interval} and "
                f"{chosen.interval} on GPU {item.device.gpu.pci}, which has one for all: ask for one",
            )
    for holding in holdings:
        chosen = wanted.get(holding.footprint.gpu)
        if chosen is None or holding.admin_access or holding.claim.uid == plan.claim.reference.uid:
            continue
        if holding.interval not in (None, chosen.interval):
            raise ClaimError(
                "IntervalInUse",
                f"claim {plan.claim.reference}: it asks for the time-slice interval {chosen.interval} on GPU "
                f"{holding.footprint.gpu} (device {chosen.device.name}), which has the interval "
                f"{holding.interval} for claim {holding.claim}, and a GPU has one for all; ask for the same "
                "or for none, or wait until that claim is unprepared",
            )


def asked_interval(claim: AllocatedClaim, result: AllocationResult, device: Device) -> Interval | None:
    """The time-slice interval that the claim asks for with one of its results.

    Raises:
        ClaimError: as :func:`plan_prepare`.
    """
    configs = [_parsed(entry.parameters, str(entry)) for entry in claim.configs]
    return _interval(_config_for(claim, result, device, configs), result)


def _interval(config: DeviceConfig | None, result: AllocationResult) -> Interval | None:
    # Admin access changes nothing of a device.
    return None if config is None or result.admin_access else config.interval


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
