"""The program: wrong usage and an address in use end it with a word."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from tests.cluster.components import REPOSITORY

KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: nowhere, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: nobody, user: {}}]
contexts: [{name: here, context: {cluster: nowhere, user: nobody}}]
current-context: here
"""


def run(*flags: str) -> tuple[int, str]:
    """The exit status and what was written to standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "controller.cli", *flags],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr


def test_wrong_usage_ends_with_2() -> None:
    status, error = run("--namespace", "not a name")
    assert status == 2
    assert "--namespace: 'not a name'" in error


def test_an_address_in_use_ends_with_1(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        status, error = run("--namespace", "n", "--kubeconfig", str(kubeconfig), "--http-address", address)
    assert status == 1
    assert "address already in use" in error
    assert "Traceback" not in error
