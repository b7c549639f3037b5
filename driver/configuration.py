"""Opaque configuration: what a claim or class says to this driver, checked field by field.

Kubernetes stores ``opaque.parameters`` unread, so this is where a wrong field is found. The kinds and
field names are those that existing claims use (``resource.nvidia.com/v1beta1``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from driver.timeslicing import Interval

API_VERSION = "resource.nvidia.com/v1beta1"


class ConfigurationError(ValueError):
    """The parameters are not acceptable; the text names the field, the value and what is allowed."""


class _Strict(BaseModel):
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, alias_generator=to_camel, hide_input_in_errors=True
    )


class TimeSlicingConfig(_Strict):
    """How long one process keeps the GPU before the next one's turn."""

    interval: Literal["Default", "Short", "Medium", "Long"] | None = None


class MpsConfig(_Strict):
    """Limits of the CUDA Multi-Process Service; memory limits are quantities by device UUID or index."""

    default_active_thread_percentage: Annotated[int, Field(ge=0, le=100)] | None = None
    default_pinned_device_memory_limit: str | None = None
    default_per_device_pinned_memory_limit: dict[str, str] | None = None
    multi_user: bool | None = None


class GpuSharing(_Strict):
    """How the consumers of a whole GPU share it."""

    strategy: Literal["TimeSlicing", "MPS"] = "TimeSlicing"
    time_slicing_config: TimeSlicingConfig | None = None
    mps_config: MpsConfig | None = None


class MigSharing(_Strict):
    """How the consumers of a MIG device share it; a time slice cannot be set there."""

    strategy: Literal["TimeSlicing", "MPS"] = "TimeSlicing"
    mps_config: MpsConfig | None = None


class GpuConfig(_Strict):
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


class MigDeviceConfig(_Strict):
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


def parse(parameters: object) -> DeviceConfig:
    """Check the value of one ``opaque.parameters``.

    Raises:
        ConfigurationError: wrong version, kind, field or type, or a feature that is not there yet.
    """
    if not isinstance(parameters, Mapping):
        raise ConfigurationError(f"must be an object, not {_shown(parameters)}")
    version, kind = parameters.get("apiVersion"), parameters.get("kind")
    if version != API_VERSION:
        raise ConfigurationError(f"field apiVersion: {_shown(version)} is not known; allowed: {API_VERSION}")
    model = _KINDS.get(kind) if isinstance(kind, str) else None
    if model is None:
        raise ConfigurationError(f"field kind: {_shown(kind)} is not known; allowed: {', '.join(_KINDS)}")
    try:
        config = model.model_validate(dict(parameters))
    except ValidationError as error:
        raise ConfigurationError(
            "; ".join(_problem(model, parameters, item) for item in error.errors())
        ) from None
    if config.sharing is not None:
        _check_strategy(config.sharing, parameters["sharing"])
    return config


def _check_strategy(sharing: GpuSharing | MigSharing, given: Mapping[str, Any]) -> None:
    """Refuse the configuration of another strategy than the one that is asked for."""
    strategy = sharing.strategy
    if strategy == "TimeSlicing" and sharing.mps_config is not None:
        raise ConfigurationError(_wrong_section("mpsConfig", given, strategy, "MPS"))
    if strategy == "MPS" and isinstance(sharing, GpuSharing) and sharing.time_slicing_config is not None:
        raise ConfigurationError(_wrong_section("timeSlicingConfig", given, strategy, "TimeSlicing"))
    if strategy == "MPS":
        raise ConfigurationError("field sharing.strategy: 'MPS' is not supported yet; allowed: TimeSlicing")


def _wrong_section(name: str, given: Mapping[str, Any], strategy: str, fitting: str) -> str:
    return (
        f"field sharing.{name}: {_shown(given[name])} is wrong: it is allowed only with sharing.strategy "
        f"{fitting}, which here is {strategy}; leave {name} out or change the strategy"
    )


def _problem(model: type[BaseModel], parameters: Mapping[str, Any], error: Any) -> str:
    location = [str(part) for part in error["loc"]]
    path = ".".join(location) or "parameters"
    if error["type"] == "extra_forbidden":
        return f"field {path} is unknown; allowed here: {', '.join(_fields_at(model, location[:-1]))}"
    if error["type"] == "missing":
        return f"field {path} is required"
    reason = "it must be an object" if error["type"] == "model_type" else error["msg"]
    return f"field {path}: {_shown(_value_at(parameters, error['loc']))} is wrong: {reason}"


def _fields_at(model: type[BaseModel], path: list[str]) -> list[str]:
    """Field names, as users write them, of the model that lies at ``path`` below ``model``."""
    for part in path:
        for field in model.model_fields.values():
            if field.alias == part:
                nested = [kind for kind in _members(field.annotation) if issubclass(kind, BaseModel)]
                if nested:
                    model = nested[0]
    return [field.alias or name for name, field in model.model_fields.items()]


def _members(annotation: Any) -> list[type]:
    parts = getattr(annotation, "__args__", (annotation,))
    return [part for part in parts if isinstance(part, type)]


def _value_at(value: Any, path: tuple[int | str, ...]) -> object:
    for part in path:
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        else:
            return value
    return value


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except RecursionError:
        text = f"a deeply nested {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."
