"""``nvidia-smi`` of the driver root, for the one thing that NVML has no call for. Blocking, with a limit."""

from __future__ import annotations

import os
import signal
import subprocess
import time

from cdi.driverroot import DriverRoot, DriverRootError
from driver.timeslicing import Interval
from kubeletplugin.metrics import Metrics

KILL_SECONDS = 5.0
"""How long a killed program is waited for: one that the kernel driver holds cannot even be killed."""

_PROGRAM = "nvidia-smi"
_LIBRARY = "libnvidia-ml.so.1"
_NOT_SUPPORTED_STATUS = 3
"""Exit statuses are NVML's return codes; the text is what older programs have."""
_NOT_SUPPORTED_TEXT = "not supported"
_LONGEST_OUTPUT = 300


class NvidiaSmiError(Exception):
    """The command was not carried out; the text names command, arguments, and what came of it."""


class NotSupportedByGpu(NvidiaSmiError):
    """The GPU has no such setting, so nothing was changed."""


class NvidiaSmi:
    """Runs the driver root's program with the library that belongs to it."""

    def __init__(self, driver_root: DriverRoot, metrics: Metrics, timeout: float) -> None:
        """``timeout``: seconds that one run may take."""
        self._driver_root = driver_root
        self._seconds = metrics.nvidia_smi_seconds
        self._timeout = timeout

    def set_interval(self, gpu_uuid: str, interval: Interval, lock: int) -> None:
        """Set a GPU's time-slice interval.

        Args:
            lock: the descriptor of the GPU's lock, which the program inherits: if this process is killed, the
                GPU stays locked until the program has ended too.

        Raises:
            NotSupportedByGpu: it has no time-slice policy.
            NvidiaSmiError: there is no program, or it failed, or it did not end in time.
        """
        arguments = ("compute-policy", "-i", gpu_uuid, "--set-timeslice", str(interval.number))
        started, outcome = time.monotonic(), "failed"
        try:
            self._run(arguments, lock)
            outcome = "ok"
        except NotSupportedByGpu:
            outcome = "not-supported"
            raise
        finally:
            self._seconds.labels(outcome).observe(time.monotonic() - started)

    def _run(self, arguments: tuple[str, ...], lock: int) -> None:
        try:
            program = str(self._driver_root.find_program(_PROGRAM))
            library = str(self._driver_root.find_library(_LIBRARY))
        except DriverRootError as error:
            raise NvidiaSmiError(str(error)) from error
        command = " ".join((program, *arguments))
        try:
            process = subprocess.Popen(
                (program, *arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, "LC_ALL": "C", "LD_PRELOAD": library},
                start_new_session=True,
                pass_fds=(lock,),
            )
        except OSError as error:
            raise NvidiaSmiError(f"{command} cannot be started: {error}") from error
        try:
            output, _ = process.communicate(timeout=self._timeout)
        except subprocess.TimeoutExpired:
            end = _kill(process)
            raise NvidiaSmiError(f"{command} has not ended within {self._timeout:g} s and {end}") from None
        if process.returncode != 0:
            text = " ".join(output.decode(errors="replace").split())
            said = text[-_LONGEST_OUTPUT:] or "nothing"
            kind = NvidiaSmiError
            if process.returncode == _NOT_SUPPORTED_STATUS or _NOT_SUPPORTED_TEXT in text.lower():
                kind = NotSupportedByGpu
            raise kind(f"{command} ended with status {process.returncode} and said: {said}")


def _kill(process: subprocess.Popen[bytes]) -> str:
    """Kill the program and what it has started, and wait for its end; returns how that went."""
    os.killpg(process.pid, signal.SIGKILL)
    try:
        process.communicate(timeout=KILL_SECONDS)
    except subprocess.TimeoutExpired:
        # What is left of it is reaped when the next program is started.
        assert process.stdout is not None
        process.stdout.close()
        return f"is still there {KILL_SECONDS:g} s after it was killed"
    return "was killed"
