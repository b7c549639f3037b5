"""Which kubeconfigs are read here, what is read from them, and which go to the official loader."""

from __future__ import annotations

import base64
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from kube.configuration import ConfigurationError, load_rest_client
from kube.kubeconfig import PlainKubeconfig, plain_kubeconfig

CONTENT: dict[str, Any] = {
    "current-context": "b",
    "contexts": [
        {"name": "a", "context": {"cluster": "other", "user": "u"}},
        {"name": "b", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
    ],
    "clusters": [
        {"name": "c", "cluster": {"server": "https://10.0.0.1:6443", "certificate-authority": "pki/ca.crt"}}
    ],
    "users": [{"name": "u", "user": {"client-certificate": "/etc/u.crt", "client-key": "u.key"}}],
}


def edited(edit: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    content = copy.deepcopy(CONTENT)
    edit(content)
    return content


def test_files_are_found_beside_the_kubeconfig() -> None:
    assert plain_kubeconfig(CONTENT, Path("/etc/kubernetes")) == PlainKubeconfig(
        server="https://10.0.0.1:6443",
        authority="/etc/kubernetes/pki/ca.crt",
        authority_data=None,
        verify=True,
        server_name=None,
        client_certificate="/etc/u.crt",
        client_key="/etc/kubernetes/u.key",
        token=None,
    )


def test_token_and_embedded_authority() -> None:
    def edit(content: dict[str, Any]) -> None:
        content["users"][0]["user"] = {"token": "secret"}
        content["clusters"][0]["cluster"] = {
            "server": "https://s",
            "certificate-authority-data": base64.b64encode(b"PEM").decode(),
            "tls-server-name": "kubernetes",
        }

    plain = plain_kubeconfig(edited(edit), Path("/"))
    assert plain is not None
    assert (plain.token, plain.authority, plain.authority_data) == ("secret", None, "PEM")
    assert plain.server_name == "kubernetes"


@pytest.mark.parametrize(
    "edit",
    [
        lambda content: content["users"][0]["user"].update(exec={"command": "aws"}),
        lambda content: content["users"][0].update(user={"auth-provider": {"name": "oidc"}}),
        lambda content: content["users"][0].update(
            user={"client-certificate-data": "", "client-key-data": ""}
        ),
        lambda content: content["users"][0].update(user={"tokenFile": "/token"}),
        lambda content: content["clusters"][0]["cluster"].update({"proxy-url": "http://p"}),
    ],
)
def test_other_credentials_need_the_official_loader(edit: Callable[[dict[str, Any]], object]) -> None:
    assert plain_kubeconfig(edited(edit), Path("/")) is None


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda content: content.update({"current-context": "x"}), r"no context named 'x' \(it has: a, b\)"),
        (lambda content: content.update({"current-context": "a"}), r"no cluster named 'other' \(it has: c\)"),
        (lambda content: content.update(users=[]), r"no user named 'u' \(it has: none\)"),
    ],
)
def test_what_is_missing_is_named(edit: Callable[[dict[str, Any]], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plain_kubeconfig(edited(edit), Path("/"))


@pytest.mark.parametrize("text", ["", "[]", "a: [", "current-context: x"])
def test_an_unusable_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=f"cannot use kubeconfig {path}: it "):
        load_rest_client(path)


def test_both_ways_give_the_same_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ca.crt", "u.crt", "u.key"):
        (tmp_path / name).write_text(name)

    def edit(content: dict[str, Any]) -> None:
        content["clusters"][0]["cluster"]["certificate-authority"] = "ca.crt"
        content["users"][0]["user"] = {
            "client-certificate": "u.crt",
            "client-key": "u.key",
            "token": "secret",
        }

    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(edited(edit)))
    here = load_rest_client(path).configuration
    monkeypatch.setattr("kube.configuration.plain_kubeconfig", lambda content, folder: None)
    official = load_rest_client(path).configuration
    for field in ("host", "verify_ssl", "ssl_ca_cert", "cert_file", "key_file", "tls_server_name"):
        assert getattr(here, field) == getattr(official, field), field
    assert here.auth_settings() == official.auth_settings()
