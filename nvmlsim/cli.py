"""nvmlsim: a simulated GPU node with its driver root, NVML library and nvidia-smi."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from nvmlsim.build import BuildError
from nvmlsim.library import StateError
from nvmlsim.machine import MachineError, built_in
from nvmlsim.models import models
from nvmlsim.node import ALL_SYMBOLS, SimulatedNode
from nvmlsim.report import report

if TYPE_CHECKING:
    Commands: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]

Options = argparse.Namespace
Action = Callable[[SimulatedNode, Options], None]


def _gpu_number(node: SimulatedNode, text: str) -> int:
    for gpu in node.gpus():
        if text.lower() in (str(gpu.gpu), gpu.uuid.lower(), gpu.pci_bus_id):
            return gpu.gpu
    raise StateError(f"{node.root}: no GPU {text!r}; give its number, UUID or PCI address (see nvmlsim show)")


def _optional_gpu(node: SimulatedNode, text: str | None) -> int | None:
    return None if text is None else _gpu_number(node, text)


def _symbol(text: str) -> str:
    return ALL_SYMBOLS if text == "all" else text


def _add(
    commands: "Commands", name: str, text: str, action: Action, *arguments: str
) -> argparse.ArgumentParser:
    """A command whose positional arguments are the given words; `word?` is optional, `word*` a list."""
    parser = commands.add_parser(name, help=text, description=text)
    for argument in arguments:
        count = {"?": "?", "*": "*"}.get(argument[-1])
        parser.add_argument(argument.rstrip("?*"), nargs=count)
    parser.set_defaults(action=action)
    return parser


def _set_commands(commands: "Commands") -> None:
    for name, text, word, action in (
        ("return", "answer a symbol with an NVML return code (a number)", "code", _set_return),
        ("delay", "make a symbol, or all, slow (milliseconds)", "milliseconds", _set_delay),
    ):
        parser = _add(commands, name, text, action, "symbol", word)
        parser.add_argument("--times", type=int, help="for this many calls (default: always)")
        parser.add_argument("--gpu", help="on this GPU only")
    _add(
        commands,
        "clear",
        "take back return codes and delays",
        lambda n, o: n.clear_faults(o.symbol or "*"),
        "symbol?",
    )
    _add(
        commands,
        "missing",
        "lack exactly these symbols",
        lambda n, o: n.set_missing_symbols(o.symbols),
        "symbols*",
    )
    _add(commands, "lose", "lose a GPU", lambda n, o: n.lose(_gpu_number(n, o.gpu)), "gpu")
    _add(commands, "restore", "bring a lost GPU back", lambda n, o: n.restore(_gpu_number(n, o.gpu)), "gpu")
    _add(commands, "unplug", "take a GPU out", lambda n, o: n.unplug(_gpu_number(n, o.gpu)), "gpu")
    plug = _add(commands, "plug", f"put a GPU in: {', '.join(models())}", _plug, "model")
    for option in ("--pci", "--uuid", "--minor", "--numa-node"):
        plug.add_argument(option)
    for name, text, word, action in (
        ("xid", "let a GPU or MIG instance report an XID", "xid", _xid),
        ("process", "let a program run on a GPU or MIG device", "pid", _process),
    ):
        parser = _add(commands, name, text, action, "gpu", word)
        parser.add_argument("--gi", type=int)
        parser.add_argument("--ci", type=int)
    _add(commands, "no-process", "end a program", lambda n, o: n.remove_process(int(o.pid)), "pid")
    _add(
        commands,
        "pending-mig",
        "set a MIG mode (on, off) that a reset activates",
        _pending_mig,
        "gpu",
        "mode",
    )
    _add(commands, "gpu", "change a GPU's settings: key=value …", _set_gpu, "gpu", "settings*")
    _add(commands, "link", "take an NVLink up or down", _set_link, "gpu", "link", "state")
    _add(
        commands,
        "minors",
        "give the GPUs other minors",
        lambda n, o: n.permute_minors(_numbers(o)),
        "numbers*",
    )
    _add(
        commands,
        "indexes",
        "give the GPUs other indexes",
        lambda n, o: n.permute_indexes(_numbers(o)),
        "numbers*",
    )
    version = _add(commands, "driver-version", "install another driver version", _driver_version, "version")
    version.add_argument("--no-reload", action="store_true", help="keep the old kernel module loaded")
    _add(commands, "driver", "load or unload the kernel module (loaded, unloaded)", _driver, "state")
    smi = _add(commands, "nvidia-smi", "make nvidia-smi fail or hang", _nvidia_smi)
    smi.add_argument("--exit-code", type=int, default=0)
    smi.add_argument("--delay", type=int, default=0, help="milliseconds")
    _add(commands, "reset", "reset a GPU", lambda n, o: n.reset(_gpu_number(n, o.gpu)), "gpu")
    _add(commands, "reboot", "reboot the node", lambda n, _: n.reboot())


def _numbers(options: Options) -> list[int]:
    return [int(number) for number in options.numbers]


def _set_return(node: SimulatedNode, options: Options) -> None:
    gpu = _optional_gpu(node, options.gpu)
    node.set_return(_symbol(options.symbol), int(options.code), options.times, gpu)


def _set_delay(node: SimulatedNode, options: Options) -> None:
    gpu = _optional_gpu(node, options.gpu)
    node.set_delay(_symbol(options.symbol), int(options.milliseconds), options.times, gpu)


def _plug(node: SimulatedNode, options: Options) -> None:
    given = {key: getattr(options, key) for key in ("pci", "uuid", "minor", "numa_node")}
    gpu = node.plug(options.model, **{key: value for key, value in given.items() if value is not None})
    print(f"GPU {gpu.gpu}: {gpu.uuid} at {gpu.pci_bus_id}")


def _xid(node: SimulatedNode, options: Options) -> None:
    node.xid(_gpu_number(node, options.gpu), int(options.xid), options.gi, options.ci)


def _process(node: SimulatedNode, options: Options) -> None:
    node.add_process(_gpu_number(node, options.gpu), int(options.pid), options.gi, options.ci)


def _pending_mig(node: SimulatedNode, options: Options) -> None:
    node.set_mig_mode(_gpu_number(node, options.gpu), options.mode == "on", pending_only=True)


def _set_gpu(node: SimulatedNode, options: Options) -> None:
    settings = dict(setting.partition("=")[::2] for setting in options.settings)
    node.set_gpu(_gpu_number(node, options.gpu), **settings)


def _set_link(node: SimulatedNode, options: Options) -> None:
    node.set_link(_gpu_number(node, options.gpu), int(options.link), options.state == "up")


def _driver_version(node: SimulatedNode, options: Options) -> None:
    node.set_driver_version(options.version, reload=not options.no_reload)


def _driver(node: SimulatedNode, options: Options) -> None:
    node.load_driver(options.state == "loaded")


def _nvidia_smi(node: SimulatedNode, options: Options) -> None:
    node.set_nvidia_smi(options.exit_code, options.delay)


def _mig_commands(commands: "Commands") -> None:
    _add(
        commands,
        "create",
        "make a GPU instance with compute instances",
        _mig_create,
        "gpu",
        "profile",
        "start?",
    )
    _add(
        commands,
        "destroy",
        "destroy a GPU instance, or one compute instance",
        _mig_destroy,
        "gpu",
        "gi",
        "ci?",
    )
    _add(commands, "mode", "turn MIG mode on or off at once", _mig_mode, "gpu", "mode")


def _mig_create(node: SimulatedNode, options: Options) -> None:
    start = None if options.start is None else int(options.start)
    made = node.create_mig(_gpu_number(node, options.gpu), options.profile, start)
    for ci in made.compute_instances:
        print(f"GI {made.id} CI {ci.id}: {ci.profile} {ci.uuid}")


def _mig_destroy(node: SimulatedNode, options: Options) -> None:
    ci = None if options.ci is None else int(options.ci)
    node.destroy_mig(_gpu_number(node, options.gpu), int(options.gi), ci)


def _mig_mode(node: SimulatedNode, options: Options) -> None:
    node.set_mig_mode(_gpu_number(node, options.gpu), options.mode == "on")


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
    commands = parser.add_subparsers(dest="command", required=True)
    init = commands.add_parser("init", help="make a node")
    init.add_argument("root", type=Path, help="folder that becomes the driver root")
    init.add_argument("--machine", required=True, help=f"a .yaml file, or one of {', '.join(built_in())}")
    init.add_argument("--driver-version")
    init.add_argument(
        "--mig",
        action="append",
        default=[],
        metavar="GPU=PROFILE,…",
        help="GPU instances that exist from the start, e.g. 0=1g.10gb,1c.3g.40gb",
    )
    show = commands.add_parser("show", help="tell what a node consists of")
    show.add_argument("root", type=Path)
    show.add_argument("--json", action="store_true", help="everything, as JSON")
    show.add_argument("--calls", action="store_true", help="how often each NVML symbol was called")
    show.set_defaults(action=_show)
    for name, text, fill in (
        ("set", "change a node while programs run on it", _set_commands),
        ("mig", "static MIG instances, as an administrator makes them", _mig_commands),
    ):
        group = commands.add_parser(name, help=text)
        group.add_argument("root", type=Path)
        fill(group.add_subparsers(dest="what", required=True))
    return parser


def _init(options: Options) -> None:
    overrides: dict[str, object] = {}
    if options.driver_version is not None:
        overrides["driver_version"] = options.driver_version
    if options.mig:
        pairs = (entry.partition("=")[::2] for entry in options.mig)
        overrides["mig"] = {gpu: profiles.split(",") for gpu, profiles in pairs}
    SimulatedNode.create(options.root, options.machine, **overrides)


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        if options.command == "init":
            _init(options)
        else:
            options.action(SimulatedNode(options.root), options)
    except (BuildError, MachineError, StateError, ValueError) as error:
        print(f"nvmlsim: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
