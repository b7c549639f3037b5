"""Time-slice intervals: claims that ask for one, and what the GPUs of a simulated node have."""

from __future__ import annotations

from typing import Any

from nvmlsim.node import SimulatedNode

VERSION = "resource.nvidia.com/v1beta1"
NOT_SUPPORTED = 3
"""NVML's code, and the exit status of nvidia-smi, for a GPU that has no time-slice policy."""

_NAMES = ("Default", "Short", "Medium", "Long")


def time_slicing(interval: str | None = None) -> dict[str, Any]:
    """The parameters of a claim that asks for an interval, or for time-slicing without more."""
    sharing: dict[str, Any] = {"strategy": "TimeSlicing"}
    if interval is not None:
        sharing["timeSlicingConfig"] = {"interval": interval}
    return {"apiVersion": VERSION, "kind": "GpuConfig", "sharing": sharing}


def intervals(gpus: SimulatedNode) -> dict[int, str]:
    """By number, the GPUs that have another interval than the default."""
    return {gpu.gpu: _NAMES[gpu.timeslice] for gpu in gpus.gpus() if gpu.timeslice}


def smi_runs(gpus: SimulatedNode) -> int:
    """How often nvidia-smi was run since this was asked the last time."""
    count = gpus.calls().get("nvidia-smi", 0)
    gpus.reset_calls()
    return count
