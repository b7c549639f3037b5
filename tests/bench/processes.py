"""What the kernel tells about a process: its memory and its time on the processors."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Memory:
    """``Rss`` and ``Anonymous`` of ``/proc/PID/smaps_rollup``, and the most RSS there was so far, in MiB."""

    resident: float
    anonymous: float
    most: float


def memory(pid: int) -> Memory:
    """Raises OSError when the process has ended."""
    kib = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, value = line.split()[:2]
        kib[name] = int(value)
    status = Path(f"/proc/{pid}/status").read_text()
    most = int(status.partition("VmHWM:")[2].split()[0])
    return Memory(kib["Rss:"] / 1024, kib["Anonymous:"] / 1024, most / 1024)


def cpu_seconds(pid: int) -> float:
    """Time on a processor so far, of all threads, in user and kernel mode. Raises OSError."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND
