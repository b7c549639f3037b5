"""The folder that stands for a container in the demo has what a CDI spec gives to one, and no more."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from examples.container import CANNOT_ENTER, assemble, edits_for, entries


def node(path: str) -> dict[str, Any]:
    return {"path": path, "hostPath": f"/elsewhere{path}"}


def device(name: str, *nodes: str) -> dict[str, Any]:
    return {"name": name, "containerEdits": {"deviceNodes": [node(path) for path in nodes]}}


def spec(folder: Path) -> dict[str, Any]:
    library = folder / "lib/libcuda.so.1"
    library.parent.mkdir()
    library.write_text("library")
    firmware = folder / "firmware"
    firmware.mkdir()
    (firmware / "gsp.bin").write_text("firmware")
    mounts = [
        {"hostPath": str(library), "containerPath": "/usr/lib/libcuda.so.1"},
        {"hostPath": str(firmware), "containerPath": "/lib/firmware/nvidia/1.2"},
    ]
    common = {"env": ["NAME=value"], "deviceNodes": [node("/dev/nvidiactl")], "mounts": mounts}
    devices = [device("a", "/dev/nvidia0"), device("b", "/dev/nvidia1")]
    return {"devices": devices, "containerEdits": common}


def test_container_has_its_devices_and_what_is_common(tmp_path: Path) -> None:
    container = tmp_path / "container"
    edits = edits_for(spec(tmp_path), ["b"])
    assemble(container, edits)
    files = {str(path.relative_to(container)) for path in container.rglob("*") if path.is_file()}
    assert files == {
        "dev/nvidiactl",
        "dev/nvidia1",
        "usr/lib/libcuda.so.1",
        "lib/firmware/nvidia/1.2/gsp.bin",
    }
    assert (container / "usr/lib/libcuda.so.1").read_text() == "library"
    assert entries(edits, "env") == ["NAME=value"]


def test_folder_that_cannot_be_entered_has_a_status_of_its_own(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.container", str(tmp_path / "missing"), "/bin/true"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == CANNOT_ENTER
    assert "cannot enter" in done.stderr
