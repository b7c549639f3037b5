from __future__ import annotations

import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from cdi.claimspec import claim_spec
from cdi.devicenodes import gpu_edits
from cdi.drivermounts import CommonEdits, common_edits
from cdi.driverroot import DriverRoot, DriverRootError
from cdi.hooks import HookTool, find_hook_tool
from cdi.spec import ContainerEdits, to_json
from tests.unit.cdi import drivertrees
from tests.unit.cdi.cdivalidator import validate
from tests.unit.cdi.drivertrees import VERSION, elf, link, node_files, write

GOLDEN = Path(__file__).parent / "golden"
TREES: list[tuple[Callable[[Path], None], str]] = [
    (drivertrees.debian, "/"),
    (drivertrees.ubuntu, "/run/nvidia/driver"),
    (drivertrees.rhel, "/"),
    (drivertrees.cos, "/home/kubernetes/bin/nvidia"),
    (drivertrees.talos, "/"),
    (drivertrees.wsl, "/"),
]
HOOKS = HookTool("/usr/bin/nvidia-cdi-hook", ("nvidia-cdi-hook",), "/sbin/ldconfig")


def common(tree: Path, host: str, hooks: HookTool | None) -> CommonEdits:
    return common_edits(
        DriverRoot(tree, host),
        VERSION,
        dev_root=tree,
        host_dev_root="/",
        proc_root=tree / "proc",
        hooks=hooks,
    )


def lines(edits: ContainerEdits) -> str:
    """One line an entry, for a golden file that a person can read."""
    text = [f"env {entry}" for entry in edits.env]
    text += [f"node {node.path} {node.type} {node.major}:{node.minor}" for node in edits.device_nodes]
    text += [f"mount {mount.host_path} -> {mount.container_path}" for mount in edits.mounts]
    for hook in edits.hooks:
        text += [
            f"{hook.hook_name} {hook.path} {hook.args[1]}",
            *(f"    {argument}" for argument in hook.args[2:]),
        ]
    return "\n".join(text) + "\n"


@pytest.mark.parametrize("hooks", [HOOKS, None], ids=["hooks", "mounts"])
@pytest.mark.parametrize(("tree", "host"), TREES, ids=lambda value: getattr(value, "__name__", ""))
def test_b122_edits_equal_the_golden_list_of_each_distribution(
    tmp_path: Path, tree: Callable[[Path], None], host: str, hooks: HookTool | None
) -> None:
    tree(tmp_path)
    node_files(tmp_path)
    found = common(tmp_path, host, hooks)
    golden = GOLDEN / f"{tree.__name__}-{'mounts' if hooks is None else 'hooks'}.txt"
    assert lines(found.edits) == golden.read_text()
    assert found.warnings == ()


@pytest.mark.parametrize("hooks", [HOOKS, None], ids=["hooks", "mounts"])
@pytest.mark.parametrize(("tree", "host"), TREES, ids=lambda value: getattr(value, "__name__", ""))
def test_b165_host_paths_are_the_hosts_and_container_paths_have_no_root(
    tmp_path: Path, tree: Callable[[Path], None], host: str, hooks: HookTool | None
) -> None:
    tree(tmp_path)
    node_files(tmp_path)
    edits = common(tmp_path, host, hooks).edits
    for mount in edits.mounts:
        assert mount.host_path.startswith(host)
        assert (tmp_path / mount.host_path.removeprefix(host).lstrip("/")).exists()
        assert str(tmp_path) not in mount.container_path
        assert host == "/" or host not in mount.container_path
        assert mount.options[0] == "ro"
    targets = [mount.container_path for mount in edits.mounts]
    assert len(set(targets)) == len(targets)
    gpu = gpu_edits(tmp_path, "/", 0, "0000:65:00.0", proc_root=tmp_path / "proc")
    assert validate(to_json(claim_spec("0a", {"gpu": gpu}, edits)))["cdiVersion"] == "0.5.0"


def test_b122_graphics_libraries_are_mounted(tmp_path: Path) -> None:
    drivertrees.ubuntu(tmp_path)
    targets = {mount.container_path for mount in common(tmp_path, "/", HOOKS).edits.mounts}
    for part in ("eglcore", "glcore", "glsi", "tls"):
        assert f"/usr/lib/x86_64-linux-gnu/libnvidia-{part}.so.{VERSION}" in targets


def test_b122_an_absent_optional_library_is_left_out_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    drivertrees.install_libraries(tmp_path, "usr/lib64", [f"libcuda.so.{VERSION}"])
    node_files(tmp_path)
    with caplog.at_level("DEBUG"):
        found = common(tmp_path, "/", HOOKS)
    assert [mount.container_path for mount in found.edits.mounts] == [f"/usr/lib64/libcuda.so.{VERSION}"]
    assert found.warnings == ()
    assert "no program nvidia-smi" in caplog.text
    assert {record.levelname for record in caplog.records} == {"DEBUG"}


def test_b122_absent_libcuda_is_an_error_that_names_every_path(tmp_path: Path) -> None:
    drivertrees.install_libraries(tmp_path, "usr/lib64", [f"libnvidia-ml.so.{VERSION}"])
    with pytest.raises(DriverRootError) as caught:
        common(tmp_path, "/", None)
    assert f"{tmp_path}/usr/lib64/libcuda.so.{VERSION}" in str(caught.value)
    assert f"{tmp_path}/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}" in str(caught.value)


def test_libcuda_of_another_version_is_named_as_the_reason(tmp_path: Path) -> None:
    write(tmp_path / "usr/lib64/libcuda.so.550.54.15", elf("libcuda.so.1"))
    with pytest.raises(
        DriverRootError, match=r"Other versions are there: .*libcuda\.so\.550\.54\.15; the loaded"
    ):
        common(tmp_path, "/", None)


@pytest.mark.parametrize("missing", ["nvidiactl", "nvidia-uvm-tools", "nvidia-modeset"])
def test_b121_a_missing_control_node_is_left_out_silently(tmp_path: Path, missing: str) -> None:
    drivertrees.rhel(tmp_path)
    node_files(tmp_path, without=[missing])
    found = common(tmp_path, "/", None)
    assert f"/dev/{missing}" not in {node.path for node in found.edits.device_nodes}
    assert len(found.edits.device_nodes) == 3
    assert found.warnings == ()


def test_b121_a_missing_uvm_node_is_a_warning_with_the_hint(tmp_path: Path) -> None:
    drivertrees.rhel(tmp_path)
    node_files(tmp_path, without=["nvidia-uvm"])
    found = common(tmp_path, "/", None)
    assert len(found.edits.device_nodes) == 3
    (warning,) = found.warnings
    assert "load the nvidia-uvm kernel module" in warning


def test_b123_no_program_is_run_and_none_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    drivertrees.rhel(tmp_path)
    for name in ("usr/bin", "usr/lib/firmware"):
        shutil.rmtree(tmp_path / name)
    node_files(tmp_path)
    root = DriverRoot(tmp_path, "/")
    assert find_hook_tool([root]) is None
    assert f"/usr/lib64/libcuda.so.{VERSION}" in {
        m.container_path for m in common(tmp_path, "/", None).edits.mounts
    }


def test_b126_without_hooks_links_are_mounts(tmp_path: Path) -> None:
    drivertrees.rhel(tmp_path)
    edits = common(tmp_path, "/", None).edits
    assert edits.hooks == ()
    sources = {mount.container_path: mount.host_path for mount in edits.mounts}
    for name in ("libcuda.so", "libcuda.so.1"):
        assert sources[f"/usr/lib64/{name}"] == f"/usr/lib64/libcuda.so.{VERSION}"
        assert sources[f"/usr/lib/x86_64-linux-gnu/{name}"] == f"/usr/lib64/libcuda.so.{VERSION}"
    assert not any(entry.startswith("LD_LIBRARY_PATH") for entry in edits.env)


def test_b126_hooks_are_of_stage_create_container_only(tmp_path: Path) -> None:
    drivertrees.rhel(tmp_path)
    edits = common(tmp_path, "/", HOOKS).edits
    assert {hook.hook_name for hook in edits.hooks} == {"createContainer"}
    assert [hook.args[1] for hook in edits.hooks] == [
        "create-symlinks",
        "enable-cuda-compat",
        "update-ldcache",
        "disable-device-node-modification",
    ]


def test_loader_folders_follow_the_machine_of_libcuda(tmp_path: Path) -> None:
    write(tmp_path / f"lib64/libcuda.so.{VERSION}", elf("libcuda.so.1", machine=183))
    targets = {mount.container_path for mount in common(tmp_path, "/", None).edits.mounts}
    assert "/usr/lib/aarch64-linux-gnu/libcuda.so.1" in targets
    assert "/usr/lib/x86_64-linux-gnu/libcuda.so.1" not in targets


def test_a_library_that_is_no_elf_file_gets_the_names_of_its_links(tmp_path: Path) -> None:
    write(tmp_path / f"usr/lib64/libcuda.so.{VERSION}")
    link(tmp_path / "usr/lib64/libcuda.so.1", f"libcuda.so.{VERSION}")
    targets = {mount.container_path for mount in common(tmp_path, "/", None).edits.mounts}
    assert "/usr/lib64/libcuda.so.1" in targets
    assert "/usr/lib64/libcuda.so" in targets


def test_a_dangling_library_is_left_out(tmp_path: Path) -> None:
    drivertrees.rhel(tmp_path)
    link(tmp_path / f"usr/lib64/libnvidia-gone.so.{VERSION}", "/absent")
    assert not any("gone" in mount.container_path for mount in common(tmp_path, "/", None).edits.mounts)


def test_daemon_sockets_are_mounted_writable_when_present(tmp_path: Path) -> None:
    drivertrees.rhel(tmp_path)
    path = tmp_path / "run/nvidia-persistenced/socket"
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    mounts = [
        m for m in common(tmp_path, "/run/nvidia/driver", HOOKS).edits.mounts if "socket" in m.host_path
    ]
    assert [(m.host_path, m.container_path) for m in mounts] == [
        ("/run/nvidia/driver/run/nvidia-persistenced/socket", "/run/nvidia-persistenced/socket")
    ]
    assert mounts[0].options == ("nosuid", "nodev", "rbind", "rprivate", "noexec")


def test_hook_program_is_found_with_its_host_path(tmp_path: Path) -> None:
    write(tmp_path / "driver/usr/bin/nvidia-ctk", mode=0o755)
    write(tmp_path / "host/usr/local/nvidia/toolkit/nvidia-cdi-hook", mode=0o755)
    write(tmp_path / "host/sbin/ldconfig.real")
    roots = [DriverRoot(tmp_path / "driver", "/run/nvidia/driver"), DriverRoot(tmp_path / "host", "/")]
    assert find_hook_tool(roots) == HookTool(
        "/usr/local/nvidia/toolkit/nvidia-cdi-hook", ("nvidia-cdi-hook",), "/sbin/ldconfig.real"
    )
    assert find_hook_tool(roots[:1]) == HookTool(
        "/run/nvidia/driver/usr/bin/nvidia-ctk", ("nvidia-ctk", "hook")
    )


def test_a_hook_program_that_cannot_be_run_is_not_taken(tmp_path: Path) -> None:
    write(tmp_path / "usr/bin/nvidia-cdi-hook", mode=0o644)
    assert find_hook_tool([DriverRoot(tmp_path, "/")]) is None


def test_hook_lines_of_the_toolkit_program_have_its_subcommand() -> None:
    hook = HookTool.at("/opt/nvidia-ctk").create_symlinks([("libcuda.so.1", "/usr/lib64/libcuda.so")])
    assert hook.path == "/opt/nvidia-ctk"
    assert hook.args == (
        "nvidia-ctk",
        "hook",
        "create-symlinks",
        "--link",
        "libcuda.so.1::/usr/lib64/libcuda.so",
    )
    assert hook.env == ("NVIDIA_CTK_DEBUG=false",)
