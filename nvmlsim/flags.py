"""Flags of the program `nvmlsim`: each is an environment variable too, and its help tells which."""

import argparse
import os
from collections.abc import Callable
from typing import Any


def variable(flag: str) -> str:
    """`--exit-code` is `NVMLSIM_EXIT_CODE`."""
    return f"NVMLSIM_{flag.lstrip('-').upper().replace('-', '_')}"


def add_flag(
    parser: argparse.ArgumentParser,
    flag: str,
    does: str,
    kind: Callable[[str], Any] = str,
    *,
    metavar: str = "VALUE",
    default: Any = None,
    required: bool = False,
) -> None:
    """A flag with a value; the environment gives its default."""
    given = os.environ.get(variable(flag))
    parser.add_argument(
        flag,
        type=kind,
        metavar=metavar,
        default=given or default,
        required=required and not given,
        help=f"{does} [${variable(flag)}]",
    )


def add_switch(parser: argparse.ArgumentParser, flag: str, does: str) -> None:
    """A flag without a value; as an environment variable it is `true` or `false`."""
    given = os.environ.get(variable(flag)) or "false"
    if given not in ("true", "false"):
        parser.error(f"${variable(flag)}: {given!r} is not one of true, false")
    parser.add_argument(
        flag, action="store_true", default=given == "true", help=f"{does} [${variable(flag)}=true]"
    )


def number(text: str) -> int:
    """A whole number, 0 or above."""
    try:
        value = int(text, 0)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 0 or above")
    return value


def mig_instances(text: str) -> tuple[int, list[str]]:
    """`0=1g.10gb,3g.40gb`: a GPU's number and profiles."""
    gpu, _, profiles = text.partition("=")
    names = [name.strip() for name in profiles.split(",") if name.strip()]
    if not (gpu.isascii() and gpu.isdigit() and names):
        raise argparse.ArgumentTypeError(f"{text!r} is not GPU=PROFILE,… as in 0=1g.10gb,1c.3g.40gb")
    return int(gpu), names
