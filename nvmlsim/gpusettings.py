"""What `SimulatedNode.set_gpu` can change of one GPU."""

from collections.abc import Mapping

TEXTS = {
    "name": "product name; bytes that are not UTF-8 are allowed",
    "uuid": "UUID",
    "serial": "serial number",
}
NUMBERS = {
    "numa_node": "NUMA node, -1 for none",
    "memory_numa_node": "NUMA node of the GPU's own memory",
    "module_id": "module id",
    "compute_mode": "compute mode (0 default, 2 prohibited, 3 exclusive process)",
    "timeslice": "time-slice interval (0 default, 1 short, 2 medium, 3 long)",
    "timeslice_code": "NVML return code that a change of the time-slice interval gets",
    "timeslice_delay_ms": "how long such a change takes",
    "persistence": "persistence mode (0, 1)",
    "virtualization": "virtualization mode (1 passthrough, 2 vGPU)",
    "addressing_mode": "addressing mode",
    "ecc_current": "ECC mode now (0, 1)",
    "ecc_pending": "ECC mode after a reset (0, 1)",
    "events_supported": "which events can be waited for, as NVML's bits",
    "memory_unreported": "1: memory is not supported, as on boards that share the CPU's",
    "remapped_correctable": "rows remapped for correctable errors",
    "remapped_uncorrectable": "rows remapped for uncorrectable errors",
    "remap_pending": "1: a remapping waits for a reset",
    "remap_failed": "1: a remapping failed",
    "recovery_action": "what helps the GPU (0 none, 1 reset, 2 reboot, 3 drain)",
    "fabric_supported": "1: the GPU belongs to an NVLink fabric",
    "fabric_state": "fabric registration (1 not started, 2 in progress, 3 completed)",
    "fabric_status": "NVML return code of the fabric registration",
    "fabric_clique": "clique id",
    "fabric_health": "fabric health mask",
}


class SettingError(ValueError):
    """A GPU has no such setting, or cannot have the value; the message says what is allowed."""


def checked(settings: Mapping[str, object]) -> dict[str, object]:
    """The settings with numbers as numbers. Raises SettingError."""
    return {name: _value(name, value) for name, value in settings.items()}


def _value(name: str, value: object) -> object:
    if name in TEXTS:
        return value
    if name not in NUMBERS:
        allowed = ", ".join((*TEXTS, *NUMBERS))
        raise SettingError(f"a GPU has no setting {name!r}; allowed are {allowed}")
    try:
        number = int(value, 0) if isinstance(value, str) else int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        number = None
    if number is None or not -(2**31) <= number < 2**32:
        raise SettingError(f"{name}: {value!r} is not a whole number of 32 bits ({NUMBERS[name]})")
    return number
