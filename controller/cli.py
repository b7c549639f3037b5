"""The program ``gpu-dra-controller``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from controller import settings
from controller.service import serve
from kube import logs
from kube.configuration import ConfigurationError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit status: 0 done, 1 failed, 2 wrong usage."""
    parser = argparse.ArgumentParser(
        prog="gpu-dra-controller",
        description="Keeps the DeviceClasses of NVIDIA GPUs true for a cluster. Several replicas may run; "
        "one of them leads.",
    )
    settings.add_arguments(parser)
    parsed = parser.parse_args(arguments)
    try:
        chosen = settings.read(parsed)
    except ValueError as error:
        parser.error(str(error))
    logs.set_up(chosen.log_format, chosen.log_level)
    try:
        serve(chosen)
    except (ConfigurationError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    except BaseExceptionGroup as group:
        known, unknown = group.split(OSError)
        if unknown is not None:
            raise unknown from None
        for problem in known.exceptions if known else ():
            print(f"{parser.prog}: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
