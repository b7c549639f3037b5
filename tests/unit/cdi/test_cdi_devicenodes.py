from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from cdi.devicenodes import DeviceNodeError, control_edits, gpu_edits, mig_edits
from cdi.spec import DeviceNode
from tests.unit.cdi.drivertrees import link, mig_instance, node_files, write


def test_b073_mig_capability_nodes_need_not_exist_on_the_host(tmp_path: Path) -> None:
    node_files(tmp_path)
    mig_instance(tmp_path, minor=0, gi=3, gi_minor=30, ci=0, ci_minor=31)
    edits = mig_edits(tmp_path, "/", tmp_path / "proc", minor=0, gi=3, ci=0)
    assert edits.device_nodes == (
        DeviceNode("/dev/nvidia0", None, "c", 195, 0, 0o666, "rw"),
        DeviceNode("/dev/nvidia-caps/nvidia-cap30", None, "c", 234, 30, 0o444, "rw"),
        DeviceNode("/dev/nvidia-caps/nvidia-cap31", None, "c", 234, 31, 0o444, "rw"),
    )


@pytest.mark.parametrize("missing", ["gi3/access", "gi3/ci0/access"])
def test_b073_a_missing_access_file_is_named(tmp_path: Path, missing: str) -> None:
    node_files(tmp_path)
    mig_instance(tmp_path, minor=0, gi=3, gi_minor=30, ci=0, ci_minor=31)
    access = tmp_path / "proc/driver/nvidia/capabilities/gpu0/mig" / missing
    access.unlink()
    with pytest.raises(DeviceNodeError, match=f"{access} cannot be read"):
        mig_edits(tmp_path, "/", tmp_path / "proc", minor=0, gi=3, ci=0)


def test_b073_an_access_file_without_a_minor_is_named(tmp_path: Path) -> None:
    node_files(tmp_path)
    mig_instance(tmp_path, minor=0, gi=3, gi_minor=30, ci=0, ci_minor=31)
    access = tmp_path / "proc/driver/nvidia/capabilities/gpu0/mig/gi3/access"
    access.write_text("junk")
    with pytest.raises(DeviceNodeError, match=f"{access} has no DeviceFileMinor"):
        mig_edits(tmp_path, "/", tmp_path / "proc", minor=0, gi=3, ci=0)


def test_mig_without_a_major_for_capabilities_is_named(tmp_path: Path) -> None:
    node_files(tmp_path)
    (tmp_path / "proc/devices").write_text("Character devices:\n195 nvidia\n")
    mig_instance(tmp_path, minor=0, gi=3, gi_minor=30, ci=0, ci_minor=31)
    with pytest.raises(DeviceNodeError, match="has no line for nvidia-caps"):
        mig_edits(tmp_path, "/", tmp_path / "proc", minor=0, gi=3, ci=0)


def test_b074_two_mig_devices_of_one_parent_have_their_own_nodes(tmp_path: Path) -> None:
    node_files(tmp_path, gpus=3)
    mig_instance(tmp_path, minor=2, gi=1, gi_minor=282, ci=0, ci_minor=283)
    mig_instance(tmp_path, minor=2, gi=2, gi_minor=291, ci=1, ci_minor=293)
    paths = [
        [node.path for node in mig_edits(tmp_path, "/", tmp_path / "proc", 2, gi, ci).device_nodes]
        for gi, ci in ((1, 0), (2, 1))
    ]
    assert paths == [
        ["/dev/nvidia2", "/dev/nvidia-caps/nvidia-cap282", "/dev/nvidia-caps/nvidia-cap283"],
        ["/dev/nvidia2", "/dev/nvidia-caps/nvidia-cap291", "/dev/nvidia-caps/nvidia-cap293"],
    ]


def test_b120_a_missing_gpu_node_is_named_and_found_when_it_appears(tmp_path: Path) -> None:
    node_files(tmp_path, gpus=0)
    mig_instance(tmp_path, minor=0, gi=3, gi_minor=30, ci=0, ci_minor=31)
    for _ in range(2):
        with pytest.raises(DeviceNodeError, match=str(tmp_path / "dev/nvidia0")):
            gpu_edits(tmp_path, "/", 0, "0000:65:00.0", proc_root=tmp_path / "proc")
        with pytest.raises(DeviceNodeError, match=str(tmp_path / "dev/nvidia0")):
            mig_edits(tmp_path, "/", tmp_path / "proc", 0, 3, 0)
    write(tmp_path / "dev/nvidia0")
    edits = gpu_edits(tmp_path, "/", 0, "0000:65:00.0", proc_root=tmp_path / "proc")
    assert [node.path for node in edits.device_nodes] == ["/dev/nvidia0"]


def test_b121_the_control_nodes_that_exist_are_listed(tmp_path: Path) -> None:
    node_files(tmp_path, without=["nvidia-uvm", "nvidia-modeset"])
    edits, missing = control_edits(tmp_path, "/", tmp_path / "proc")
    assert edits.device_nodes == (
        DeviceNode("/dev/nvidiactl", None, "c", 195, 255, 0o666, "rw"),
        DeviceNode("/dev/nvidia-uvm-tools", None, "c", 508, 1, 0o666, "rw"),
    )
    assert missing == ("/dev/nvidia-uvm", "/dev/nvidia-modeset")


def test_host_path_is_given_only_where_it_differs(tmp_path: Path) -> None:
    node_files(tmp_path)
    mig_instance(tmp_path, minor=0, gi=3, gi_minor=30, ci=0, ci_minor=31)
    edits = mig_edits(tmp_path, "/run/nvidia/driver", tmp_path / "proc", 0, 3, 0)
    assert [(node.path, node.host_path) for node in edits.device_nodes] == [
        ("/dev/nvidia0", "/run/nvidia/driver/dev/nvidia0"),
        ("/dev/nvidia-caps/nvidia-cap30", "/run/nvidia/driver/dev/nvidia-caps/nvidia-cap30"),
        ("/dev/nvidia-caps/nvidia-cap31", "/run/nvidia/driver/dev/nvidia-caps/nvidia-cap31"),
    ]


def test_a_real_node_gives_its_own_numbers_and_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    null = Path("/dev/null").stat()
    link(tmp_path / "dev/nvidia7", "/dev/null")
    edits = gpu_edits(tmp_path, "/", 7, "0000:65:00.0", proc_root=tmp_path)
    (node,) = edits.device_nodes
    assert (node.major, node.minor) == (os.major(null.st_rdev), os.minor(null.st_rdev))
    assert node.file_mode == null.st_mode & 0o777


@pytest.mark.parametrize("pci", ["0000:65:00.0", "00000000:65:00.0"])
def test_drm_nodes_of_this_gpu_are_added(tmp_path: Path, pci: str) -> None:
    node_files(tmp_path)
    for name in ("card0", "card1", "renderD128", "renderD129"):
        link(tmp_path / "dev/dri" / name, "/dev/null")
    for suffix, target in (("card", "card1"), ("render", "renderD129")):
        link(tmp_path / f"dev/dri/by-path/pci-0000:65:00.0-{suffix}", f"../{target}")
    edits = gpu_edits(tmp_path, "/", 0, pci, proc_root=tmp_path / "proc")
    assert [node.path for node in edits.device_nodes] == [
        "/dev/nvidia0",
        "/dev/dri/card1",
        "/dev/dri/renderD129",
    ]
    other = gpu_edits(tmp_path, "/", 0, "0000:66:00.0", proc_root=tmp_path / "proc")
    assert [node.path for node in other.device_nodes] == ["/dev/nvidia0"]


def test_a_malformed_pci_address_is_named(tmp_path: Path) -> None:
    node_files(tmp_path)
    with pytest.raises(ValueError, match='PCI address "gpu0"'):
        gpu_edits(tmp_path, "/", 0, "gpu0", proc_root=tmp_path / "proc")


def test_without_proc_devices_nvidias_fixed_major_holds(tmp_path: Path) -> None:
    node_files(tmp_path)
    shutil.rmtree(tmp_path / "proc")
    (node,) = gpu_edits(tmp_path, "/", 0, "0000:65:00.0", proc_root=tmp_path / "proc").device_nodes
    assert (node.type, node.major, node.minor) == ("c", 195, 0)
    edits, _ = control_edits(tmp_path, "/", tmp_path / "proc")
    uvm = next(node for node in edits.device_nodes if node.path == "/dev/nvidia-uvm")
    assert (uvm.type, uvm.major, uvm.minor) == ("", None, None)
