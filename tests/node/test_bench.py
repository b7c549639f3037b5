"""The bench itself: it runs, and what it writes can be read by programs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.cluster.components import REPOSITORY
from tests.cluster.fixtures import require
from tests.cluster.requirements import control_plane_missing


def test_the_bench_measures_and_writes_its_figures(tmp_path: Path) -> None:
    require(control_plane_missing())
    output = tmp_path / "bench.json"
    command = [sys.executable, "-m", "tests.bench", "--quick", "--output", str(output)]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    figures = {entry["name"]: entry for entry in json.loads(output.read_text())}
    for entry in figures.values():
        assert set(entry) in ({"name", "unit", "n", "p50", "p99"}, {"name", "unit", "value"})
        assert entry["name"] in ended.stdout
    assert figures["prepare, one at a time"]["p50"] > 0
    assert figures["idle: API writes"]["value"] == 0
    assert figures["prepare and unprepare: API requests"]["value"] == 1
    assert figures["partitions: prepare, one at a time"]["p50"] > 0
    assert figures["partitions: idle, API writes"]["value"] == 0
