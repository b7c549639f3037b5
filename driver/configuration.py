"""Opaque configuration: what a claim or class says to this driver, checked field by field.

Kubernetes stores ``opaque.parameters`` unread, so this is where a wrong field is found. The kinds and
field names are those that existing claims use (``resource.nvidia.com/v1beta1``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from driver.strictmodel import Strict, problems, shown
from driver.timeslicing import Interval

API_VERSION = "resource.nvidia.com/v1beta1"


class ConfigurationError(ValueError):
    """The parameters are not acceptable; the text names the field, the value and what is allowed."""


class TimeSlicingConfig(Strict):
    """How long one process keeps the GPU before the next one's turn."""

    interval: Literal["Default", "Short", "Medium", "Long"] | None = None


class MpsConfig(Strict):
    """Limits of the CUDA Multi-Process Service; memory limits are quantities by device UUID or index."""

    default_active_thread_percentage: Annotated[int, Field(ge=0, le=100)] | None = None
    default_pinned_device_memory_limit: str | None = None
    default_per_device_pinned_memory_limit: dict[str, str] | None = None
    multi_user: bool | None = None


class GpuSharing(Strict):
    """How the consumers of a whole GPU share it."""

    strategy: Literal["TimeSlicing", "MPS"] = "TimeSlicing"
    time_slicing_config: TimeSlicingConfig | None = None
    mps_config: MpsConfig | None = None


class MigSharing(Strict):
    """How the consumers of a MIG device share it; a time slice cannot be set there."""

    strategy: Literal["TimeSlicing", "MPS"] = "TimeSlicing"
    mps_config: MpsConfig | None = None


class GpuConfig(Strict):
    """Configuration of whole GPUs."""

    api_version: Literal["resource.nvidia.com/v1beta1"]
    kind: Literal["GpuConfig"]
    sharing: GpuSharing | None = None

    @property
    def interval(self) -> Interval | None:
        """The time-slice interval that is asked for; ``None`` without ``sharing``, which asks for none."""
        if self.sharing is None:
            return None
        config = self.sharing.time_slicing_config
        return Interval((config and config.interval) or Interval.DEFAULT)


class MigDeviceConfig(Strict):
    """Configuration of MIG devices."""

    api_version: Literal["resource.nvidia.com/v1beta1"]
    kind: Literal["MigDeviceConfig"]
    sharing: MigSharing | None = None

    @property
    def interval(self) -> Interval | None:
        """None: on a MIG device there is nothing to set, whatever is asked for."""
        return None


DeviceConfig = GpuConfig | MigDeviceConfig

_KINDS: dict[str, type[GpuConfig] | type[MigDeviceConfig]] = {
    "GpuConfig": GpuConfig,
    "MigDeviceConfig": MigDeviceConfig,
}


def parse(parameters: object, place: str = "") -> DeviceConfig:
    """Check the value of one ``opaque.parameters``.

    ``place`` is the path of the parameters in their object; messages then name fields by their full path.

    Raises:
        ConfigurationError: wrong version, kind, field or type, or a feature that is not there yet.
    """
    if not isinstance(parameters, Mapping):
        field = f"field {place}: it " if place else ""
        raise ConfigurationError(f"{field}must be an object, not {shown(parameters)}")
    version, kind = parameters.get("apiVersion"), parameters.get("kind")
    below = f"{place}." if place else ""
    if version != API_VERSION:
        raise ConfigurationError(
            f"field {below}apiVersion: {shown(version)} is not known; allowed: {API_VERSION}"
        )
    model = _KINDS.get(kind) if isinstance(kind, str) else None
    if model is None:
        raise ConfigurationError(
            f"field {below}kind: {shown(kind)} is not known; allowed: {', '.join(_KINDS)}"
        )
    try:
        config = model.model_validate(dict(parameters))
    except ValidationError as error:
        raise ConfigurationError(problems(model, parameters, error, place)) from None
    if config.sharing is not None:
        _check_strategy(config.sharing, parameters["sharing"], f"{below}sharing")
    return config


def _check_strategy(sharing: GpuSharing | MigSharing, given: Mapping[str, Any], path: str) -> None:
    """Refuse the configuration of another strategy than the one that is asked for."""
    strategy = sharing.strategy
    if strategy == "TimeSlicing" and sharing.mps_config is not None:
        raise ConfigurationError(_wrong_section(path, "mpsConfig", given, strategy, "MPS"))
    if strategy == "MPS" and isinstance(sharing, GpuSharing) and sharing.time_slicing_config is not None:
        raise ConfigurationError(_wrong_section(path, "timeSlicingConfig", given, strategy, "TimeSlicing"))
    if strategy == "MPS":
        raise ConfigurationError(f"field {path}.strategy: 'MPS' is not supported yet; allowed: TimeSlicing")


def _wrong_section(path: str, name: str, given: Mapping[str, Any], strategy: str, fitting: str) -> str:
    return (
        f"field {path}.{name}: {shown(given[name])} is wrong: it is allowed only with sharing.strategy "
        f"{fitting}, which here is {strategy}; leave {name} out or change the strategy"
    )
