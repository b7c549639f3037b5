"""Failures: for each kind of error, one word for metrics and events, and the text that people read."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from cdi.devicenodes import DeviceNodeError
from cdi.driverroot import DriverRootError
from cdi.spec import SpecError
from cdi.specfolder import SpecFolderError
from driver.claim import ClaimError
from driver.exclusion import ExclusionError
from driver.nvml import NvmlError, NvmlUnavailable
from driver.presence import DevicePresenceError
from kube.errors import ApiError, ApiUnavailable
from kubeletplugin.gpulocks import LockTimeout
from kubeletplugin.lanes import LaneTimeout
from kubeletplugin.migoperations import CardGone, MigOperationError
from kubeletplugin.store import StoreError
from kubeletplugin.timeslices import TimeSliceError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an operation on a claim failed."""

    cause: str
    message: str

    def __str__(self) -> str:
        return f"{self.cause}: {self.message}"


_CAUSES: tuple[tuple[type[Exception], str], ...] = (
    (DevicePresenceError, "DeviceGone"),
    (CardGone, "DeviceGone"),
    (DeviceNodeError, "NoDeviceNode"),
    (DriverRootError, "DriverRoot"),
    (SpecFolderError, "CdiFolder"),
    (SpecError, "CdiSpec"),
    (ExclusionError, "Settings"),
    (NvmlUnavailable, "NvmlUnavailable"),
    (NvmlError, "Nvml"),
    (LaneTimeout, "NvmlTimeout"),
    (LockTimeout, "LockTimeout"),
    (TimeSliceError, "TimeSlice"),
    (StoreError, "Store"),
    (ApiUnavailable, "ApiUnavailable"),
    (ApiError, "Api"),
)


def failure(error: Exception) -> Failure:
    """Describe ``error``; one that nobody expected is logged with its traceback."""
    if isinstance(error, ClaimError | MigOperationError):
        return Failure(error.cause, str(error))
    for kind, cause in _CAUSES:
        if isinstance(error, kind):
            return Failure(cause, str(error))
    log.error("unexpected error", exc_info=error)
    return Failure("Internal", f"{type(error).__name__}: {error}")
