"""Figures and what they are held against."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Target:
    """What a number is held against, in the figure's unit.

    ``bar`` must be met and ``reach`` is aimed at; ``existing`` is what NVIDIA's own DRA driver (in Go) has,
    measured the same way on the same kind of 2-core machine. Less is better, unless ``more_is_better``.
    """

    bar: float | None = None
    reach: float | None = None
    existing: float | None = None
    more_is_better: bool = False

    def verdict(self, value: float) -> str:
        if self.bar is None:
            return ""
        sign = -1 if self.more_is_better else 1
        if sign * value > sign * self.bar:
            return "MISSED"
        return "reached" if self.reach is not None and sign * value <= sign * self.reach else "met"

    def ratio(self, value: float) -> float | None:
        """How many times as good as the existing driver; below 1 is worse."""
        if not self.existing or not value:
            return None
        return value / self.existing if self.more_is_better else self.existing / value


NO_TARGET = Target()


@dataclass(frozen=True, slots=True)
class Value:
    """One number."""

    name: str
    unit: str
    value: float
    target: Target = NO_TARGET

    def rows(self) -> list[tuple[str, str, float, Target]]:
        return [(self.name, self.unit, self.value, self.target)]

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "unit": self.unit, "value": round(self.value, 4)}


@dataclass(frozen=True, slots=True)
class Distribution:
    """Median and 99th percentile of a sample."""

    name: str
    unit: str
    sample: tuple[float, ...]
    p50_target: Target = NO_TARGET
    p99_target: Target = NO_TARGET

    def rows(self) -> list[tuple[str, str, float, Target]]:
        name, unit = self.name, self.unit
        return [
            (f"{name}, p50", unit, percentile(self.sample, 50), self.p50_target),
            (f"{name}, p99", unit, percentile(self.sample, 99), self.p99_target),
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "n": len(self.sample),
            "p50": round(percentile(self.sample, 50), 4),
            "p99": round(percentile(self.sample, 99), 4),
        }


Figure = Value | Distribution


def percentile(sample: Sequence[float], percent: float) -> float:
    """The smallest number of the sample that ``percent`` of it do not exceed (nearest rank)."""
    ordered = sorted(sample)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def table(figures: Sequence[Figure]) -> str:
    """The figures for people."""
    head = ("figure", "measured", "bar", "reach", "existing", "times as good", "")
    rows = [head]
    for figure in figures:
        for name, unit, value, target in figure.rows():
            ratio = target.ratio(value)
            rows.append(
                (
                    name,
                    f"{_number(value)} {unit}",
                    _number(target.bar),
                    _number(target.reach),
                    _number(target.existing),
                    "" if ratio is None else f"{ratio:.2f}",
                    target.verdict(value),
                )
            )
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells[1:]]).rstrip())
    return "\n".join(lines)


def write(figures: Sequence[Figure], path: Path) -> None:
    """The figures for programs: a list of ``{name, unit, n, p50, p99}`` and ``{name, unit, value}``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([figure.to_json() for figure in figures], indent=2) + "\n")


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
