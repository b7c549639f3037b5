"""nvmlsim: a simulated GPU node with its driver root, NVML library and nvidia-smi."""

import argparse
import json
import sys
from pathlib import Path

from nvmlsim.build import BuildError
from nvmlsim.library import StateError
from nvmlsim.machine import MachineError, built_in
from nvmlsim.node import SimulatedNode


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nvmlsim", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    init = commands.add_parser("init", help="make a node")
    init.add_argument("root", type=Path, help="folder that becomes the driver root")
    init.add_argument("--machine", required=True, help=f"a .yaml file, or one of {', '.join(built_in())}")
    show = commands.add_parser("show", help="tell what a node consists of")
    show.add_argument("root", type=Path)
    return parser


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        if options.command == "init":
            SimulatedNode.create(options.root, options.machine)
        else:
            print(json.dumps(SimulatedNode(options.root).show(), indent=2))
    except (BuildError, MachineError, StateError) as error:
        print(f"nvmlsim: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
