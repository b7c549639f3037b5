"""Names: what the API server accepts as the name of a Node or a namespace."""

from __future__ import annotations

import pytest

from kube.names import is_label, is_subdomain


@pytest.mark.parametrize("name", ["n", "node-1", "ip-10-0-0-1.ec2.internal", "0a", "n" * 253])
def test_names_of_nodes(name: str) -> None:
    assert is_subdomain(name)


@pytest.mark.parametrize(
    "name", ["", "Node", "a_b", "-a", "a-", ".a", "a.", "a..b", "a.-b", "a/b", "a b", "ä", "a\n", "n" * 254]
)
def test_what_is_no_name_of_a_node(name: str) -> None:
    assert not is_subdomain(name)


def test_namespaces_have_no_dots() -> None:
    assert is_label("team-a")
    assert not is_label("team.a")
    assert is_label("n" * 63)
    assert not is_label("n" * 64)
