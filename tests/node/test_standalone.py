"""The commands by hand: inventory, prepare, list, unprepare, with good and bad input. No API server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from nvmlsim.node import SimulatedNode
from tests.cluster.workspace import Workspace
from tests.harness.devices import gpu_name, value
from tests.unit.driver.slicevalidator import violations

TEMPLATE = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one-gpu}
spec:
  spec:
    devices:
      requests:
      - {name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}
---
apiVersion: v1
kind: Pod
metadata: {name: user}
"""


@dataclass(frozen=True)
class Done:
    status: int
    output: str
    errors: str


@dataclass(frozen=True)
class Machine:
    """A simulated machine without Kubernetes, and the program on it."""

    folder: Path
    gpus: SimulatedNode

    @property
    def cdi_root(self) -> Path:
        return self.folder / "cdi"

    def run(self, *words: str, **flags: str) -> Done:
        settings = {
            "node-name": "machine",
            "kubelet-plugins-path": str(self.folder / "plugins"),
            "cdi-root": str(self.cdi_root),
            "mig": "static",
            **{name.replace("_", "-"): text for name, text in flags.items()},
        }
        options = [word for name, text in settings.items() for word in (f"--{name}", text)]
        command = [sys.executable, "-m", "kubeletplugin.cli", *self.gpus.plugin_flags(), *options, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return Done(done.returncode, done.stdout, done.stderr)

    def write(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def specs(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted(self.cdi_root.glob("*.json"))]


@pytest.fixture
def machine() -> Iterator[Callable[..., Machine]]:
    with Workspace() as workspace:

        def make(name: str = "t4x4", **overrides: object) -> Machine:
            folder = workspace.folder(name)
            return Machine(folder, SimulatedNode.create(folder / "gpu", name, **overrides))

        yield make


def test_inventory_is_what_the_service_would_publish(machine: Callable[..., Machine]) -> None:
    node = machine("hgx-h100", mig={0: ["3g.40gb", "1g.10gb"]})
    shown = node.run("inventory", "-o", "yaml")
    assert shown.status == 0, shown.errors
    slices = list(yaml.safe_load_all(shown.output))
    assert [item["kind"] for item in slices] == ["ResourceSlice"]
    assert violations([item["spec"] for item in slices]) == []
    devices = {device["name"]: device for item in slices for device in item["spec"]["devices"]}
    assert len(devices) == 9
    gpu = node.gpus.gpus()[0]
    assert {value(device, "uuid") for device in devices.values() if value(device, "type") == "mig"} == set(
        gpu.mig_uuids
    )

    table = node.run("inventory")
    lines = table.output.splitlines()
    assert lines[0].split()[:3] == ["DEVICE", "TYPE", "PRODUCT"]
    assert [line.split()[0] for line in lines[1:]] == list(devices)
    assert not (node.folder / "plugins").exists(), "to look at a machine leaves nothing on it"


def test_a_partition_by_hand_is_made_and_gone(machine: Callable[..., Machine]) -> None:
    node = machine("hgx-h100", mig={0: ["3g.40gb"]})
    foreign = node.gpus.gpus()[0].gpu_instances
    shown = node.run("inventory", "-o", "yaml", mig="dynamic")
    slices = list(yaml.safe_load_all(shown.output))
    assert violations([item["spec"] for item in slices]) == []
    name = f"{gpu_name(node.gpus.gpus()[1].pci_bus_id)}-mig-2g20gb-2"
    assert name in [device["name"] for item in slices for device in item["spec"].get("devices", [])]
    assert name.removesuffix("2") in node.run("inventory", mig="dynamic").output

    prepared = node.run("prepare", "-f", node.write("claim.yaml", TEMPLATE), "--device", name, mig="dynamic")
    assert prepared.status == 0, prepared.errors
    (made,) = node.gpus.gpus()[1].gpu_instances
    assert (made.profile, made.start, len(made.compute_instances)) == ("2g.20gb", 2, 1)
    assert node.run("unprepare", "default/one-gpu", mig="dynamic").status == 0
    assert [gpu.gpu_instances for gpu in node.gpus.gpus()] == [foreign, *[()] * 7]
    assert node.specs() == []


def test_a_claim_by_hand_from_prepare_to_unprepare(machine: Callable[..., Machine]) -> None:
    node = machine()
    device = gpu_name(node.gpus.gpus()[2].pci_bus_id)
    file = node.write("claim.yaml", TEMPLATE)
    prepared = node.run("prepare", "-f", file, "--device", f"gpu={device}")
    assert prepared.status == 0, prepared.errors
    assert "default/one-gpu" in prepared.output
    [spec] = node.specs()
    [cdi_device] = spec["devices"]
    assert f"gpudra.io/claim={cdi_device['name']}" in prepared.output
    assert [entry["path"] for entry in cdi_device["containerEdits"]["deviceNodes"]] == ["/dev/nvidia2"]

    again = node.run("prepare", "-f", file, "--device", device)
    assert (again.status, again.output) == (0, prepared.output)
    assert node.specs() == [spec]
    listed = node.run("list")
    assert device in listed.output
    assert "prepared" in listed.output

    free = gpu_name(node.gpus.gpus()[3].pci_bus_id)
    swapped = node.run("prepare", "-f", file, "--device", free)
    assert swapped.status == 1
    assert f"holds {device} already, and {free} is asked for" in swapped.errors
    assert "gpu-kubelet-plugin unprepare default/one-gpu" in swapped.errors
    assert node.specs() == [spec]
    [shown] = yaml.safe_load(node.run("list", "-o", "yaml").output)
    assert (shown["namespace"], shown["name"], shown["state"]) == ("default", "one-gpu", "prepared")
    assert [(entry["device"], entry["cdiDevice"]) for entry in shown["devices"]] == [
        (device, f"gpudra.io/claim={cdi_device['name']}")
    ]
    assert yaml.safe_load(node.run("prepare", "-f", file, "--device", device, "-o", "yaml").output) == [shown]

    other = node.write("other.yaml", TEMPLATE.replace("one-gpu", "another"))
    refused = node.run("prepare", "-f", other, "--device", device)
    assert refused.status == 1
    assert "in use by claim default/one-gpu" in refused.errors
    assert "gpu-kubelet-plugin unprepare" in refused.errors

    given_back = node.run("unprepare", "default/one-gpu")
    assert given_back.status == 0, given_back.errors
    assert node.specs() == []
    assert device not in node.run("list").output
    assert node.run("prepare", "-f", other, "--device", device).status == 0


def test_an_allocated_claim_from_the_api_server_is_taken_as_it_is(machine: Callable[..., Machine]) -> None:
    node = machine("hgx-h100", mig={0: ["3g.40gb"]})
    slices = yaml.safe_load(node.run("inventory", "-o", "yaml").output)
    names = [device["name"] for device in slices["spec"]["devices"]]
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "both", "namespace": "team", "uid": "11111111-2222-3333-4444-555555555555"},
        "spec": {"devices": {"requests": [{"name": "mig"}, {"name": "gpu"}]}},
        "status": {
            "allocation": {
                "devices": {
                    "results": [
                        {"request": request, "driver": "gpu.nvidia.com", "pool": "machine", "device": name}
                        for request, name in zip(("mig", "gpu"), names[:2], strict=True)
                    ]
                }
            }
        },
    }
    file = node.write("claim.json", json.dumps(claim))
    assert node.run("prepare", "--filename", file).status == 0
    assert {entry["name"] for entry in node.specs()[0]["devices"]} == {
        f"11111111-2222-3333-4444-555555555555-{name}" for name in names[:2]
    }
    assert node.run("unprepare", "11111111-2222-3333-4444-555555555555").status == 0


def test_wrong_choices_and_names_tell_what_is_allowed(machine: Callable[..., Machine]) -> None:
    node = machine()
    file = node.write("claim.yaml", TEMPLATE)
    device = gpu_name(node.gpus.gpus()[0].pci_bus_id)
    for words, expected in (
        (["prepare", "-f", file, "--device", f"gpus={device}"], "it has gpu"),
        (["prepare", "-f", file, "--device", "gpu-0000-99-00-0"], "gpu-0000-99-00-0"),
        (["prepare", "-f", file], "--device REQUEST=DEVICE"),
        (["prepare", "-f", f"{file}.missing"], "cannot be read"),
        (["unprepare", "default/nobody"], "list shows those that are"),
    ):
        done = node.run(*words)
        assert done.status == 1
        assert expected in done.errors
        assert "Traceback" not in done.errors
        assert "pod" not in done.errors, "nobody has pods here"
    for words, flags, expected in (
        (["prepare"], {}, "--filename"),
        (["explode"], {}, "invalid choice: 'explode'"),
        (["inventory"], {"exclude": "MIG-1"}, "--exclude"),
        (["inventory"], {"rescan_seconds": "soon"}, "--rescan-seconds: 'soon'"),
        (["inventory"], {"http_address": "here"}, "--http-address: 'here'"),
        (["inventory"], {"node_name": "Foo_Bar"}, "--node-name: 'Foo_Bar'"),
        (["inventory", "-o", "json"], {}, "'json' is not one of table, yaml"),
        (["inventory"], {"log_level": "loud"}, "--log-level: 'loud' is not one of debug"),
    ):
        done = node.run(*words, **flags)
        assert done.status == 2, (words, done)
        assert expected in done.errors
        assert "Traceback" not in done.errors


def test_a_machine_without_a_usable_driver_says_what_was_tried(machine: Callable[..., Machine]) -> None:
    node = machine()
    empty = node.folder / "empty"
    empty.mkdir()
    done = node.run("inventory", driver_root=str(empty))
    assert done.status == 1
    assert str(empty / "usr/lib64/libnvidia-ml.so.1") in done.errors
    assert "Traceback" not in done.errors

    node.gpus.load_driver(False)
    done = node.run("inventory")
    assert done.status == 1
    assert "DRIVER_NOT_LOADED (9)" in done.errors


def test_claims_can_be_given_back_without_a_driver(machine: Callable[..., Machine]) -> None:
    node = machine()
    file = node.write("claim.yaml", TEMPLATE)
    assert node.run("prepare", "-f", file, "--device", gpu_name(node.gpus.gpus()[0].pci_bus_id)).status == 0
    node.gpus.load_driver(False)
    assert "default/one-gpu" in node.run("list").output
    assert node.run("unprepare", "default/one-gpu").status == 0
    assert node.specs() == []


def test_settings_come_from_the_environment_too(machine: Callable[..., Machine]) -> None:
    node = machine()
    shown = node.run("--help")
    assert shown.status == 0
    for flag in ("--driver-root", "--cdi-root", "--exclude", "--http-address"):
        assert flag in shown.output
        assert f"${flag[2:].upper().replace('-', '_')}" in shown.output
    own = "".join(node.run(command, "--help").output for command in ("inventory", "prepare", "list"))
    for variable in (
        "INVENTORY_OUTPUT",
        "PREPARE_FILENAME",
        "PREPARE_DEVICE",
        "PREPARE_OUTPUT",
        "LIST_OUTPUT",
    ):
        assert f"[${variable}" in own
    command = [sys.executable, "-m", "kubeletplugin.cli", *node.gpus.plugin_flags(), "inventory"]
    environment = {
        "PATH": "/usr/bin:/bin",
        "NODE_NAME": "machine",
        "EXCLUDE": "0,1",
        "KUBELET_PLUGINS_PATH": str(node.folder / "plugins"),
    }
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment)
    assert len(done.stdout.splitlines()) == 3

    [*command, _] = command
    device = gpu_name(node.gpus.gpus()[2].pci_bus_id)
    environment |= {
        "CDI_ROOT": str(node.cdi_root),
        "PREPARE_FILENAME": node.write("claim.yaml", TEMPLATE),
        "PREPARE_DEVICE": f"gpu={device}",
        "PREPARE_OUTPUT": "yaml",
    }
    done = subprocess.run(
        [*command, "prepare"], capture_output=True, text=True, timeout=60, check=True, env=environment
    )
    assert [entry["device"] for entry in yaml.safe_load(done.stdout)[0]["devices"]] == [device]
