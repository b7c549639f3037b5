"""The driver root's files, the program `nvmlsim`, and the C sources."""

from __future__ import annotations

import argparse
import json
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvmlsim import build
from nvmlsim.cli import _parser, main
from nvmlsim.flags import variable
from nvmlsim.node import SimulatedNode
from tests.unit.nvmlsim.conftest import MakeNode


def soname(library: Path) -> str:
    told = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    return next(line.split("[")[1].rstrip("]") for line in told.splitlines() if "SONAME" in line)


def test_libraries_and_programs(make_node: MakeNode) -> None:
    node = make_node("hgx-h100")
    folder = node.root / "usr/lib/x86_64-linux-gnu"
    names = {file.name for file in folder.glob("*.so.580.95.05")}
    assert {"libcuda.so.580.95.05", "libnvidia-ml.so.580.95.05", "libnvidia-tls.so.580.95.05"} <= names
    assert node.state_path.name in names
    assert soname(folder / "libcuda.so.580.95.05") == "libcuda.so.1"
    assert soname(folder / "libnvidia-ml.so.1") == "libnvidia-ml.so.1"
    assert soname(folder / "libnvidia-eglcore.so.580.95.05") == "libnvidia-eglcore.so.580.95.05"
    assert str((folder / "libcuda.so").readlink()) == "libcuda.so.1"
    assert (node.root / "lib/firmware/nvidia/580.95.05/gsp_ga10x.bin").is_file()
    told = subprocess.run(["readelf", "-l", node.nvidia_smi_path], capture_output=True, text=True, check=True)
    assert "INTERP" not in told.stdout


def test_devices(make_node: MakeNode) -> None:
    node = make_node("t4x4")
    for name, major, minor in (
        ("nvidia0", 195, 0),
        ("nvidia3", 195, 3),
        ("nvidiactl", 195, 255),
        ("nvidia-modeset", 195, 254),
        ("nvidia-uvm-tools", 236, 1),
        ("nvidia-caps/nvidia-cap2", 237, 2),
    ):
        status = (node.root / "dev" / name).stat()
        if stat.S_ISCHR(status.st_mode):
            assert (os.major(status.st_rdev), os.minor(status.st_rdev)) == (major, minor)
        else:
            assert os.geteuid() != 0
    assert not (node.root / "dev/nvidia4").exists()


def test_proc(make_node: MakeNode) -> None:
    proc = make_node("gb200-tray").root / "proc"
    assert "237 nvidia-caps\n" in (proc / "devices").read_text()
    assert "  580.95.05  " in (proc / "driver/nvidia/version").read_text()
    minors = dict(line.split() for line in (proc / "driver/nvidia-caps/mig-minors").read_text().splitlines())
    assert len(minors) == 2 + 32 * 15 * 9
    assert (minors["config"], minors["gpu3/gi3/ci3/access"], minors["gpu6/gi11/ci5/access"]) == (
        "1",
        "439",
        "918",
    )
    assert len((proc / "sys/kernel/random/boot_id").read_text().strip()) == 36
    assert (proc / "driver/nvidia/gpus/0018:01:00.0/information").is_file()
    assert (proc / "driver/nvidia/capabilities/gpu3/mig").is_dir()


def test_sys(make_node: MakeNode) -> None:
    devices = make_node("gb200-tray").root / "sys/bus/pci/devices"
    assert sorted(entry.name for entry in devices.iterdir())[0] == "0008:01:00.0"
    device = devices / "0018:01:00.0"
    assert "/pci0018:00/" in str(device.resolve())
    read = {name: (device / name).read_text().strip() for name in ("vendor", "device", "class", "numa_node")}
    assert read == {"vendor": "0x10de", "device": "0x2941", "class": "0x030200", "numa_node": "1"}


def test_plugin_flags(make_node: MakeNode) -> None:
    node = make_node("t4x4")
    root = str(node.root)
    flags = dict(zip(*[iter(node.plugin_flags())] * 2, strict=True))
    assert flags == {
        "--driver-root": root,
        "--dev-root": root,
        "--proc-root": f"{root}/proc",
        "--sys-root": f"{root}/sys",
    }


def run(*words: object) -> int:
    return main([str(word) for word in words])


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "node"
    assert run("init", root, "--machine", "hgx-h100", "--mig", "0=1g.10gb,1c.3g.40gb") == 0
    node = SimulatedNode(root)
    uuid = node.gpu(1).uuid
    for words in (
        ("mig", root, "mode", 1, "on"),
        ("mig", root, "create", uuid, "1g.10gb", 5),
        ("mig", root, "destroy", 0, 7),
        ("set", root, "return", "nvmlDeviceGetName", 999, "--times", 1, "--gpu", 3),
        ("set", root, "delay", "all", 1),
        ("set", root, "clear"),
        ("set", root, "missing", "nvmlDeviceGetSerial"),
        ("set", root, "lose", 4),
        ("set", root, "unplug", "0000:df:00.0"),
        ("set", root, "plug", "l40s", "--minor", 12),
        ("set", root, "xid", 1, 43, "--gi", 12, "--ci", 0),
        ("set", root, "process", 2, 99),
        ("set", root, "pending-mig", 2, "on"),
        ("set", root, "gpu", 2, "timeslice=1", "name=My GPU"),
        ("set", root, "link", 2, 0, "down"),
        ("set", root, "nvidia-smi", "--exit-code", 3),
        ("set", root, "driver-version", "581.1"),
    ):
        assert run(*words) == 0, words
    capsys.readouterr()
    assert run("show", root) == 0
    told = capsys.readouterr().out
    for text in (
        "hgx-h100: driver 581.1, CUDA 13.0",
        "GI 12  1g.10gb at 5:1",
        "My GPU",
        "MIG off, pending on, 17 NVLinks",
        "lost, 18 NVLinks",
        "process 99 on GPU 2",
        "minor 12",
    ):
        assert text in told
    assert run("show", root, "--json") == 0
    assert json.loads(capsys.readouterr().out)["driver_version"] == "581.1"
    assert run("show", root, "--calls") == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("set", "{root}", "lose", "GPU-1"), "no GPU 'GPU-1'; give its number, UUID or PCI address"),
        (("mig", "{root}", "create", "0", "2g.1gb"), "Not Supported|no such profile"),
        (("set", "{root}", "return", "nvmlNothing", "3"), "the library has no such symbol"),
        (("init", "{root}", "--machine", "t4x4"), "here already"),
        (("show", "{root}/nothing"), "no simulated node here"),
        (("init", "{root}2", "--machine", "dgx-z"), "unknown machine 'dgx-z'"),
        (
            ("init", "{root}2", "--machine", "t4x4", "--mig", "0=1g.10gb"),
            "it has none, it cannot",
        ),
        (
            ("init", "{root}2", "--machine", "a30x4", "--mig", "0=7g.10gb"),
            "it has 1g.6gb, 1g.6gb+me, 2g.12gb",
        ),
        (
            ("set", "{root}", "gpu", "0", "foo=bar"),
            "no setting 'foo'; allowed are name, uuid, serial, numa_node",
        ),
        (("set", "{root}", "gpu", "0", "name"), "'name' is not setting=value"),
        (("set", "{root}", "gpu", "0", "timeslice=x"), "timeslice: 'x' is not a whole number"),
    ],
)
def test_mistakes_are_named(
    words: tuple[str, ...], told: str, make_node: MakeNode, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make_node("t4x4").root
    assert run(*(word.format(root=root) for word in words)) == 1
    error = capsys.readouterr().err
    assert error.startswith("nvmlsim: ")
    assert any(text in error for text in told.split("|"))
    assert "usr/lib" not in error, "where the state lies is nobody's business"
    assert not Path(f"{root}2").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("set", "x", "return", "nvmlInit_v2", "lost"), "argument code: 'lost' is not a whole number"),
        (("set", "x", "link", "0", "1", "sideways"), "choose from 'up', 'down'"),
        (("set", "x", "pending-mig", "0", "maybe"), "choose from 'on', 'off'"),
        (("set", "x", "driver", "gone"), "choose from 'loaded', 'unloaded'"),
        (("set", "x", "gpu", "foo=bar"), "required: setting=value"),
        (("init", "x", "--machine", "hgx-h100", "--mig", "1g.10gb"), "is not GPU=PROFILE"),
        (("init", "x"), "required: --machine"),
    ],
)
def test_wrong_words_are_refused(
    words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers(below)


def test_everything_is_described_and_every_flag_is_a_variable() -> None:
    flags = set()
    for parser in parsers(_parser()):
        for action in parser._actions:
            if isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
                continue
            assert action.help, (parser.prog, action.dest)
            for flag in action.option_strings:
                assert f"[${variable(flag)}" in action.help, (parser.prog, flag)
                flags.add(flag)
    assert {"--machine", "--driver-version", "--mig", "--json", "--times", "--no-reload"} < flags


def test_flags_come_from_the_environment_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "node"
    monkeypatch.setenv("NVMLSIM_MACHINE", "hgx-h100")
    monkeypatch.setenv("NVMLSIM_DRIVER_VERSION", "581.1")
    monkeypatch.setenv("NVMLSIM_MIG", "0=1g.10gb,3g.40gb 1=7g.80gb")
    assert run("init", root) == 0
    assert [len(gpu.gpu_instances) for gpu in SimulatedNode(root).gpus()[:3]] == [2, 1, 0]
    monkeypatch.setenv("NVMLSIM_JSON", "true")
    assert run("show", root) == 0
    assert json.loads(capsys.readouterr().out)["driver_version"] == "581.1"
    monkeypatch.setenv("NVMLSIM_MIG", "1g.10gb")
    assert run("init", tmp_path / "other") == 1
    assert "$NVMLSIM_MIG: '1g.10gb' is not GPU=PROFILE" in capsys.readouterr().err
    monkeypatch.setenv("NVMLSIM_JSON", "yes")
    with pytest.raises(SystemExit):
        run("show", root)
    assert "$NVMLSIM_JSON: 'yes' is not one of true, false" in capsys.readouterr().err


def test_the_sources_compile_without_a_warning() -> None:
    assert {"-Wall", "-Wextra"} <= set(build.FLAGS)
    assert build.build().warnings.read_text() == ""


def test_every_counted_symbol_is_exported_and_no_other() -> None:
    told = subprocess.run(
        ["nm", "-D", "--defined-only", build.build().library], capture_output=True, text=True
    )
    exported = {line.split()[-1] for line in told.stdout.splitlines()}
    header = (build.SOURCES / "library/symbols.h").read_text()
    counted = {line.partition("X(")[2].partition(")")[0] for line in header.splitlines() if "    X(" in line}
    assert exported == counted | {"nvmlsim_create", "nvmlsim_apply", "nvmlsim_show"}


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("NVMLSIM_CC", "no-such-compiler")
    with pytest.raises(build.BuildError, match="'no-such-compiler' is not on PATH"):
        build.build()
