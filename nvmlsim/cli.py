"""nvmlsim: a simulated GPU node with its driver root, NVML library and nvidia-smi.

Each flag is an environment variable too: NVMLSIM_ and its name in capitals.
"""

import argparse
import json
import os
import sys
from pathlib import Path

from nvmlsim.build import BuildError
from nvmlsim.changes import Options, add_mig_commands, add_set_commands
from nvmlsim.flags import add_flag, add_switch, mig_instances, variable
from nvmlsim.library import StateError
from nvmlsim.machine import MachineError, built_in
from nvmlsim.node import SimulatedNode
from nvmlsim.report import report

_MACHINES = ", ".join(built_in())


def _show(node: SimulatedNode, options: Options) -> None:
    shown = node.show()
    if options.calls:
        print("".join(f"{count:8d} {symbol}\n" for symbol, count in shown["calls"].items()), end="")
    elif options.json:
        print(json.dumps(shown, indent=2))
    else:
        print("\n".join(report(shown)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nvmlsim", description=__doc__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    text = "make a node"
    init = commands.add_parser("init", help=text, description=text)
    init.add_argument("root", type=Path, help="folder that becomes the driver root")
    add_flag(init, "--machine", f"a .yaml file, or one of {_MACHINES}", metavar="NAME|FILE", required=True)
    add_flag(init, "--driver-version", "version of the driver (default: the machine's)", metavar="VERSION")
    init.add_argument(
        "--mig",
        action="append",
        type=mig_instances,
        metavar="GPU=PROFILE,…",
        help="GPU instances that exist from the start, e.g. 0=1g.10gb,1c.3g.40gb; may be repeated "
        f"[${variable('--mig')}, several with spaces]",
    )
    text = "tell what a node consists of"
    show = commands.add_parser("show", help=text, description=text)
    show.add_argument("root", type=Path, help="the node's folder")
    add_switch(show, "--json", "everything, as JSON")
    add_switch(show, "--calls", "how often each NVML symbol was called")
    show.set_defaults(action=_show)
    for name, text, fill in (
        ("set", "change a node while programs run on it", add_set_commands),
        ("mig", "static MIG instances, as an administrator makes them", add_mig_commands),
    ):
        group = commands.add_parser(name, help=text, description=text)
        group.add_argument("root", type=Path, help="the node's folder")
        fill(group.add_subparsers(dest="what", metavar="WHAT", required=True))
    return parser


def _instances_of_environment() -> list[tuple[int, list[str]]]:
    name = variable("--mig")
    try:
        return [mig_instances(part) for part in os.environ.get(name, "").split()]
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"${name}: {error}") from None


def _init(options: Options) -> None:
    overrides: dict[str, object] = {}
    if options.driver_version is not None:
        overrides["driver_version"] = options.driver_version
    instances = _instances_of_environment() if options.mig is None else options.mig
    if instances:
        by_gpu: dict[int, list[str]] = {}
        for gpu, profiles in instances:
            by_gpu.setdefault(gpu, []).extend(profiles)
        overrides["mig"] = by_gpu
    SimulatedNode.create(options.root, options.machine, **overrides)


def main(arguments: list[str] | None = None) -> int:
    """Run the program; returns its exit status: 0 done, 1 failed. Wrong usage ends it with 2."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "init":
            _init(options)
        else:
            options.action(SimulatedNode(options.root), options)
    except (BuildError, MachineError, OSError, StateError, ValueError) as error:
        print(f"nvmlsim: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
