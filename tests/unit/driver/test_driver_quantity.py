from __future__ import annotations

from fractions import Fraction

import pytest

from driver.quantity import byte_quantity, parse_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", Fraction(0)),
        ("81559Mi", Fraction(81559 * 1024**2)),
        ("1.5Gi", Fraction(3 * 1024**3, 2)),
        ("500m", Fraction(1, 2)),
        ("100n", Fraction(1, 10**7)),
        ("2k", Fraction(2000)),
        ("1e3", Fraction(1000)),
        ("1E-2", Fraction(1, 100)),
        ("3E", Fraction(3 * 10**18)),
        ("2Ei", Fraction(2 * 1024**6)),
        ("-1.", Fraction(-1)),
        (".5", Fraction(1, 2)),
    ],
)
def test_quantities_are_read_exactly(text: str, value: Fraction) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize("text", ["", "Mi", "1 Gi", "1KiB", "0x10", "1e", "--1", "NaN"])
def test_what_is_no_quantity_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="is no Kubernetes quantity"):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0"), (81559 * 1024**2, "81559Mi"), (1000, "1000"), (1024**2 + 1, "1048577")]
)
def test_bytes_are_written_in_whole_mebibytes_or_as_they_are(size: int, text: str) -> None:
    assert byte_quantity(size) == text
    assert parse_quantity(text) == size
