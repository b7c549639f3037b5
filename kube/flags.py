"""Flags of the programs: each is an environment variable too (``--node-name`` is ``NODE_NAME``).

The functions that read a value raise ValueError with the flag, its value and what is allowed.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")

_LEAST_SECONDS = 0.01
_MOST_SECONDS = 1_000_000_000

Values = Mapping[str, str]
"""What was given for each flag, by its name without dashes; empty text for nothing."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag; ``default`` is empty where there is none that can be written down."""

    name: str
    default: str
    help: str

    @property
    def variable(self) -> str:
        return self.name.upper().replace("-", "_")


def add_flags(
    parser: argparse.ArgumentParser,
    flags: Iterable[Flag],
    environment: Mapping[str, str] = os.environ,
    *,
    suppress_defaults: bool = False,
) -> None:
    """Add the flags to a parser; their defaults come from the environment.

    With ``suppress_defaults`` a flag that is not given sets nothing: for sub-commands that repeat the flags.
    """
    group = parser.add_argument_group("settings")
    for flag in flags:
        default = environment.get(flag.variable, "") or flag.default
        if suppress_defaults:
            default = argparse.SUPPRESS
        shown = f" (default: {flag.default})" if flag.default else ""
        group.add_argument(
            f"--{flag.name}", default=default, metavar="VALUE", help=f"{flag.help}{shown} [${flag.variable}]"
        )


def values(arguments: argparse.Namespace, flags: Iterable[Flag]) -> Values:
    """What was given for each of the flags."""
    return {flag.name: str(getattr(arguments, flag.name.replace("-", "_"))) for flag in flags}


def optional_path(given: Values, name: str) -> Path | None:
    """A path, made absolute from the current folder."""
    return Path(given[name]).absolute() if given[name] else None


def seconds(given: Values, name: str) -> float:
    try:
        number = float(given[name])
    except ValueError:
        number = math.nan
    if not _LEAST_SECONDS <= number <= _MOST_SECONDS:
        raise ValueError(
            f"--{name}: {given[name]!r} is not a number of seconds from {_LEAST_SECONDS} to {_MOST_SECONDS}"
        )
    return number


def address(given: Values, name: str) -> tuple[str, int] | None:
    """Host and port to listen on; an empty host means all addresses, ``None`` that nothing is served."""
    value = given[name]
    if value in ("", "none"):
        return None
    host, _, port = value.rpartition(":")
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"--{name}: {value!r} is not HOST:PORT or :PORT with a port from 1 to 65535")
    return host.strip("[]"), int(port)


def one_of(given: Values, name: str, allowed: Sequence[str], *, or_empty: bool = False) -> str:
    if given[name] not in allowed and (given[name] or not or_empty):
        raise ValueError(f"--{name}: {given[name]!r} is not one of {', '.join(allowed)}")
    return given[name]
