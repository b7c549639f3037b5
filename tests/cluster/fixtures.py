"""Fixtures for the tests that need a Kubernetes; a conftest.py imports those it offers.

Each is started once a session. Their logs are copied to `build/logs` when it ends.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.components import REPOSITORY
from tests.cluster.controlplane import ControlPlane
from tests.cluster.requirements import cluster_missing, control_plane_missing

LOGS = REPOSITORY / "build" / "logs"


def require(missing: Sequence[str]) -> None:
    """Skip the test when this machine lacks something, and say what.

    With `GPU_DRA_REQUIRE_E2E=1` in the environment, as in CI, that is a failure.
    """
    if not missing:
        return
    text = "this machine lacks: " + "; ".join(missing)
    if os.environ.get("GPU_DRA_REQUIRE_E2E") == "1":
        pytest.fail(f"{text} (and GPU_DRA_REQUIRE_E2E=1 demands it)", pytrace=False)
    pytest.skip(text)


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """etcd and the API server, without scheduler, controller manager or node."""
    require(control_plane_missing())
    with ControlPlane() as started:
        try:
            yield started
        finally:
            started.workspace.keep_logs(LOGS / "control-plane")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A whole one-node cluster that runs pods."""
    require(cluster_missing())
    with Cluster() as started:
        try:
            yield started
        finally:
            started.workspace.keep_logs(LOGS / "cluster")
