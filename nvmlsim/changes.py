"""`nvmlsim set` and `nvmlsim mig`: what happens to a node while programs run on it."""

import argparse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from nvmlsim.flags import add_flag, add_switch, number
from nvmlsim.gpusettings import NUMBERS, TEXTS, SettingError
from nvmlsim.library import StateError
from nvmlsim.models import models
from nvmlsim.node import ALL_SYMBOLS, SimulatedNode

if TYPE_CHECKING:
    Commands: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]

Options = argparse.Namespace
Action = Callable[[SimulatedNode, Options], None]

_GPU = {"gpu": {"help": "the GPU's number, UUID or PCI address, as nvmlsim show has them"}}
_SYMBOL = {"symbol": {"help": "an NVML function, such as nvmlDeviceGetName; all: every one"}}
_MODE = {"mode": {"choices": ("on", "off"), "help": "on or off"}}
_GI = {"gi": {"type": number, "help": "GPU instance id"}}
_PID = {"pid": {"type": number, "help": "process id"}}


def gpu_number(node: SimulatedNode, text: str) -> int:
    """The number of a GPU that is named by its number, UUID or PCI address. Raises StateError."""
    for gpu in node.gpus():
        if text.lower() in (str(gpu.gpu), gpu.uuid.lower(), gpu.pci_bus_id):
            return gpu.gpu
    raise StateError(f"{node.root}: no GPU {text!r}; give its number, UUID or PCI address (see nvmlsim show)")


def _gpu(node: SimulatedNode, options: Options) -> int:
    return gpu_number(node, options.gpu)


def _optional_gpu(node: SimulatedNode, options: Options) -> int | None:
    return None if options.gpu is None else gpu_number(node, options.gpu)


def _symbol(options: Options) -> str:
    return ALL_SYMBOLS if options.symbol == "all" else str(options.symbol)


def _add(
    commands: "Commands",
    name: str,
    text: str,
    action: Action,
    *arguments: Mapping[str, Mapping[str, Any]],
    epilog: str | None = None,
) -> argparse.ArgumentParser:
    """A command with its positional arguments, each by its name and what argparse is to know of it."""
    parser = commands.add_parser(
        name,
        help=text,
        description=text,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for argument in arguments:
        for word, about in argument.items():
            parser.add_argument(word, **about)
    parser.set_defaults(action=action)
    return parser


def add_set_commands(commands: "Commands") -> None:
    """The commands of `nvmlsim set`."""
    _add_faults(commands)
    _add_gpus(commands)
    _add_states(commands)
    _add_driver(commands)


def _add_faults(commands: "Commands") -> None:
    code = {"code": {"type": number, "help": "NVML return code, such as 15 for GPU_IS_LOST"}}
    delay = {"milliseconds": {"type": number, "help": "how long each call takes longer"}}
    for name, text, argument, action in (
        ("return", "answer a symbol with an NVML return code", code, _set_return),
        ("delay", "make a symbol, or all, slow", delay, _set_delay),
    ):
        parser = _add(commands, name, text, action, _SYMBOL, argument)
        add_flag(parser, "--times", "for this many calls (default: always)", number, metavar="N")
        add_flag(parser, "--gpu", "on this GPU only: number, UUID or PCI address", metavar="GPU")
    symbol = {"symbol": {**_SYMBOL["symbol"], "nargs": "?", "default": "all"}}
    _add(commands, "clear", "take back return codes and delays", _clear, symbol)
    missing = {"symbols": {"nargs": "*", "help": "NVML functions; none: it lacks nothing"}}
    _add(commands, "missing", "lack exactly these symbols, as an older driver does", _missing, missing)


def _add_gpus(commands: "Commands") -> None:
    _add(commands, "lose", "lose a GPU", lambda node, o: node.lose(_gpu(node, o)), _GPU)
    _add(commands, "restore", "bring a lost GPU back", lambda node, o: node.restore(_gpu(node, o)), _GPU)
    _add(commands, "unplug", "take a GPU out", lambda node, o: node.unplug(_gpu(node, o)), _GPU)
    model = {"model": {"choices": tuple(models()), "metavar": "model", "help": ", ".join(models())}}
    plug = _add(commands, "plug", "put a GPU in", _plug, model)
    add_flag(plug, "--pci", "its PCI address (default: a free one)", metavar="ADDRESS")
    add_flag(plug, "--uuid", "its UUID (default: one made of its PCI address)", metavar="UUID")
    add_flag(plug, "--minor", "its device minor (default: the lowest free one)", number, metavar="N")
    add_flag(plug, "--numa-node", "its NUMA node (default: by its position)", number, metavar="N")
    _add(commands, "reset", "reset a GPU", lambda node, o: node.reset(_gpu(node, o)), _GPU)


def _add_states(commands: "Commands") -> None:
    xid = {"xid": {"type": number, "help": "number of the XID; 79 also loses the GPU"}}
    for name, text, argument, action in (
        ("xid", "let a GPU or MIG instance report an XID", xid, _xid),
        ("process", "let a program run on a GPU or MIG device", _PID, _process),
    ):
        parser = _add(commands, name, text, action, _GPU, argument)
        add_flag(parser, "--gi", "GPU instance id (default: the whole GPU)", number, metavar="ID")
        add_flag(parser, "--ci", "compute instance id", number, metavar="ID")
    _add(commands, "no-process", "end a program", lambda node, o: node.remove_process(o.pid), _PID)
    _add(commands, "pending-mig", "set a MIG mode that a reset activates", _pending_mig, _GPU, _MODE)
    settings = {"settings": {"nargs": "+", "metavar": "setting=value", "help": "one of those below"}}
    every = (TEXTS | NUMBERS).items()
    table = "settings:\n" + "\n".join(f"  {name:<23}{does}" for name, does in every)
    _add(commands, "gpu", "change what a GPU is or tells", _set_gpu, _GPU, settings, epilog=table)
    link = {"link": {"type": number, "help": "the NVLink's number"}}
    state = {"state": {"choices": ("up", "down"), "help": "up or down"}}
    _add(commands, "link", "take one end of an NVLink up or down", _set_link, _GPU, link, state)
    for name, text, action in (
        ("minors", "give the GPUs other device minors", _minors),
        ("indexes", "give the GPUs other NVML indexes", _indexes),
    ):
        one_each = {"type": number, "nargs": "+", "metavar": "N", "help": "one for each GPU"}
        _add(commands, name, text, action, {"numbers": one_each})


def _add_driver(commands: "Commands") -> None:
    version = {"version": {"help": "such as 580.95.05"}}
    driver = _add(commands, "driver-version", "install another driver version", _driver_version, version)
    add_switch(driver, "--no-reload", "keep the old kernel module loaded, so that NVML fails")
    state = {"state": {"choices": ("loaded", "unloaded"), "help": "loaded or unloaded"}}
    _add(commands, "driver", "load or unload the kernel module", _driver, state)
    smi = _add(commands, "nvidia-smi", "make nvidia-smi fail or hang", _nvidia_smi)
    add_flag(smi, "--exit-code", "its exit status (default: 0)", number, metavar="N", default=0)
    add_flag(smi, "--delay", "milliseconds that it waits (default: 0)", number, metavar="N", default=0)
    _add(commands, "reboot", "reboot the node", lambda node, _: node.reboot())


def _set_return(node: SimulatedNode, options: Options) -> None:
    node.set_return(_symbol(options), options.code, options.times, _optional_gpu(node, options))


def _set_delay(node: SimulatedNode, options: Options) -> None:
    node.set_delay(_symbol(options), options.milliseconds, options.times, _optional_gpu(node, options))


def _clear(node: SimulatedNode, options: Options) -> None:
    node.clear_faults(_symbol(options))


def _missing(node: SimulatedNode, options: Options) -> None:
    node.set_missing_symbols(options.symbols)


def _plug(node: SimulatedNode, options: Options) -> None:
    given = {key: getattr(options, key) for key in ("pci", "uuid", "minor", "numa_node")}
    gpu = node.plug(options.model, **{key: value for key, value in given.items() if value is not None})
    print(f"GPU {gpu.gpu}: {gpu.uuid} at {gpu.pci_bus_id}")


def _xid(node: SimulatedNode, options: Options) -> None:
    node.xid(_gpu(node, options), options.xid, options.gi, options.ci)


def _process(node: SimulatedNode, options: Options) -> None:
    node.add_process(_gpu(node, options), options.pid, options.gi, options.ci)


def _pending_mig(node: SimulatedNode, options: Options) -> None:
    node.set_mig_mode(_gpu(node, options), options.mode == "on", pending_only=True)


def _set_gpu(node: SimulatedNode, options: Options) -> None:
    settings = {}
    for setting in options.settings:
        name, separator, value = setting.partition("=")
        if not separator:
            raise SettingError(f"{setting!r} is not setting=value; settings are {', '.join(TEXTS | NUMBERS)}")
        settings[name] = value
    node.set_gpu(_gpu(node, options), **settings)


def _set_link(node: SimulatedNode, options: Options) -> None:
    node.set_link(_gpu(node, options), options.link, options.state == "up")


def _minors(node: SimulatedNode, options: Options) -> None:
    node.permute_minors(options.numbers)


def _indexes(node: SimulatedNode, options: Options) -> None:
    node.permute_indexes(options.numbers)


def _driver_version(node: SimulatedNode, options: Options) -> None:
    node.set_driver_version(options.version, reload=not options.no_reload)


def _driver(node: SimulatedNode, options: Options) -> None:
    node.load_driver(options.state == "loaded")


def _nvidia_smi(node: SimulatedNode, options: Options) -> None:
    node.set_nvidia_smi(options.exit_code, options.delay)


def add_mig_commands(commands: "Commands") -> None:
    """The commands of `nvmlsim mig`."""
    profile = {"profile": {"help": "such as 1g.10gb; 1c.3g.40gb: filled with compute instances of that size"}}
    start = {"start": {"type": number, "nargs": "?", "help": "where it begins (default: at a free place)"}}
    text = "make a GPU instance with compute instances"
    _add(commands, "create", text, _mig_create, _GPU, profile, start)
    ci = {"ci": {"type": number, "nargs": "?", "help": "compute instance id (default: all of it)"}}
    text = "destroy a GPU instance, or one compute instance"
    _add(commands, "destroy", text, _mig_destroy, _GPU, _GI, ci)
    _add(commands, "mode", "turn MIG mode on or off at once", _mig_mode, _GPU, _MODE)


def _mig_create(node: SimulatedNode, options: Options) -> None:
    made = node.create_mig(_gpu(node, options), options.profile, options.start)
    for ci in made.compute_instances:
        print(f"GI {made.id} CI {ci.id}: {ci.profile} {ci.uuid}")


def _mig_destroy(node: SimulatedNode, options: Options) -> None:
    node.destroy_mig(_gpu(node, options), options.gi, options.ci)


def _mig_mode(node: SimulatedNode, options: Options) -> None:
    node.set_mig_mode(_gpu(node, options), options.mode == "on")
