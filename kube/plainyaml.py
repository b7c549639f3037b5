"""YAML whose values mean what they look like.

YAML 1.1, which PyYAML reads, takes ``off`` for false and the PCI address ``0000:17:00.0`` for the number
1020.0, and of a key that is there twice it drops the first. Imported only where there is a file to read.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml

_ERRORS = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, RecursionError)
"""What PyYAML raises for a text, also for a value that does not fit the tag that is written before it."""


class PlainYamlError(ValueError):
    """The text is no YAML document; the message is one line."""


class _Loader(yaml.SafeLoader):
    """As YAML 1.2 has it: null, true, false and decimal numbers; every other plain scalar is text."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's, and a type is a loader there

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is there twice", key_node.start_mark
                )
            if isinstance(key, Hashable):
                seen.add(key)
        return super().construct_mapping(node, deep=deep)


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"-?(0|[1-9][0-9]*)", list("-0123456789")),
    ("float", r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?", list("-0123456789")),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), _first)


def load(content: bytes) -> Any:
    """The one document of a text; ``None`` if it has none.

    Raises:
        PlainYamlError: it is not YAML, has several documents, or a key twice.
    """
    documents = load_all(content)
    if len(documents) > 1:
        raise PlainYamlError(f"it has {len(documents)} documents, and may have one")
    return documents[0] if documents else None


def load_all(content: bytes) -> list[Any]:
    """The documents of a text.

    Raises:
        PlainYamlError: it is not YAML, or has a key twice.
    """
    try:
        return list(yaml.load_all(content, _Loader))
    except _ERRORS as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise PlainYamlError(text) from None
