from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

from cdi.driverroot import LIBRARY_FOLDERS, PROGRAM_FOLDERS, DriverRoot, DriverRootError
from cdi.elf import SharedObject, read_shared_object
from cdi.ldcache import library_paths
from tests.unit.cdi import drivertrees
from tests.unit.cdi.drivertrees import VERSION, elf, link, write

TREES: list[tuple[Callable[[Path], None], str, str, str]] = [
    (drivertrees.ubuntu, "/", f"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{VERSION}", "usr/bin/nvidia-smi"),
    (
        drivertrees.debian,
        "/",
        f"usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.{VERSION}",
        "usr/lib/nvidia/current/nvidia-smi",
    ),
    (drivertrees.rhel, "/run/nvidia/driver", f"usr/lib64/libnvidia-ml.so.{VERSION}", "usr/bin/nvidia-smi"),
    (drivertrees.cos, "/home/kubernetes/bin/nvidia", f"lib64/libnvidia-ml.so.{VERSION}", "bin/nvidia-smi"),
    (
        drivertrees.talos,
        "/",
        f"usr/local/glibc/usr/lib/libnvidia-ml.so.{VERSION}",
        "usr/local/bin/nvidia-smi",
    ),
    (drivertrees.wsl, "/", "usr/lib/wsl/lib/libnvidia-ml.so.1", "usr/lib/wsl/lib/nvidia-smi"),
]


@pytest.mark.parametrize(
    ("tree", "host", "library", "program"), TREES, ids=lambda v: getattr(v, "__name__", "")
)
def test_b165_each_layout_resolves_nvml_and_nvidia_smi(
    tmp_path: Path, tree: Callable[[Path], None], host: str, library: str, program: str
) -> None:
    tree(tmp_path)
    root = DriverRoot(tmp_path, host)
    assert root.find_library("libnvidia-ml.so.1") == tmp_path / library
    assert root.find_program("nvidia-smi") == tmp_path / program
    assert root.on_host(PurePosixPath(program)) == f"{host.rstrip('/')}/{program}"
    assert root.in_container(PurePosixPath(program)) == f"/{program}"


def test_b166_an_empty_root_names_every_path_tried(tmp_path: Path) -> None:
    root = DriverRoot(tmp_path, "/run/nvidia/driver")
    with pytest.raises(DriverRootError) as library:
        root.find_library("libnvidia-ml.so.1")
    for folder in LIBRARY_FOLDERS:
        assert str(tmp_path / folder / "libnvidia-ml.so.1") in str(library.value)
    assert "/run/nvidia/driver" in str(library.value)
    assert "Install the NVIDIA driver" in str(library.value)
    with pytest.raises(DriverRootError) as program:
        root.find_program("nvidia-smi")
    for folder in PROGRAM_FOLDERS:
        assert str(tmp_path / folder / "nvidia-smi") in str(program.value)


def test_b166_a_root_that_does_not_exist_is_like_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(DriverRootError, match="was not found"):
        DriverRoot(tmp_path / "absent", "/").find_library("libnvidia-ml.so.1")


def test_b167_a_root_filled_later_is_found_by_the_same_object(tmp_path: Path) -> None:
    root = DriverRoot(tmp_path / "driver", "/run/nvidia/driver")
    with pytest.raises(DriverRootError):
        root.find_library("libnvidia-ml.so.1")
    drivertrees.rhel(tmp_path / "driver")
    assert root.find_library("libnvidia-ml.so.1").name == f"libnvidia-ml.so.{VERSION}"


def test_an_absolute_link_starts_at_the_driver_root(tmp_path: Path) -> None:
    write(tmp_path / "opt/real/libx.so.1", b"inside")
    link(tmp_path / "usr/lib64/libx.so.1", "/opt/real/libx.so.1")
    assert DriverRoot(tmp_path, "/").find_library("libx.so.1").read_bytes() == b"inside"


def test_a_link_cannot_lead_out_of_the_driver_root(tmp_path: Path) -> None:
    write(tmp_path / "outside/libx.so.1", b"outside")
    write(tmp_path / "root/outside/libx.so.1", b"inside")
    link(tmp_path / "root/usr/lib64/libx.so.1", "../../../../../outside/libx.so.1")
    assert DriverRoot(tmp_path / "root", "/").find_library("libx.so.1").read_bytes() == b"inside"


def test_a_link_to_the_hosts_path_of_the_root_is_understood(tmp_path: Path) -> None:
    host = "/home/kubernetes/bin/nvidia"
    write(tmp_path / "lib64/libx.so.1.2")
    link(tmp_path / "lib64/libx.so.1", f"{host}/lib64/libx.so.1.2")
    assert DriverRoot(tmp_path, host).find_library("libx.so.1") == tmp_path / "lib64/libx.so.1.2"


@pytest.mark.parametrize("target", ["libx.so.1", "absent"])
def test_a_link_in_a_circle_or_to_nothing_is_not_found(tmp_path: Path, target: str) -> None:
    link(tmp_path / "usr/lib64/libx.so.1", target)
    with pytest.raises(DriverRootError):
        DriverRoot(tmp_path, "/").find_library("libx.so.1")


def test_a_folder_of_the_loaders_cache_is_searched(tmp_path: Path) -> None:
    write(tmp_path / "opt/nvidia/lib/libnvidia-ml.so.1")
    write(
        tmp_path / "etc/ld.so.cache",
        loader_cache([("libnvidia-ml.so.1", "/opt/nvidia/lib/libnvidia-ml.so.1")]),
    )
    root = DriverRoot(tmp_path, "/")
    assert root.find_library("libnvidia-ml.so.1") == tmp_path / "opt/nvidia/lib/libnvidia-ml.so.1"


def loader_cache(entries: list[tuple[str, str]]) -> bytes:
    offset = 48 + 24 * len(entries)
    table, strings = b"", b""
    for name, path in entries:
        name_at = offset + len(strings)
        strings += name.encode() + b"\0"
        path_at = offset + len(strings)
        strings += path.encode() + b"\0"
        table += struct.pack("<iIIIQ", 0x0303, name_at, path_at, 0, 0)
    return struct.pack("<20sII20x", b"glibc-ld.so.cache1.1", len(entries), len(strings)) + table + strings


def test_loader_cache_gives_paths_by_name() -> None:
    cache = loader_cache([("libcuda.so.1", "/a/libcuda.so.1"), ("libc.so.6", "/b/libc.so.6")])
    assert library_paths(cache, prefixes=("libcuda",)) == ["/a/libcuda.so.1"]
    old_format_before = b"ld.so-1.7.0\0" + struct.pack("<I", 0) + cache
    assert library_paths(old_format_before, prefixes=("libcuda",)) == ["/a/libcuda.so.1"]


@pytest.mark.parametrize("content", [b"", b"junk", b"glibc-ld.so.cache1.1", loader_cache([("a", "/a")])[:60]])
def test_a_damaged_loader_cache_has_no_libraries(content: bytes) -> None:
    assert library_paths(content, prefixes=("a",)) == []


def test_elf_tells_soname_and_machine(tmp_path: Path) -> None:
    write(tmp_path / "x86", elf("libcuda.so.1"))
    write(tmp_path / "arm", elf("libcuda.so.1", machine=183))
    assert read_shared_object(tmp_path / "x86") == SharedObject(64, "x86_64", "libcuda.so.1")
    assert read_shared_object(tmp_path / "arm") == SharedObject(64, "aarch64", "libcuda.so.1")


def test_elf_of_32_bit_is_told_apart(tmp_path: Path) -> None:
    write(tmp_path / "lib", b"\x7fELF\x01\x01")
    assert read_shared_object(tmp_path / "lib") == SharedObject(32, "", None)


@pytest.mark.parametrize("length", [0, 3, 16, 40, 100, 200])
def test_a_damaged_elf_file_has_no_soname(tmp_path: Path, length: int) -> None:
    write(tmp_path / "lib", elf("libcuda.so.1")[:length])
    found = read_shared_object(tmp_path / "lib")
    assert found is None or found.soname is None
