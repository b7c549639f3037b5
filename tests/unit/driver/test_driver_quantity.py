"""Quantities by value, as Kubernetes reads them."""

from __future__ import annotations

from fractions import Fraction

import pytest

from driver.quantity import parse_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("40Gi", 40 * 2**30),
        ("40960Mi", 40 * 2**30),
        ("42949672960", 40 * 2**30),
        ("81559Mi", 81559 * 2**20),
        ("1k", 1000),
        ("1.5Ki", 1536),
        ("500m", Fraction(1, 2)),
        ("1n", Fraction(1, 10**9)),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E", 10**18),
        ("12e-1", Fraction(6, 5)),
        ("-5", -5),
        (".5", Fraction(1, 2)),
        ("5.", 5),
    ],
)
def test_value(text: str, value: Fraction | int) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize("text", ["", "Gi", "1gi", "1 Gi", "1KI", "1e", "0x10", "1e1000000000"])
def test_what_is_no_quantity_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a quantity; examples"):
        parse_quantity(text)
