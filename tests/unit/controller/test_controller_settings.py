"""Settings of the controller: a wrong value is named."""

from __future__ import annotations

import argparse

import pytest

from controller import settings
from controller.settings import Settings


def read(*arguments: str, **environment: str) -> Settings:
    parser = argparse.ArgumentParser()
    settings.add_arguments(parser, environment)
    return settings.read(parser.parse_args(arguments))


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "pod-1")
    chosen = read(NAMESPACE="gpu")
    assert (chosen.namespace, chosen.identity, chosen.lease_name) == ("gpu", "pod-1", "gpu-dra-controller")
    assert (chosen.http_address, chosen.class_grace_seconds) == (("", 8080), 600.0)
    assert chosen.classes.create


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--namespace: it is empty"),
        (["--namespace", "A"], "--namespace: 'A'"),
        (["--namespace", "n", "--lease-name", "a_b"], "--lease-name: 'a_b'"),
        (["--namespace", "n", "--classes", "/nowhere.yaml"], "--classes: /nowhere.yaml cannot be read"),
        (["--namespace", "n", "--class-grace-period", "soon"], "--class-grace-period: 'soon'"),
        (["--namespace", "n", "--log-level", "loud"], "--log-level: 'loud'"),
    ],
)
def test_a_wrong_value_is_named(arguments: list[str], words: str) -> None:
    with pytest.raises(ValueError, match="--") as error:
        read(*arguments)
    assert words in str(error.value)
