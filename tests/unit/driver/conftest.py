"""A simulated node and the real NVML binding on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from driver.discovery import discover
from driver.hostfiles import HostRoots
from driver.inventory import Inventory
from driver.nvml import Nvml
from nvmlsim.node import SimulatedNode


@dataclass(frozen=True)
class OpenedNode:
    """A simulated node with its NVML initialised in this process."""

    simulated: SimulatedNode
    nvml: Nvml
    roots: HostRoots

    def discover(self) -> Inventory:
        return discover(self.nvml, self.roots)


OpenNode = Callable[..., OpenedNode]


@pytest.fixture
def open_node(tmp_path: Path) -> Iterator[OpenNode]:
    """Makes a node (machine name or file, and what to override in it) and opens NVML on it.

    A process has one NVML at a time: opening a node closes the one before.
    """
    opened: list[OpenedNode] = []

    def open_one(machine: str | Path, **overrides: object) -> OpenedNode:
        simulated = SimulatedNode.create(tmp_path / f"node-{len(opened)}", machine, **overrides)
        if opened:
            opened[-1].nvml.close()
        roots = HostRoots(simulated.root / "proc", simulated.root / "sys")
        opened.append(OpenedNode(simulated, Nvml(simulated.library_path), roots))
        return opened[-1]

    yield open_one
    if opened:
        opened[-1].nvml.close()
