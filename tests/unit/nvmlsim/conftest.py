"""Simulated nodes for the tests of nvmlsim, and the real NVML binding on them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pynvml
import pytest

from nvmlsim.node import SimulatedNode

MakeNode = Callable[..., SimulatedNode]
Binding = Callable[[SimulatedNode], AbstractContextManager[None]]
Handle = Any


@pytest.fixture
def make_node(tmp_path: Path) -> MakeNode:
    """Makes nodes below the test's folder: `make_node("hgx-h100", mig={0: ["1g.10gb"]})`."""
    made = iter(range(100))

    def make(machine: str | Path, **overrides: object) -> SimulatedNode:
        return SimulatedNode.create(tmp_path / f"node{next(made)}", machine, **overrides)

    return make


@contextmanager
def _binding(node: SimulatedNode) -> Iterator[None]:
    pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml.nvmlLib = ctypes.CDLL(str(node.library_path))
    try:
        pynvml.nvmlInit()
        yield
        pynvml.nvmlShutdown()
    finally:
        pynvml.nvmlLib = None
        pynvml._nvmlGetFunctionPointer_cache.clear()


@pytest.fixture
def nvml() -> Binding:
    """Loads a node's library into pynvml, as the driver does, for the time of a `with` block."""
    return _binding


def address(handle: Handle) -> int | None:
    """The number behind an opaque NVML handle."""
    return ctypes.cast(handle, ctypes.c_void_p).value


def create_gpu_instance(handle: Handle, profile_id: int, start: int, size: int) -> Handle:
    placement = pynvml.c_nvmlGpuInstancePlacement_t(start, size)
    return pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile_id, pynvml.byref(placement))
