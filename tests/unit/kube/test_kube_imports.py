"""The client stays light, and does not spoil the official package for others in the process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]


def run(program: str) -> object:
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return json.loads(done.stdout)


def test_heavy_parts_of_the_official_client_are_not_loaded() -> None:
    loaded = run("import json, sys, kube.events, kube.reflector; print(json.dumps(sorted(sys.modules)))")
    assert isinstance(loaded, list)
    heavy = {
        "kubernetes",
        "kubernetes.client",
        "kubernetes.client.api_client",
        "kubernetes.config.kube_config",
        "kubernetes.dynamic",
        "kubernetes.stream",
        "kubernetes.aio",
        "pydantic",
        "dateutil",
        "requests",
        "oauthlib",
        "yaml",
        "websocket",
        "aiohttp",
        "cryptography",
    }
    assert heavy.isdisjoint(loaded)
    assert [name for name in loaded if name.startswith("kubernetes.client.models.")] == []


def test_the_whole_official_package_can_be_imported_afterwards() -> None:
    works = run(
        "import json, kube.client, kubernetes, kubernetes.client\n"
        "same = kubernetes.client.Configuration is kube.configuration.Configuration\n"
        "whole = callable(kubernetes.config.load_kube_config) and callable(kubernetes.watch.Watch)\n"
        "model = kubernetes.client.V1ObjectMeta(name='n').name\n"
        "print(json.dumps([same, whole, model]))"
    )
    assert works == [True, True, "n"]
