"""Node tests: the real plugin process and a real API server, with simulated GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.controlplane import ControlPlane
from tests.cluster.fixtures import control_plane
from tests.harness.plugin import PluginNode, plugin_node

MakeNode = Callable[..., PluginNode]

__all__ = ["control_plane"]

LONG_MODULES = (
    "test_partitions_steps",
    "test_timeslicing_steps",
    "test_partitions_random",
    "test_crash_again",
    "test_crash_partitions",
    "test_crash_steps",
    "test_bench",
    "test_crash_shares",
    "test_crash_timeslicing",
)
"""Begun first, so that none of them is what all wait for at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.stem not in LONG_MODULES)


@pytest.fixture
def make_node(control_plane: ControlPlane) -> Iterator[MakeNode]:
    """Makes nodes that end with the test: ``make_node("t4x4")``; the plugin is not started yet."""
    with ExitStack() as stack:

        def make(machine: str | Path = "hgx-h100", **overrides: object) -> PluginNode:
            return stack.enter_context(plugin_node(control_plane, machine, **overrides))

        yield make


@pytest.fixture
def node(make_node: MakeNode) -> PluginNode:
    """An eight-GPU H100 node with its plugin running."""
    made = make_node()
    made.start()
    return made
