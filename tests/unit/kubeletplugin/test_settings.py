"""Settings: every flag is an environment variable too, and a wrong value is named."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from kubeletplugin import settings
from kubeletplugin.settings import Settings


def read(*arguments: str, **environment: str) -> Settings:
    parser = argparse.ArgumentParser()
    settings.add_arguments(parser, environment)
    return settings.read(parser.parse_args(arguments))


def test_defaults_are_those_of_a_kubelet() -> None:
    chosen = read("--node-name", "n")
    assert chosen.data_path == Path("/var/lib/kubelet/plugins/gpu.nvidia.com")
    assert chosen.kubelet_registry_path == Path("/var/lib/kubelet/plugins_registry")
    assert chosen.cdi_root == Path("/var/run/cdi")
    assert (chosen.kubeconfig, chosen.pool_name, chosen.delete_slices_on_exit) == (None, "n", False)


def test_without_a_name_the_node_is_called_as_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "Host-1")
    assert read().node_name == "host-1"


def test_a_host_name_that_no_node_can_have_needs_a_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "gpu_box")
    with pytest.raises(ValueError, match="set --node-name") as error:
        read()
    assert "the host name 'gpu_box' cannot be the name of a Node" in str(error.value)
    assert read("--node-name", "gpu-box").node_name == "gpu-box"


def test_relative_paths_are_meant_from_the_current_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    chosen = read("--node-name", "n", "--driver-root", "root", "--cdi-root", "cdi")
    assert (chosen.driver_root, chosen.host_driver_root) == (tmp_path / "root", str(tmp_path / "root"))
    assert chosen.cdi_root == tmp_path / "cdi"


def test_the_http_server_can_be_turned_off_by_flag_and_by_variable() -> None:
    assert read("--http-address", "").http_address is None
    assert read(HTTP_ADDRESS="none").http_address is None
    assert read().http_address == ("", 8080)


def test_a_flag_wins_over_its_environment_variable() -> None:
    assert read(NODE_NAME="from-environment").node_name == "from-environment"
    assert read("--node-name", "flag", NODE_NAME="from-environment").node_name == "flag"
    assert read(CDI_ROOT="/x", CLAIM_GRACE_SECONDS="7").claim_grace_seconds == 7


def test_every_flag_tells_its_variable_in_the_help() -> None:
    parser = argparse.ArgumentParser()
    settings.add_arguments(parser, {})
    text = parser.format_help()
    for action in parser._actions[1:]:
        name = action.option_strings[0].removeprefix("--")
        assert f"[${name.upper().replace('-', '_')}]" in " ".join(text.split()), name


@pytest.mark.parametrize(
    ("flag", "value", "text"),
    [
        ("rescan-seconds", "0", "'0' is not a number of seconds from 0.01 to 1000000000"),
        ("node-name", "Foo_Bar", "'Foo_Bar' cannot be the name of a Node: allowed are 1 to 253 lower-case"),
        ("node-name", "n" * 254, "1 to 253"),
        ("node-name", "a..b", "both sides of each '.'"),
        ("pod-uid", "x/y", "'x/y' cannot be the UID of a pod"),
        ("pod-uid", "../x", "set it to metadata.uid"),
        ("cdi-root", "", "it is empty; give the path of a folder"),
        ("driver-root", "", "it is empty"),
        ("host-driver-root", "driver", "'driver' is not an absolute path"),
        ("host-dev-root", "./dev", "'./dev' is not an absolute path"),
        ("hooks", "nvidia-ctk", "'nvidia-ctk' is not one of auto, none, or the absolute path"),
        ("cleanup-seconds", "-1", "'-1' is not a number"),
        ("claim-grace-seconds", "nan", "'nan' is not a number"),
        ("nvml-timeout-seconds", "1e12", "'1e12' is not a number"),
        ("liveness-seconds", "soon", "'soon' is not a number"),
        ("delete-slices-on-exit", "yes", "'yes' is not one of true, false"),
        ("log-format", "xml", "'xml' is not one of text, json"),
        ("log-level", "loud", "'loud' is not one of debug, info, warning, error"),
        ("http-address", "here", "'here' is not HOST:PORT"),
        ("exclude", "(", "regular expression"),
    ],
)
def test_a_wrong_value_is_named_with_its_flag_and_what_is_allowed(flag: str, value: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"--{flag}") as error:
        read(f"--{flag}={value}")
    assert text in str(error.value)
