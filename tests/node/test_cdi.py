"""CDI specs of the running plugin: what is in them, where they lie, and what happens around them."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdi.spec import SpecError, from_json
from tests.cluster.api import wait_until
from tests.harness.claims import Claim, create_claim, result
from tests.harness.plugin import PluginNode
from tests.node.conftest import MakeNode
from tests.unit.cdi.cdivalidator import validate

CONTROL = {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"}


@pytest.fixture
def t4s(make_node: MakeNode) -> PluginNode:
    node = make_node("t4x4")
    node.flags["hooks"] = "none"
    node.start()
    node.wait_published(4)
    return node


def prepared(node: PluginNode, gpu: int = 0) -> Claim:
    """A new claim for one whole GPU, prepared."""
    claim = create_claim(node.api, [result(sorted(node.published())[gpu], node.name)])
    answer = node.kubelet.prepare_one(claim)
    assert answer.error == ""
    return claim


def common(node: PluginNode, claim: Claim) -> dict[str, Any]:
    edits: dict[str, Any] = node.cdi_spec(claim.uid)["containerEdits"]
    return edits


def control_nodes(node: PluginNode, claim: Claim) -> set[str]:
    return {entry["path"] for entry in common(node, claim)["deviceNodes"]}


def give_back(node: PluginNode, claim: Claim) -> None:
    assert node.kubelet.unprepare_one(claim).error == ""


def test_a_spec_is_valid_readable_by_all_and_names_what_a_container_needs(t4s: PluginNode) -> None:
    claim = prepared(t4s)
    path = t4s.cdi_root / f"gpudra.io-claim_{claim.uid}.json"
    assert path.stat().st_mode & 0o777 == 0o644
    validate(path.read_bytes())
    edits = common(t4s, claim)
    assert edits["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    assert control_nodes(t4s, claim) == CONTROL
    for entry in edits["deviceNodes"]:
        status = (t4s.gpus.root / entry["path"].lstrip("/")).stat()
        assert (entry["major"], entry["minor"]) == (os.major(status.st_rdev), os.minor(status.st_rdev))
    for mount in edits["mounts"]:
        assert mount["hostPath"].startswith(f"{t4s.gpus.root}/")
        assert not mount["containerPath"].startswith(str(t4s.gpus.root))
        assert "ro" in mount["options"] or "noexec" in mount["options"]
    targets = {mount["containerPath"] for mount in edits["mounts"]}
    assert "/usr/bin/nvidia-smi" in targets
    assert "/usr/lib/x86_64-linux-gnu/libcuda.so.1" in targets


def test_b120_no_gpu_node_is_an_error_that_names_it_and_is_not_remembered(t4s: PluginNode) -> None:
    node_path = t4s.gpus.root / "dev/nvidia0"
    device = node_path.stat().st_rdev
    node_path.unlink()
    claim = create_claim(t4s.api, [result(sorted(t4s.published())[0], t4s.name)])
    error = t4s.kubelet.prepare_one(claim).error
    assert str(node_path) in error
    assert t4s.cdi_files() == []
    assert t4s.claims_in_store() == {}

    os.mknod(node_path, 0o20666, device)
    assert t4s.kubelet.prepare_one(claim).error == ""
    assert t4s.device_nodes(claim.uid) == {sorted(t4s.published())[0]: ["/dev/nvidia0"]}


def test_b121_control_nodes_that_come_and_go_are_followed(t4s: PluginNode) -> None:
    give_back(t4s, prepared(t4s))
    gone = {}
    for name in ("nvidia-uvm", "nvidia-modeset"):
        path = t4s.gpus.root / "dev" / name
        gone[path] = path.stat().st_rdev
        path.unlink()
    claim = prepared(t4s)
    assert control_nodes(t4s, claim) == {"/dev/nvidiactl", "/dev/nvidia-uvm-tools"}
    t4s.wait_log("load the nvidia-uvm kernel module")
    give_back(t4s, claim)
    give_back(t4s, prepared(t4s))
    assert t4s.log().count("load the nvidia-uvm kernel module") == 1

    for path, device in gone.items():
        os.mknod(path, 0o20666, device)
    claim = prepared(t4s)
    assert control_nodes(t4s, claim) == CONTROL


def test_sockets_and_libraries_that_come_and_go_are_followed(t4s: PluginNode) -> None:
    give_back(t4s, prepared(t4s))
    folder = t4s.gpus.root / "run/nvidia-persistenced"
    folder.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        claim = prepared(t4s)
        targets = {mount["containerPath"] for mount in common(t4s, claim)["mounts"]}
        assert "/run/nvidia-persistenced/socket" in targets
        give_back(t4s, claim)
    (folder / "socket").unlink()
    library = next((t4s.gpus.root / "usr/lib/x86_64-linux-gnu").glob("libnvidia-eglcore.so.*"))
    library.unlink()
    claim = prepared(t4s)
    targets = {mount["containerPath"] for mount in common(t4s, claim)["mounts"]}
    assert "/run/nvidia-persistenced/socket" not in targets
    assert not [path for path in targets if "eglcore" in path]


def test_b122_without_libcuda_the_error_names_the_paths(t4s: PluginNode) -> None:
    for path in (t4s.gpus.root / "usr/lib/x86_64-linux-gnu").glob("libcuda.so*"):
        path.unlink()
    claim = create_claim(t4s.api, [result(sorted(t4s.published())[0], t4s.name)])
    error = t4s.kubelet.prepare_one(claim).error
    assert "libcuda.so" in error
    assert str(t4s.gpus.root) in error
    assert t4s.cdi_files() == []


def test_b126_hooks_are_of_one_stage_or_none(make_node: MakeNode) -> None:
    node = make_node("t4x4")
    tool = node.gpus.root / "usr/bin/nvidia-cdi-hook"
    node.start(hooks="none")
    node.wait_published(4)
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    claim = prepared(node)
    assert "hooks" not in common(node, claim)
    give_back(node, claim)
    node.stop()

    node.start()
    node.wait_published(4)
    claim = prepared(node)
    hooks = common(node, claim)["hooks"]
    assert {hook["hookName"] for hook in hooks} == {"createContainer"}
    assert {hook["path"] for hook in hooks} == {str(tool)}
    validate((node.cdi_root / f"gpudra.io-claim_{claim.uid}.json").read_bytes())
    give_back(node, claim)

    tool.unlink()
    claim = prepared(node)
    assert "hooks" not in common(node, claim), "a hook program that has gone would fail every container"


@pytest.fixture
def read_only(make_node: MakeNode) -> Iterator[PluginNode]:
    """A node whose CDI folder lies on a read-only file system."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    node = make_node("t4x4")
    node.cdi_root.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "ro", "cdi", str(node.cdi_root)]
    if subprocess.run(mount, check=False, capture_output=True, timeout=10).returncode != 0:
        pytest.skip("this machine does not let us mount")
    yield node
    subprocess.run(["umount", "--lazy", str(node.cdi_root)], check=True, timeout=10)


def test_b124_a_read_only_cdi_folder_is_named(read_only: PluginNode) -> None:
    node = read_only
    node.start()
    node.wait_log("no claim can be prepared: CDI folder")
    node.wait_published(4)
    claim = create_claim(node.api, [result(sorted(node.published())[0], node.name)])
    error = node.kubelet.prepare_one(claim).error
    assert f"CDI folder {node.cdi_root}" in error
    assert "Read-only file system" in error
    assert "--cdi-root" in error
    assert node.claims_in_store() == {}
    remount = ["mount", "-o", "remount,rw", str(node.cdi_root)]
    subprocess.run(remount, check=True, timeout=10)
    assert node.kubelet.prepare_one(claim).error == ""


def test_b124_specs_go_to_the_folder_that_was_chosen(make_node: MakeNode) -> None:
    node = make_node("t4x4")
    chosen = node.folder / "a/b/cdi"
    node.start(cdi_root=str(chosen))
    node.wait_published(4)
    claim = prepared(node)
    assert [path.name for path in chosen.iterdir()] == [f"gpudra.io-claim_{claim.uid}.json"]
    assert node.cdi_files() == []


def test_b127_a_spec_that_was_deleted_is_made_again_with_the_same_ids(t4s: PluginNode) -> None:
    claim = prepared(t4s)
    before, ids = t4s.cdi_spec(claim.uid), t4s.kubelet.prepare_one(claim).cdi_ids
    path = t4s.cdi_root / f"gpudra.io-claim_{claim.uid}.json"
    written = path.stat().st_ino
    assert t4s.kubelet.prepare_one(claim).cdi_ids == ids
    assert path.stat().st_ino == written, "a spec that is right is not written again"

    path.unlink()
    t4s.cdi_root.rmdir()
    assert t4s.kubelet.prepare_one(claim).cdi_ids == ids
    assert t4s.cdi_spec(claim.uid) == before

    path.write_text(path.read_text()[:100])
    assert t4s.kubelet.prepare_one(claim).cdi_ids == ids
    assert t4s.cdi_spec(claim.uid) == before


def test_b128_dead_specs_of_ours_go_and_others_stay(make_node: MakeNode) -> None:
    node = make_node("t4x4")
    node.start(cleanup_seconds="1")
    node.wait_published(4)
    claim = prepared(node)
    node.stop()
    ours = node.cdi_root / f"gpudra.io-claim_{claim.uid}.json"
    foreign = [
        node.cdi_root / name
        for name in ("k8s.gpu.nvidia.com-claim_1234.json", "nvidia.yaml", "gpudra.io-other.json", "notes.txt")
    ]
    dead = [
        node.cdi_root / "gpudra.io-claim_5a0e4d52-0000-0000-0000-000000000000.json",
        node.cdi_root / "gpudra.io-claim_5a0e4d52.0123456789abcdef.tmp",
    ]
    for path in (*foreign, *dead):
        path.write_text(ours.read_text())
    hour_ago = time.time() - 3600
    os.utime(dead[1], (hour_ago, hour_ago))

    node.start(cleanup_seconds="1")
    wait_until(lambda: not any(path.exists() for path in dead), "dead specs are swept at the start", 10.0)
    dead[0].write_text("{}")
    wait_until(lambda: not dead[0].exists(), "dead specs are swept now and then", 10.0)
    assert all(path.exists() for path in (*foreign, ours))


def test_b129_a_reader_never_sees_an_incomplete_spec(t4s: PluginNode) -> None:
    claims = [
        create_claim(t4s.api, [result(name, t4s.name)]) for name in sorted(t4s.published()) for _ in range(3)
    ]
    ended = threading.Event()
    seen: list[int] = []
    wrong: list[str] = []

    def read() -> None:
        while not ended.is_set():
            for path in Path(t4s.cdi_root).glob("*.json"):
                try:
                    from_json(path.read_bytes())
                    seen.append(path.stat().st_mode & 0o777)
                except FileNotFoundError:
                    continue
                except SpecError as error:
                    wrong.append(str(error))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(10):
            for group in range(3):
                batch = claims[group::3]
                assert {answer.error for answer in t4s.kubelet.prepare(*batch).values()} == {""}
                assert {answer.error for answer in t4s.kubelet.unprepare(*batch).values()} == {""}
    finally:
        ended.set()
        reader.join(10.0)
    assert wrong == []
    assert len(seen) > 20
    assert set(seen) == {0o644}
    assert t4s.cdi_files() == []
