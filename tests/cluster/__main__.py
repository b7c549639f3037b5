"""`python -m tests.cluster up`: a cluster of one node, kept running until Ctrl-C."""

from __future__ import annotations

import argparse

from tests.cluster.playground import keep_running


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("command", choices=["up"], help="start a cluster and keep it until Ctrl-C")
    parser.parse_args()
    return keep_running()


if __name__ == "__main__":
    raise SystemExit(main())
