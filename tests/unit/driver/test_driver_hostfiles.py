from __future__ import annotations

from pathlib import Path

import pytest

from driver.hostfiles import HostRoots
from driver.inventory import PciAddress

_PCI = PciAddress(0, 0x65, 0, 0)


@pytest.fixture
def roots(tmp_path: Path) -> HostRoots:
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    return HostRoots(tmp_path / "proc", tmp_path / "sys")


def _add(
    roots: HostRoots, address: str, vendor: str = "0x10de", kind: str = "0x030200", **files: str
) -> Path:
    function = roots.sys / "devices/pci0000:64/0000:64:01.0" / address
    function.mkdir(parents=True)
    for name, text in {"vendor": vendor, "class": kind, **files}.items():
        (function / name).write_text(text + "\n")
    target = Path("../../../devices/pci0000:64/0000:64:01.0") / address
    (roots.sys / "bus/pci/devices" / address).symlink_to(target)
    return function


@pytest.mark.parametrize(("text", "node"), [("1", 1), ("0", 0), ("-1", None)])
def test_b022_the_numa_node(roots: HostRoots, text: str, node: int | None) -> None:
    _add(roots, str(_PCI), numa_node=text)
    assert roots.numa_node(_PCI) == node


def test_b022_a_missing_numa_file_is_an_error_to_catch(roots: HostRoots) -> None:
    _add(roots, str(_PCI))
    with pytest.raises(OSError, match="numa_node"):
        roots.numa_node(_PCI)


def test_the_root_complex_is_the_first_part_of_the_link(roots: HostRoots) -> None:
    _add(roots, str(_PCI))
    assert roots.pcie_root(_PCI) == "pci0000:64"


def test_a_link_without_root_complex_is_refused(roots: HostRoots) -> None:
    (roots.sys / "bus/pci/devices" / str(_PCI)).symlink_to("../../../devices/platform/gpu")
    with pytest.raises(ValueError, match="names no root complex"):
        roots.pcie_root(_PCI)


def test_b005_only_functions_that_wait_for_a_gpu_driver_are_counted(roots: HostRoots) -> None:
    _add(roots, "0000:65:00.0")
    _add(roots, "0000:66:00.0", kind="0x030000")
    _add(roots, "0000:66:00.1", kind="0x040300")
    _add(roots, "0000:05:00.0", kind="0x068000")
    _add(roots, "0000:07:00.0", vendor="0x1a03")
    (_add(roots, "0000:67:00.0") / "physfn").symlink_to("../0000:65:00.0")
    (_add(roots, "0000:68:00.0") / "driver").symlink_to("../../../../bus/pci/drivers/vfio-pci")
    (_add(roots, "0000:69:00.0") / "driver").symlink_to("../../../../bus/pci/drivers/nvidia")
    _add(roots, "0000:6a:00.0", vendor="unreadable")
    found = list(map(str, roots.nvidia_display_functions()))
    assert found == ["0000:65:00.0", "0000:66:00.0", "0000:69:00.0"]


def test_b006_a_node_without_pci_has_no_functions(tmp_path: Path) -> None:
    assert HostRoots(tmp_path, tmp_path).nvidia_display_functions() == ()


def test_the_boot_id(roots: HostRoots) -> None:
    (roots.proc / "sys/kernel/random").mkdir(parents=True)
    (roots.proc / "sys/kernel/random/boot_id").write_text("3b2c\n")
    assert roots.boot_id() == "3b2c"
