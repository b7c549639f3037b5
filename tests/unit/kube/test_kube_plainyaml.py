"""YAML whose values mean what they look like."""

from __future__ import annotations

from typing import Any

import pytest

from kube.plainyaml import PlainYamlError, load


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("off", "off"),
        ("yes", "yes"),
        ("true", True),
        ("False", False),
        ("", None),
        ("~", None),
        ("null", None),
        ("0", 0),
        ("-3", -3),
        ("012", "012"),
        ("0x1f", "0x1f"),
        ("1_000", "1_000"),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("0000:17:00.0", "0000:17:00.0"),
        ("00000000:10:00.0", "00000000:10:00.0"),
        ("12:30:45", "12:30:45"),
        ("2001-99-99", "2001-99-99"),
        ("1g.10gb", "1g.10gb"),
        ('"3"', "3"),
    ],
)
def test_a_plain_value_is_what_it_looks_like(text: str, value: Any) -> None:
    loaded = load(f"key: {text}".encode())
    assert (loaded, type(loaded["key"])) == ({"key": value}, type(value))


def test_json_is_yaml() -> None:
    assert load(b'{"a": [1, true, null, "off"], "b": {"c": 1.5}}') == {
        "a": [1, True, None, "off"],
        "b": {"c": 1.5},
    }


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a: [", "expected the node content"),
        (b"a: 1\nb: 2\na: 3", "key 'a' is there twice"),
        (b"a: {b: 1, b: 1}", "key 'b' is there twice"),
        (b"a: 1\n---\nb: 2", "it has 2 documents, and may have one"),
        (b"a: *unknown", "undefined alias"),
        (b"? [1]\n: 2", "unhashable key"),
        (b"\xff\xfe\xff", ""),
        (b"a: \x00", "special characters"),
        (b"!!python/object:os.system {}", "could not determine a constructor"),
        (b"a: !!int x", "invalid literal"),
        (b"a: !!int ''", "out of range"),
        (b"a: !!bool x", "x"),
        (b"a: !!timestamp x", ""),
        (b"[" * 3000, "recursion"),
    ],
)
def test_everything_that_is_no_document_is_one_kind_of_error_in_one_line(content: bytes, words: str) -> None:
    with pytest.raises(PlainYamlError) as raised:
        load(content)
    assert words in str(raised.value)
    assert str(raised.value)
    assert "\n" not in str(raised.value)
