"""``make demo``: the real ``gpu-kubelet-plugin`` on a simulated eight-GPU node, in standalone mode.

Neither root nor Kubernetes is needed, and nothing is left behind. The exit status is 0 only if everything was
as it should be.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import yaml

from examples.container import CANNOT_ENTER, assemble, edits_for, entries
from nvmlsim.build import BuildError
from nvmlsim.node import SimulatedNode

NODE_NAME = "h100-node-1"
MACHINE = "hgx-h100"
MIG = {7: ("3g.40gb", "3g.40gb")}

_EXAMPLES = Path(__file__).parent
_COMMAND_SECONDS = 30
_SHOWN_MOUNTS = 3
_WIDTH = 100


class DemoError(Exception):
    """Something was not as it should be."""


@dataclass(frozen=True)
class Claim:
    """A claim of the demonstration: its manifest, and devices in place of the scheduler's choice."""

    manifest: Path
    name: str
    devices: tuple[str, ...]

    @property
    def partitions(self) -> int:
        """How many of the devices are partitions of a GPU."""
        return sum("-mig-" in device for device in self.devices)

    @property
    def arguments(self) -> list[str]:
        chosen = [word for device in self.devices for word in ("--device", device)]
        here = Path.cwd()
        file = self.manifest.relative_to(here) if self.manifest.is_relative_to(here) else self.manifest
        return ["prepare", "-f", str(file), *chosen]


# libyaml's is four times as fast, and a build of PyYAML may lack it.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Demo:
    """The simulated node, its folders, and the plugin's commands on it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._root = folder / "node"
        self._cdi = folder / "cdi"
        self._programs = Path(sys.executable).parent
        self._nvidia_smi = Path()
        self._common_edits: dict[str, Any] | None = None
        self._variables = {
            "NODE_NAME": NODE_NAME,
            "DRIVER_ROOT": str(self._root),
            "PROC_ROOT": str(self._root / "proc"),
            "SYS_ROOT": str(self._root / "sys"),
            "CDI_ROOT": str(self._cdi),
            "KUBELET_PLUGINS_PATH": str(folder / "plugins"),
            "LOG_LEVEL": "warning",
        }

    def run(self) -> None:
        """Show everything, in order. Raises DemoError at the first thing that is wrong."""
        self._simulate()
        slices = self._inventory()
        claims = _choose_claims(slices)
        for claim in claims:
            spec = self._prepare(claim)
            if claim.partitions:
                self._made(claim)
            self._container(claim, spec)
        taken = {device for claim in claims for device in claim.devices}
        self._give_back([*claims, *self._share(_free_gpu(slices, taken))])

    def _simulate(self) -> None:
        _title("A node with eight GPUs, simulated")
        _say(
            f"nvmlsim makes a driver root of a {MACHINE} machine below {self._root}: libnvidia-ml.so.1, "
            "nvidia-smi, /dev, /proc and /sys. An administrator has cut one of its GPUs into MIG devices."
        )
        self._nvidia_smi = SimulatedNode.create(self._root, MACHINE, mig=MIG).nvidia_smi_path
        self._listed()
        _say("The plugin's flags are environment variables too. For this node:")
        for name, value in self._variables.items():
            print(f"  export {name}={shlex.quote(value)}")

    def _inventory(self) -> list[dict[str, Any]]:
        _title("The inventory: what this node would publish")
        table = self._plugin("inventory", show=False)
        _print(_first_and_last_gpu(table))
        _say(
            "Each GPU is offered whole and as every MIG device that it could be cut into; nothing of that is "
            "made before a pod needs it. The GPU that an administrator has cut is offered as it is. The same "
            "as ResourceSlices, shortened: counters, which keep the scheduler from giving out one GPU twice, "
            "and of each kind of device one."
        )
        text = self._plugin("inventory", "-o", "yaml", show=False)
        slices: list[dict[str, Any]] = list(yaml.load_all(text, _Loader))
        devices = _devices(slices)
        whole = [device for device in devices if _is_whole(device)]
        existing = [device for device in devices if not _is_whole(device) and _value(device, "uuid")]
        partitions = [device for device in devices if not _value(device, "uuid")]
        _print_yaml(_shortened(slices[0], "sharedCounters", slices[0]["spec"]["sharedCounters"][:1]))
        _print_yaml(_shortened(slices[1], "devices", [partitions[0], whole[0]]))
        _check(len(whole) == 8 - len(MIG), f"{len(whole)} whole GPUs are published")
        _check(len(existing) == sum(map(len, MIG.values())), f"{len(existing)} MIG devices are published")
        _check(len(partitions) > len(whole), f"{len(partitions)} partitions are published")
        _check(all("consumesCounters" in device for device in partitions), "a partition takes no counter")
        _check(all(device["name"] in table for device in (*whole, *existing)), "a device is not in the table")
        return slices

    def _prepare(self, claim: Claim) -> dict[str, Any]:
        _title(f"Prepare the claim {claim.name}")
        _say("The claim, as a user writes it:")
        _print(claim.manifest.read_text().partition("---")[0])
        _say("The scheduler would choose devices by it; here --device does.")
        before = self._cdi_files()
        self._plugin(*claim.arguments)
        new = sorted(self._cdi_files() - before)
        _check(len(new) == 1, f"{len(new)} CDI specs came out of one claim")
        spec: dict[str, Any] = json.loads(new[0].read_text())
        _say(f"The CDI spec that came out, {new[0].name}, shortened:")
        self._print_spec(spec)
        _check(len(spec["devices"]) == len(claim.devices), "the CDI spec does not have the claim's devices")
        return spec

    def _share(self, gpu: dict[str, Any]) -> list[Claim]:
        """Two claims that have the GPU at the same time."""
        _title("Two claims share a GPU")
        _say("A node policy says that the memory of one GPU is handed out to whoever asks for some of it:")
        entry = {"gpus": [_value(gpu, "uuid")], "shares": "memory"}
        policy = {"apiVersion": "gpudra.io/v1alpha1", "kind": "NodePolicy", "spec": {"entries": [entry]}}
        _print_yaml(policy)
        file = self._folder / "node-policy.yaml"
        file.write_text(yaml.safe_dump(policy))
        self._variables["CONFIG"] = str(file)
        print(f"  export CONFIG={shlex.quote(str(file))}")
        _say("Two claims, each for 20Gi of it:")
        template = _claim_of(_EXAMPLES / "sharing/by-memory.yaml")
        claims = []
        for number in (1, 2):
            name = f"{template['metadata']['name']}-{number}"
            manifest = self._folder / f"{name}.yaml"
            manifest.write_text(yaml.safe_dump({**template, "metadata": {"name": name}}))
            claims.append(Claim(manifest, name, (gpu["name"],)))
        before = self._cdi_files()
        for claim in claims:
            self._plugin(*claim.arguments)
        _say("Each has a CDI device of its own, with the GPU and the amount that it should keep to:")
        devices = [json.loads(path.read_text())["devices"] for path in sorted(self._cdi_files() - before)]
        _check([len(one) for one in devices] == [1, 1], "two claims do not have a CDI device each")
        edits = [one[0]["containerEdits"] for one in devices]
        for (device,) in devices:
            _print_yaml(device)
        _check(edits[0]["deviceNodes"] == edits[1]["deviceNodes"], "the claims do not have the same GPU")
        limits = [value for one in edits for value in one["env"] if value.startswith("GPU_MEMORY_LIMIT_")]
        _check([value.partition("=")[2] for value in limits] == [str(20 << 30)] * 2, f"limits are {limits}")
        return claims

    def _print_spec(self, spec: dict[str, Any]) -> None:
        """Print a CDI spec; what all claims of the node share, only the first time."""
        common = spec["containerEdits"]
        shown = {**spec, "containerEdits": _shortened_edits(common)}
        if self._common_edits == common:
            del shown["containerEdits"]
        _print_yaml(shown, {str(self._root): "$DRIVER_ROOT"})
        if self._common_edits == common:
            _say("Its containerEdits for all devices are the same as above.")
        self._common_edits = common

    def _container(self, claim: Claim, spec: dict[str, Any]) -> None:
        _title(f"What a container with the claim {claim.name} sees")
        edits = edits_for(spec, [device["name"] for device in spec["devices"]])
        folder = self._folder / f"container-{claim.name}"
        assemble(folder, edits)
        print("  environment  " + " ".join(entries(edits, "env")))
        nodes = sorted({node["path"] for node in entries(edits, "deviceNodes")})
        print(_wrapped(" ".join(nodes), "  devices      "))
        _say("A folder with exactly the spec's files and nodes stands for the container. In it:")
        seen = self._in_container(folder)
        if seen is not None:
            self._check_seen(claim, seen)

    def _in_container(self, folder: Path) -> str | None:
        print("\n  $ nvidia-smi -L")
        command = [sys.executable, "-m", "examples.container", str(folder), "/usr/bin/nvidia-smi", "-L"]
        done = self._call(command)
        if done.returncode == CANNOT_ENTER:
            _say(
                "This machine allows neither root nor user namespaces, so nothing can run in the folder: "
                f"{done.stderr.strip()}"
            )
            return None
        _print(done.stdout)
        _check(done.returncode == 0, f"nvidia-smi failed: {done.stdout}{done.stderr}")
        return done.stdout

    def _check_seen(self, claim: Claim, seen: str) -> None:
        wanted = len(claim.devices) - claim.partitions
        _check(
            seen.count("UUID: MIG-") == claim.partitions, "the container does not see exactly its MIG devices"
        )
        _check(
            seen.count("UUID: GPU-") == (wanted or 1), "the container does not see exactly its claim's GPUs"
        )

    def _give_back(self, claims: Sequence[Claim]) -> None:
        _title("Give everything back")
        listed = self._plugin("list")
        for claim in claims:
            _check(f"default/{claim.name}" in listed, f"list does not show {claim.name}")
            self._plugin("unprepare", f"default/{claim.name}")
        listed = self._plugin("list")
        _check(len(listed.splitlines()) == 1, "claims are left in the store")
        _check(not self._cdi_files(), f"CDI specs are left: {sorted(self._cdi_files())}")
        _check(_mig_devices(self._listed()) == sum(map(len, MIG.values())), "the partition is not gone")
        _say("No claim in the store, no CDI spec, only the administrator's MIG devices: nothing is left.")

    def _made(self, claim: Claim) -> None:
        _say("Its MIG device was not there before; MIG mode of the GPU was turned on, and it was made:")
        made = _mig_devices(self._listed()) - sum(map(len, MIG.values()))
        _check(made == claim.partitions, f"{made} MIG devices were made")

    def _listed(self) -> str:
        return self._run([str(self._nvidia_smi), "-L"])

    def _cdi_files(self) -> set[Path]:
        return set(self._cdi.iterdir()) if self._cdi.exists() else set()

    def _plugin(self, *arguments: str, show: bool = True) -> str:
        program = self._programs / "gpu-kubelet-plugin"
        if not program.exists():
            raise DemoError(f"{program} is not installed: run make demo, which installs it")
        return self._run([str(program), *arguments], show=show)

    def _run(self, command: Sequence[str], *, show: bool = True) -> str:
        """Print and run a command; returns its output, which is printed too if ``show``."""
        print(f"\n  $ {shlex.join([Path(command[0]).name, *command[1:]])}")
        done = self._call(command)
        _check(done.returncode == 0, f"exit status {done.returncode}: {done.stderr.strip()}")
        if show:
            _print(done.stdout)
        return done.stdout

    def _call(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **self._variables}
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False
        )


def _choose_claims(slices: Sequence[dict[str, Any]]) -> list[Claim]:
    """The claims of the demonstration, with devices that fit their selectors and constraints."""
    devices = _devices(slices)
    whole = [device for device in devices if _is_whole(device)]
    domain = _value(whole[0], "nvlinkDomain")
    gpus = [device["name"] for device in whole if _value(device, "nvlinkDomain") == domain][:2]
    _check(len(gpus) == 2, "no two GPUs reach each other over NVLink")
    profile = "1g.10gb"
    taken = {_value(device, "parentUUID") for device in devices if device["name"] in gpus}
    partition = next(
        device["name"]
        for device in devices
        if _value(device, "profile") == profile and _value(device, "parentUUID") not in taken
    )
    chosen = (("nvlink-pair.yaml", tuple(gpus)), ("mig/by-profile.yaml", (partition,)))
    return [
        Claim(_EXAMPLES / file, _claim_of(_EXAMPLES / file)["metadata"]["name"], names)
        for file, names in chosen
    ]


def _free_gpu(slices: Sequence[dict[str, Any]], taken: Collection[str]) -> dict[str, Any]:
    """A whole GPU that is not among the devices taken, nor has one of them."""
    devices = _devices(slices)
    used = {_value(device, "parentUUID") for device in devices if device["name"] in taken}
    whole = [device for device in devices if _is_whole(device) and device["name"] not in taken]
    return next(device for device in whole if _value(device, "uuid") not in used)


def _claim_of(manifest: Path) -> dict[str, Any]:
    documents: list[dict[str, Any]] = list(yaml.safe_load_all(manifest.read_text()))
    return next(document for document in documents if document["kind"] == "ResourceClaimTemplate")


def _devices(slices: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [device for item in slices for device in item["spec"].get("devices", [])]


def _value(device: dict[str, Any], attribute: str) -> object:
    return next(iter(device["attributes"][attribute].values()))


def _is_whole(device: dict[str, Any]) -> bool:
    return _value(device, "type") == "gpu"


def _mig_devices(listed: str) -> int:
    return listed.count("UUID: MIG-")


def _first_and_last_gpu(table: str) -> str:
    head, *lines = table.splitlines()
    end = next(number for number, line in enumerate(lines, 1) if "-mig-" not in line)
    last = [line for line in lines if line.startswith(lines[-1].partition("-mig-")[0])]
    return "\n".join([head, *lines[:end], f"... and {len(lines) - end - len(last)} more", *last])


def _shortened(item: dict[str, Any], field: str, shown: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The slice with only some of its devices or counter sets."""
    rest = len(item["spec"][field]) - len(shown)
    return {**item, "spec": {**item["spec"], field: [*shown, f"... and {rest} more"]}}


def _shortened_edits(edits: dict[str, Any]) -> dict[str, Any]:
    """Container edits with few of their mounts."""
    mounts = edits["mounts"]
    rest = len(mounts) - _SHOWN_MOUNTS
    return {**edits, "mounts": [*mounts[:_SHOWN_MOUNTS], f"... and {rest} more"]}


class _Compact(yaml.SafeDumper):
    """Writes small mappings and lists in one line, as people do."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_mapping(self, tag: str, mapping: Any, flow_style: bool | None = None) -> yaml.MappingNode:
        return super().represent_mapping(tag, mapping, flow_style=_is_small(mapping.values()))

    def represent_sequence(
        self, tag: str, sequence: Any, flow_style: bool | None = None
    ) -> yaml.SequenceNode:
        return super().represent_sequence(tag, sequence, flow_style=_is_small(sequence))


def _is_small(values: Iterable[object]) -> bool:
    found = list(values)
    nested = any(isinstance(value, dict | list) for value in found)
    return not nested and sum(len(str(value)) for value in found) <= _WIDTH


def _print_yaml(document: object, replaced: Mapping[str, str] = MappingProxyType({})) -> None:
    text = yaml.dump(document, Dumper=_Compact, sort_keys=False, width=10_000)
    for old, new in replaced.items():
        text = text.replace(old, new)
    _print(text)


def _print(text: str) -> None:
    print(textwrap.indent(text.rstrip(), "  "))


def _say(text: str) -> None:
    print("\n" + _wrapped(text, ""))


def _wrapped(text: str, first: str) -> str:
    indent = " " * len(first)
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _title(text: str) -> None:
    print(f"\n\n{text}\n{'-' * len(text)}")


def _check(condition: bool, otherwise: str) -> None:
    if not condition:
        raise DemoError(otherwise)


def _end(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def main() -> int:
    signal.signal(signal.SIGTERM, _end)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="gpu-demo-") as folder:
            Demo(Path(folder)).run()
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    except (DemoError, BuildError, subprocess.TimeoutExpired) as error:
        print(f"\nThe demo failed: {error}", file=sys.stderr)
        return 1
    print(f"\nDone in {time.monotonic() - started:.0f} seconds; {folder} is removed.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
