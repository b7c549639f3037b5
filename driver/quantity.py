"""Kubernetes quantities: ``40Gi``, ``40960Mi`` and ``42949672960`` are one value in three spellings."""

from __future__ import annotations

import re
from fractions import Fraction

_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:\d+\.?\d*|\.\d+))(?:(?P<suffix>[numkMGTPE]|[KMGTPE]i)|[eE](?P<exponent>[+-]?\d{1,3}))?"
)
_FACTORS: dict[str | None, Fraction] = {
    None: Fraction(1),
    **{suffix: Fraction(1, 1000**power) for power, suffix in ((3, "n"), (2, "u"), (1, "m"))},
    **{suffix: Fraction(1000**power) for power, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix}i": Fraction(1024**power) for power, suffix in enumerate("KMGTPE", start=1)},
}


def parse_quantity(text: str) -> Fraction:
    """The exact value (``k8s.io/apimachinery/pkg/api/resource``).

    Raises:
        ValueError: ``text`` is not a quantity.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a quantity; examples: 500m, 40, 40Gi, 4e9")
    exponent = int(match["exponent"] or 0)
    scale = Fraction(10**exponent) if exponent >= 0 else Fraction(1, 10**-exponent)
    return Fraction(match["number"].rstrip(".")) * _FACTORS[match["suffix"]] * scale
