"""The program ``gpu-kubelet-plugin``: the service, and the same work by hand."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kube import logs
from kubeletplugin import settings
from kubeletplugin.settings import Settings

if TYPE_CHECKING:
    from kubeletplugin.store import ClaimRecord

_OUTPUTS = ("table", "yaml")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit status: 0 done, 1 failed, 2 wrong usage."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    try:
        chosen = settings.read(parsed)
    except ValueError as error:
        parser.error(str(error))
    if parsed.command in (None, "run"):
        logs.set_up(chosen.log_format, chosen.log_level or "info")
        return _serve(chosen)
    logs.set_up(chosen.log_format, chosen.log_level or "warning")
    try:
        return asyncio.run(_by_hand(parsed, chosen))
    except BrokenPipeError:
        # Who read the output has seen enough; nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    settings.add_arguments(common)
    parser = argparse.ArgumentParser(
        prog="gpu-kubelet-plugin",
        usage="%(prog)s [SETTINGS] [COMMAND]",
        description="Offers this node's NVIDIA GPUs to Kubernetes by Dynamic Resource Allocation. "
        "Without a command it serves the kubelet; the other commands need no Kubernetes.",
        parents=[common],
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", prog=parser.prog)
    # A flag before the command must not be reset by the command's own default.
    late = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    settings.add_arguments(late, suppress_defaults=True)

    def command(name: str, words: str, does: str) -> argparse.ArgumentParser:
        usage = " ".join(f"%(prog)s [SETTINGS] {words}".split())
        return commands.add_parser(name, parents=[late], usage=usage, help=does, description=does)

    command("run", "", "serve the kubelet (the default)")
    inventory = command("inventory", "[-o FORMAT]", "show what this node would publish")
    _add_output(inventory, "table, or yaml for ResourceSlices")
    prepare = command(
        "prepare", "-f FILE [--device [REQUEST=]DEVICE]... [-o FORMAT]", "prepare a claim from a file"
    )
    filename = os.environ.get("PREPARE_FILENAME")
    prepare.add_argument(
        "-f",
        "--filename",
        metavar="FILE",
        default=filename,
        required=not filename,
        help="the claim: a ResourceClaim or ResourceClaimTemplate, as YAML or JSON [$PREPARE_FILENAME]",
    )
    prepare.add_argument(
        "--device",
        action="append",
        metavar="[REQUEST=]DEVICE",
        help="a device for the claim, in place of the scheduler's choice; may be repeated [$PREPARE_DEVICE, "
        "several with commas]",
    )
    _add_output(prepare, "table or yaml")
    unprepare = command("unprepare", "NAMESPACE/NAME|UID", "give a claim's devices back")
    unprepare.add_argument("claim", metavar="NAMESPACE/NAME|UID", help="which claim, as list shows it")
    listing = command("list", "[-o FORMAT]", "show the prepared claims")
    _add_output(listing, "table or yaml")
    return parser


def _add_output(parser: argparse.ArgumentParser, formats: str) -> None:
    """Add ``--output``; its environment variable begins with the command, as those of all commands' flags."""
    variable = f"{parser.prog.split()[-1].upper()}_OUTPUT"
    parser.add_argument(
        "-o",
        "--output",
        metavar="FORMAT",
        type=_output,
        default=os.environ.get(variable) or "table",
        help=f"{formats} (default: table) [${variable}]",
    )


def _output(value: str) -> str:
    if value not in _OUTPUTS:
        raise argparse.ArgumentTypeError(f"{value!r} is not one of {', '.join(_OUTPUTS)}")
    return value


def _devices(parsed: argparse.Namespace) -> list[str]:
    """The chosen devices, of the flag or else of its environment variable."""
    given: list[str] | None = parsed.device
    if given is None:
        given = [part.strip() for part in os.environ.get("PREPARE_DEVICE", "").split(",") if part.strip()]
    return given


def _serve(chosen: Settings) -> int:
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    # What the imports make stays to the end: to look through it again and again would hold up claims.
    gc.disable()
    from kube.configuration import ConfigurationError
    from kubeletplugin.service import serve
    from kubeletplugin.sockets import SocketError
    from kubeletplugin.store import StoreError

    gc.collect()
    gc.freeze()
    gc.enable()
    try:
        serve(chosen)
    except (ConfigurationError, SocketError, StoreError, OSError, ValueError) as error:
        print(f"gpu-kubelet-plugin: {error}", file=sys.stderr)
        return 1
    except BaseExceptionGroup as group:
        known, unknown = group.split((SocketError, StoreError, OSError))
        if unknown is not None:
            raise unknown from None
        for problem in known.exceptions if known else ():
            print(f"gpu-kubelet-plugin: {problem}", file=sys.stderr)
        return 1
    return 0


async def _by_hand(parsed: argparse.Namespace, chosen: Settings) -> int:
    from kubeletplugin import standalone, tables
    from kubeletplugin.failures import failure

    try:
        if parsed.command == "inventory":
            slices = await standalone.inventory(chosen)
            print(tables.inventory_table(slices) if parsed.output == "table" else tables.as_yaml(slices))
            return 0

        def show(records: Sequence[ClaimRecord]) -> str:
            if parsed.output == "table":
                return tables.claims_table(records)
            return tables.as_yaml([tables.claims_as_values(records)])

        reads, insists = parsed.command != "list", parsed.command == "prepare"
        async with standalone.open_node(chosen, read_hardware=reads, insist=insists) as node:
            if parsed.command == "prepare":
                claim = standalone.load_claim(
                    Path(parsed.filename), _devices(parsed), chosen.pool_name, node.shared()
                )
                print(show([await node.prepare(claim)]))
            elif parsed.command == "unprepare":
                record = await node.unprepare(parsed.claim)
                print(f"unprepared {record.claim}")
            else:
                print(show(list((await node.engine.records()).values())))
    except standalone.StandaloneError as error:
        print(f"gpu-kubelet-plugin {parsed.command}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        raise
    except Exception as error:
        print(f"gpu-kubelet-plugin {parsed.command}: {failure(error)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
