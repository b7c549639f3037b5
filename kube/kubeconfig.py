"""Kubeconfigs as nodes have them, read without the official loader.

The official loader brings OAuth and an HTTP library of its own: 5 MiB that a node agent holds for its whole
life. It is needed for credentials that a program or an identity provider hands out, and for embedded client
certificates; a server, an authority, and a token or certificate files need none of it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CLUSTER_FIELDS = {
    "server",
    "certificate-authority",
    "certificate-authority-data",
    "insecure-skip-tls-verify",
    "tls-server-name",
}
_USER_FIELDS = {"client-certificate", "client-key", "token"}


@dataclass(frozen=True, slots=True)
class PlainKubeconfig:
    """Where the server is and who calls; files as absolute paths, the authority as a file or as PEM text."""

    server: str
    authority: str | None
    authority_data: str | None
    verify: bool
    server_name: str | None
    client_certificate: str | None
    client_key: str | None
    token: str | None


def plain_kubeconfig(content: Mapping[str, Any], folder: Path) -> PlainKubeconfig | None:
    """The current context of a kubeconfig in ``folder``; None when it needs the official loader.

    Raises:
        ValueError: the current context, its cluster or its user is missing, or the authority is no base64.
    """
    context = _named(content, "contexts", "context", content.get("current-context"))
    cluster = _named(content, "clusters", "cluster", context.get("cluster"))
    user = _named(content, "users", "user", context.get("user"))
    if not (cluster.keys() <= _CLUSTER_FIELDS and user.keys() <= _USER_FIELDS and "server" in cluster):
        return None
    data = cluster.get("certificate-authority-data")
    return PlainKubeconfig(
        server=str(cluster["server"]),
        authority=_path(folder, cluster.get("certificate-authority")),
        authority_data=base64.b64decode(data, validate=True).decode() if data else None,
        verify=not cluster.get("insecure-skip-tls-verify", False),
        server_name=cluster.get("tls-server-name"),
        client_certificate=_path(folder, user.get("client-certificate")),
        client_key=_path(folder, user.get("client-key")),
        token=user.get("token"),
    )


def _named(content: Mapping[str, Any], collection: str, field: str, name: object) -> Mapping[str, Any]:
    entries = content.get(collection) or ()
    for entry in entries:
        if isinstance(entry, dict) and entry.get("name") == name and isinstance(entry.get(field), dict):
            found: Mapping[str, Any] = entry[field]
            return found
    names = ", ".join(str(entry.get("name")) for entry in entries if isinstance(entry, dict)) or "none"
    raise ValueError(f"it has no {field} named {name!r} (it has: {names})")


def _path(folder: Path, name: str | None) -> str | None:
    return str(folder / name) if name else None
