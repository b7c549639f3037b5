"""Running nvidia-smi: what it is given, what its answers mean, and that one that hangs is gone afterwards."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdi.driverroot import DriverRoot
from driver.timeslicing import Interval
from kubeletplugin.metrics import Metrics
from kubeletplugin.nvidiasmi import NotSupportedByGpu, NvidiaSmi, NvidiaSmiError
from nvmlsim.build import build

UUID = "GPU-00000000-1111-2222-3333-444444444444"


class Root:
    """A driver root whose nvidia-smi is a shell script."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "usr/bin/nvidia-smi"
        self.library = folder / "usr/lib64/libnvidia-ml.so.1"
        for path in (self.program, self.library):
            path.parent.mkdir(parents=True)
        shutil.copyfile(build().library, self.library)
        self.metrics = Metrics()
        self.lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)

    def script(self, text: str) -> None:
        self.program.write_text(f"#!/bin/sh\nunset LD_PRELOAD\ncd {self.folder}\n{text}\n")
        self.program.chmod(0o755)

    def set_interval(self, interval: Interval = Interval.SHORT, timeout: float = 20.0) -> None:
        smi = NvidiaSmi(DriverRoot(self.folder, str(self.folder)), self.metrics, timeout)
        smi.set_interval(UUID, interval, self.lock)

    def runs(self, outcome: str) -> float | None:
        name = "gpudra_nvidia_smi_seconds_count"
        return self.metrics.registry.get_sample_value(name, {"outcome": outcome})


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    made = Root(tmp_path)
    yield made
    os.close(made.lock)


@pytest.mark.parametrize(("interval", "number"), [(Interval.DEFAULT, "0"), (Interval.LONG, "3")])
def test_it_gets_the_gpu_the_number_and_the_library_of_the_driver_root(
    root: Root, interval: Interval, number: str
) -> None:
    root.program.write_text(f'#!/bin/sh\necho "$LD_PRELOAD|$*" > {root.folder}/seen\n')
    root.program.chmod(0o755)
    root.set_interval(interval)
    given = f"{root.library}|compute-policy -i {UUID} --set-timeslice {number}"
    assert (root.folder / "seen").read_text() == f"{given}\n"
    assert root.runs("ok") == 1


@pytest.mark.parametrize(
    ("script", "kind", "words"),
    [
        ("echo 'Unable to reach the GPU'; exit 15", NvidiaSmiError, ["status 15", "Unable to reach the GPU"]),
        ("echo 'to stderr' >&2; exit 1", NvidiaSmiError, ["status 1", "to stderr"]),
        ("exit 4", NvidiaSmiError, ["status 4", "said: nothing"]),
        ("kill -9 $$", NvidiaSmiError, ["status -9"]),
        ("printf '\\377 broken'; exit 1", NvidiaSmiError, ["broken"]),
        ("echo 'Failed for GPU 0: Not Supported'; exit 1", NotSupportedByGpu, ["Not Supported"]),
        ("echo 'not available'; exit 3", NotSupportedByGpu, ["status 3", "not available"]),
    ],
)
def test_b098_a_failure_has_the_command_and_what_it_said(
    root: Root, script: str, kind: type[NvidiaSmiError], words: list[str]
) -> None:
    root.script(script)
    with pytest.raises(NvidiaSmiError) as raised:
        root.set_interval()
    assert type(raised.value) is kind
    for word in (f"{root.program} compute-policy -i {UUID} --set-timeslice 1", *words):
        assert word in str(raised.value)
    assert root.runs("not-supported" if kind is NotSupportedByGpu else "failed") == 1


def test_a_failure_that_says_too_much_is_cut(root: Root) -> None:
    root.script("seq 1 5000; exit 1")
    with pytest.raises(NvidiaSmiError, match=r"4999 5000$") as raised:
        root.set_interval()
    assert len(str(raised.value)) < 600 + len(str(root.program))


def test_b107_without_the_program_the_paths_searched_are_named(root: Root) -> None:
    with pytest.raises(NvidiaSmiError) as raised:
        root.set_interval()
    for folder in ("usr/bin", "usr/sbin", "opt/bin"):
        assert str(root.folder / folder / "nvidia-smi") in str(raised.value)


def test_a_program_that_cannot_be_started_is_named(root: Root) -> None:
    root.program.write_bytes(b"\x7fELF of no machine")
    root.program.chmod(0o755)
    with pytest.raises(NvidiaSmiError, match=r"usr/bin/nvidia-smi compute-policy .* cannot be started"):
        root.set_interval()


def test_b106_a_program_that_hangs_is_killed_with_what_it_started_and_leaves_no_zombie(root: Root) -> None:
    root.script("echo $$ > leader; sleep 3600 & echo $! > child; wait")
    with pytest.raises(NvidiaSmiError) as raised:
        root.set_interval(timeout=2)
    for word in (f"nvidia-smi compute-policy -i {UUID} --set-timeslice 1", "within 2 s", "was killed"):
        assert word in str(raised.value)
    leader, child = (int((root.folder / name).read_text()) for name in ("leader", "child"))
    assert not Path(f"/proc/{leader}").exists()
    deadline = time.monotonic() + 10
    # It is an orphan now, and reaped by whoever takes up orphans.
    while _state(child) not in "ZX" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert _state(child) in "ZX"
    assert root.runs("failed") == 1


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "X"


def test_a_program_that_outlives_this_process_keeps_the_gpu_locked(root: Root) -> None:
    root.script("sleep 3600 </dev/null >/dev/null 2>&1 & echo $! > child")
    fcntl.flock(root.lock, fcntl.LOCK_EX)
    root.set_interval()
    os.close(root.lock)
    root.lock = os.open(root.folder / "lock", os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(root.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.kill(int((root.folder / "child").read_text()), 9)
    fcntl.flock(root.lock, fcntl.LOCK_EX)
