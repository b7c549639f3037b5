"""The flags of the webhook."""

from __future__ import annotations

import argparse

import pytest

from controller import settings
from controller.admission.settings import WebhookSettings


def read(*arguments: str) -> WebhookSettings | None:
    parser = argparse.ArgumentParser()
    settings.add_arguments(parser, {})
    return settings.read(parser.parse_args(["--namespace", "gpu", *arguments])).webhook


@pytest.mark.parametrize("address", [(), ("--webhook-address", "none"), ("--webhook-address", "")])
def test_without_an_address_there_is_no_webhook(address: tuple[str, ...]) -> None:
    assert read(*address) is None


def test_hosts_are_read_by_comma() -> None:
    found = read("--webhook-address=:8443", "--webhook-name=hook", "--webhook-hosts=a.example.com, b,")
    assert found == WebhookSettings(("", 8443), "gpu", "hook", ("a.example.com", "b"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--webhook-address=8443x"], "--webhook-address: '8443x' is not HOST:PORT"),
        (["--webhook-address=:8443", "--webhook-name=A"], "--webhook-name: 'A' cannot be the name"),
        (["--webhook-address=:8443", "--webhook-hosts=a,-b"], "--webhook-hosts: '-b' is no DNS name"),
    ],
)
def test_a_wrong_value_is_named(arguments: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read(*arguments)
