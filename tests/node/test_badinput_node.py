"""A node that is not as it should be: folders, disks, database, driver, API server."""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cluster.api import wait_until
from tests.harness.claims import create_claim, result
from tests.harness.plugin import PluginNode

MakeNode = Callable[..., PluginNode]

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")


def mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *map(str, arguments)], check=True, timeout=30)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A file system of 64 KiB at ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    mount("-t", "tmpfs", "-o", "size=64k", "tmpfs", folder)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=30)


def fill(folder: Path) -> Path:
    """Take all the space that is left, by a file that is returned."""
    filler = folder / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    return filler


@contextlib.contextmanager
def store_locked(node: PluginNode) -> Iterator[None]:
    with contextlib.closing(sqlite3.connect(node.store_path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def kubeconfig_for(node: PluginNode, url: str) -> str:
    path = node.folder / "other.yaml"
    path.write_text(node.kubeconfig.read_text().replace(node.control_plane.url, url))
    return str(path)


@needs_root
def test_b124_a_read_only_cdi_folder_is_named_and_used_when_it_can_be_written(make_node: MakeNode) -> None:
    node = make_node()
    with small_disk(node.cdi_root):
        mount("-o", "remount,ro", node.cdi_root)
        node.start()
        node.wait_log(f"no claim can be prepared: CDI folder {node.cdi_root}: cannot write: Read-only")
        claim = create_claim(node.api, [result(sorted(node.wait_published(8))[0], node.name)])
        error = node.kubelet.prepare_one(claim).error
        assert f"CDI folder {node.cdi_root}" in error
        assert "Read-only file system; mount it read-write" in error
        assert node.claims_in_store() == {}
        mount("-o", "remount,rw", node.cdi_root)
        assert node.kubelet.prepare_one(claim).error == ""
        mount("-o", "remount,ro", node.cdi_root)
        assert "Read-only file system" in node.kubelet.unprepare_one(claim).error
        assert node.claims_in_store() == {claim.uid: "prepared"}
        mount("-o", "remount,rw", node.cdi_root)
        assert node.kubelet.unprepare_one(claim).error == ""
        assert (node.claims_in_store(), node.cdi_files()) == ({}, [])


@needs_root
def test_a_full_cdi_folder_is_named_and_nothing_is_left_in_it(make_node: MakeNode) -> None:
    node = make_node()
    with small_disk(node.cdi_root):
        node.start()
        claim = create_claim(node.api, [result(sorted(node.wait_published(8))[0], node.name)])
        filler = fill(node.cdi_root)
        error = node.kubelet.prepare_one(claim).error
        assert "No space left on device; free space on its file system" in error
        assert (node.claims_in_store(), node.cdi_files()) == ({}, ["filler"])
        filler.unlink()
        assert node.kubelet.prepare_one(claim).error == ""
        fill(node.cdi_root)
        assert node.kubelet.unprepare_one(claim).error == ""
        assert (node.claims_in_store(), node.cdi_files()) == ({}, ["filler"])


@needs_root
def test_a_full_data_folder_is_named_and_claims_go_on_when_there_is_space(make_node: MakeNode) -> None:
    node = make_node()
    node.data_path.mkdir(parents=True)
    mount("-t", "tmpfs", "-o", "size=256k", "tmpfs", node.data_path)
    try:
        node.start()
        names = sorted(node.wait_published(8))
        held = create_claim(node.api, [result(names[0], node.name)])
        assert node.kubelet.prepare_one(held).error == ""
        filler = fill(node.data_path)
        errors = []
        for _ in range(40):
            claim = create_claim(node.api, [result(names[1], node.name)])
            errors.append(node.kubelet.prepare_one(claim).error)
            if errors[-1]:
                break
            node.kubelet.unprepare_one(claim)
        assert f"{node.store_path}: database or disk is full; check that its disk" in errors[-1]
        assert len(node.cdi_files()) == 1
        filler.unlink()
        assert node.kubelet.prepare_one(claim).error == ""
        assert node.kubelet.unprepare_one(claim).error == ""
        assert node.kubelet.unprepare_one(held).error == ""
        assert (node.claims_in_store(), node.cdi_files()) == ({}, [])
    finally:
        node.stop()
        subprocess.run(["umount", "--lazy", str(node.data_path)], check=True, timeout=30)


def test_a_store_locked_by_another_process_is_named_and_claims_go_on_after_it(node: PluginNode) -> None:
    claim = create_claim(node.api, [result(sorted(node.wait_published(8))[0], node.name)])
    text = f"{node.store_path} was locked by another process for 10 s; trying again is safe"
    with store_locked(node), ThreadPoolExecutor(1) as pool:
        answer = pool.submit(node.kubelet.prepare_one, claim)
        beside = node.control_plane.workspace.start("plugin-locked-out", node.command(pod_uid="bbbb"))
        assert text in answer.result(20).error
        assert beside.wait(20) == 1
        assert f"gpu-kubelet-plugin: {text}" in beside.log.read_text()
    assert node.cdi_files() == []
    assert node.kubelet.prepare_one(claim).error == ""
    assert node.kubelet.unprepare_one(claim).error == ""


def test_a_store_of_a_newer_program_is_left_as_it_is(node: PluginNode) -> None:
    claim = create_claim(node.api, [result(sorted(node.wait_published(8))[0], node.name)])
    node.kubelet.prepare_one(claim)
    node.stop()
    with contextlib.closing(sqlite3.connect(node.store_path)) as connection:
        connection.execute("PRAGMA user_version=99")
    process = node.start(wait=False)
    assert process.wait(15) == 1
    assert f"{node.store_path} has schema 99, this program knows 1: run the newer program" in node.log()
    assert node.claims_in_store() == {claim.uid: "prepared"}
    assert node.cdi_files() != []
    with contextlib.closing(sqlite3.connect(node.store_path)) as connection:
        connection.execute("PRAGMA user_version=1")
    node.start()
    assert node.kubelet.unprepare_one(claim).error == ""


def test_an_api_server_that_is_away_is_named_by_prepare_and_publishing_goes_on_later(
    make_node: MakeNode,
) -> None:
    node = make_node()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        url = f"https://127.0.0.1:{port}"
        claim = create_claim(node.api, [result("gpu-0000-11-00-0", node.name)])
        node.start(kubeconfig=kubeconfig_for(node, url))
        started = time.monotonic()
        error = node.kubelet.prepare_one(claim, timeout=3).error
        assert time.monotonic() - started < 3
        assert f"claim default/{claim.name}" in error
        assert "the API server did not answer within" in error
    # Nobody listens now.
    error = node.kubelet.prepare_one(claim).error
    assert url in error
    assert "Connection refused" in error
    assert node.published() == {}
    Path(node.folder / "other.yaml").unlink()
    node.stop()
    node.start()
    node.wait_published(8)


def test_a_driver_root_without_a_driver_names_the_places_that_were_searched(make_node: MakeNode) -> None:
    node = make_node()
    empty = node.folder / "empty"
    empty.mkdir()
    node.start(driver_root=str(empty))
    wait_until(lambda: "libnvidia-ml.so.1" in node.log(), "the missing library to be named", 10)
    assert str(empty) in node.log()
    claim = create_claim(node.api, [result("gpu-0000-11-00-0", node.name)])
    error = node.kubelet.prepare_one(claim, timeout=2).error
    assert "libnvidia-ml.so.1" in error
    assert str(empty) in error
    assert node.kubelet.unprepare_one(claim).error == ""


def test_an_nvml_of_an_old_driver_serves_whole_gpus(make_node: MakeNode) -> None:
    node = make_node()
    symbols = [
        "nvmlDeviceGetGpuFabricInfoV",
        "nvmlDeviceGetAddressingMode",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetArchitecture",
    ]
    node.gpus.set_missing_symbols(symbols)
    node.start()
    name = sorted(node.wait_published(8))[0]
    claim = create_claim(node.api, [result(name, node.name)])
    assert node.kubelet.prepare_one(claim).names == [name]
    assert node.kubelet.unprepare_one(claim).error == ""


def test_a_library_without_the_first_call_of_nvml_is_named(make_node: MakeNode) -> None:
    node = make_node()
    node.gpus.set_missing_symbols(["nvmlInitWithFlags", "nvmlInit_v2"])
    node.start()
    node.wait_log("nvmlInitWithFlags")
    assert node.process is not None
    node.process.check_running()


def test_text_from_nvml_that_is_not_utf8_is_published_readably(make_node: MakeNode) -> None:
    node = make_node()
    node.gpus.set_gpu(0, name=b"NVIDIA \xff\xfe H100")
    node.start()
    devices = node.wait_published(8)
    name = sorted(devices)[0]
    product = devices[name]["attributes"]["productName"]["string"]
    assert product.startswith("NVIDIA ")
    assert product.endswith(" H100")
    claim = create_claim(node.api, [result(name, node.name)])
    assert node.kubelet.prepare_one(claim).names == [name]
    assert node.kubelet.unprepare_one(claim).error == ""


def test_a_call_that_hangs_fails_its_claim_in_time_and_is_named(make_node: MakeNode) -> None:
    node = make_node()
    node.start(nvml_timeout_seconds="1")
    first, second = sorted(node.wait_published(8))[:2]
    node.gpus.set_delay("nvmlDeviceGetHandleByPciBusId_v2", 2_500, gpu=0)
    stuck = create_claim(node.api, [result(first, node.name)])
    fine = create_claim(node.api, [result(second, node.name)])
    started = time.monotonic()
    answers = node.kubelet.prepare(stuck, fine)
    assert time.monotonic() - started < 3
    assert answers[fine.uid].error == ""
    assert "nvmlDeviceGetHandleByPciBusId_v2" in answers[stuck.uid].error
    assert first in answers[stuck.uid].error
    node.gpus.clear_faults()
    wait_until(lambda: node.kubelet.prepare_one(stuck).error == "", "the call to end", 10)
    node.kubelet.unprepare(stuck, fine)
    assert (node.claims_in_store(), node.cdi_files()) == ({}, [])


def test_a_device_that_is_gone_since_it_was_allocated_is_named(node: PluginNode) -> None:
    name = sorted(node.wait_published(8))[0]
    claim = create_claim(node.api, [result(name, node.name)])
    node.gpus.unplug(0)
    error = node.kubelet.prepare_one(claim).error
    assert name in error
    node.wait_published(7)
    assert name in node.kubelet.prepare_one(claim).error
    assert (node.claims_in_store(), node.cdi_files()) == ({}, [])


def test_settings_that_are_wrong_stop_the_start_and_are_named(make_node: MakeNode) -> None:
    node = make_node()
    cases = {
        "rescan_seconds": ("soon", "--rescan-seconds: 'soon' is not a number of seconds from 0.01"),
        "log_format": ("xml", "--log-format: 'xml' is not one of text, json"),
        "exclude": ("0000:zz:00.0", "0000:zz:00.0"),
        "kubeconfig": (str(node.folder / "none.yaml"), "none.yaml"),
        "http_address": ("here", "--http-address: 'here' is not HOST:PORT"),
    }
    start = node.control_plane.workspace.start
    processes = {
        name: start(f"plugin-{name}", node.command(**{name: value})) for name, (value, _) in cases.items()
    }
    for name, process in processes.items():
        assert process.wait(15) in (1, 2), name
        said = process.log.read_text()
        assert cases[name][1] in said, said
        assert "Traceback" not in said, said
