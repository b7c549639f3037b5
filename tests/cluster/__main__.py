"""`python -m tests.cluster up`: a cluster of one node with simulated GPUs, the plugin and example pods."""

from __future__ import annotations

import argparse

from tests.cluster.playground import keep_running
from tests.harness.playground import gpus_and_pods


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("command", choices=["up"], help="start a cluster and keep it until Ctrl-C")
    parser.parse_args()
    return keep_running([gpus_and_pods])


if __name__ == "__main__":
    raise SystemExit(main())
