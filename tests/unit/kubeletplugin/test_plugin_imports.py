"""What the service holds in memory from its start: no library that only few nodes or commands need."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cluster.components import REPOSITORY

ONLY_WHEN_NEEDED = {"pydantic", "yaml", "dateutil", "kubernetes", "aiohttp", "cryptography"}


@pytest.mark.parametrize(
    "does", ["kubeletplugin.service", "driver.nodepartition.wanted_gpus({})"], ids=["start", "nothing wanted"]
)
def test_the_service_does_not_load_what_it_seldom_needs(does: str) -> None:
    modules = "sys, driver.nodepartition, kubeletplugin.cli, kubeletplugin.service"
    program = f"import {modules}; {does}; print('\\n'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert ONLY_WHEN_NEEDED & set(done.stdout.split()) == set()
