"""Kubernetes quantities (resource.Quantity of apimachinery), read exactly and written as we publish them."""

from __future__ import annotations

import re
from fractions import Fraction

MIB = 1024 * 1024

_QUANTITY = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)(?:([KMGTPE]i)|([numkMGTPE])|[eE]([+-]?\d{1,4}))?")
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


def parse_quantity(text: str) -> Fraction:
    """The exact value of a quantity: ``81559Mi``, ``1.5``, ``500m``, ``1e3``.

    Raises:
        ValueError: the text is no quantity.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no Kubernetes quantity such as 81559Mi, 1.5 or 500m")
    sign, digits, binary, decimal, exponent = match.groups()
    value = Fraction(digits if digits[-1] != "." else digits[:-1]) * (-1 if sign == "-" else 1)
    if binary:
        return value * Fraction(1024 ** _BINARY[binary])
    power = _DECIMAL[decimal] if decimal else int(exponent or 0)
    return value * (Fraction(10**power) if power >= 0 else Fraction(1, 10**-power))


def byte_quantity(size: int) -> str:
    """A number of bytes: in ``Mi`` when it is a whole number of MiB, else in bytes."""
    return f"{size // MIB}Mi" if size and size % MIB == 0 else str(size)
