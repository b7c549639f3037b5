"""``python -m tests.bench``: measure, show a table, and write ``build/bench.json``."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.bench import figures, measures
from tests.bench.controller import measure_controller
from tests.bench.figures import Figure
from tests.bench.partitions import measure_partitions
from tests.bench.shares import measure_shares
from tests.cluster.components import REPOSITORY
from tests.cluster.controlplane import ControlPlane
from tests.cluster.requirements import control_plane_missing

OUTPUT = REPOSITORY / "build" / "bench.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 measured, whatever the figures are; 1 not possible here."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few cycles, to see that the bench works")
    parser.add_argument(
        "--nodes",
        type=int,
        help=f"nodes of the controller's cluster (default: {measures.FULL.nodes}); making the slices of a "
        "thousand takes many minutes",
    )
    parser.add_argument("--output", type=Path, default=OUTPUT, help="the JSON file (default: %(default)s)")
    parsed = parser.parse_args(arguments)
    missing = control_plane_missing()
    if missing:
        print(f"bench: this machine lacks: {'; '.join(missing)}", file=sys.stderr)
        return 1
    plan = measures.QUICK if parsed.quick else measures.FULL
    if parsed.nodes is not None:
        plan = dataclasses.replace(plan, nodes=parsed.nodes)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before the start", flush=True)
    found: list[Figure] = []
    with ControlPlane() as control_plane:
        for measure in (measures.measure, measure_partitions, measure_shares, measure_controller):
            for figure in measure(control_plane, plan):
                print(f"  {figure.name}", file=sys.stderr)
                found.append(figure)
    print(figures.table(found))
    figures.write(found, parsed.output)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
