"""Layouts by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.partitions.layouts import board, named
from controller.partitions.layoutsfile import LayoutsError, read
from driver.miglayout import LayoutError
from driver.nodepartition import GpuReport
from tests.unit.controller.partitions.boards import a30, h100, t4


@pytest.mark.parametrize(
    ("gpu", "name", "layout"),
    [
        (h100(), "all-1g.10gb", {"1g.10gb": 7}),
        (h100(), "all-1g", {"1g.10gb": 7}),
        (h100(), "all-1g.20gb", {"1g.20gb": 4}),
        (h100(), "all-2g", {"2g.20gb": 3}),
        (h100(), "all-3g.40gb", {"3g.40gb": 2}),
        (h100(), "all-4g", {"4g.40gb": 1}),
        (h100(), "all-7g.80gb", {"7g.80gb": 1}),
        (h100(), "balanced", {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}),
        (h100(), "all-balanced", {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}),
        (a30(), "all-1g", {"1g.6gb": 4}),
        (a30(), "balanced", {"1g.6gb": 2, "2g.12gb": 1}),
        (h100(), "mine", {"3g.40gb": 2}),
    ],
)
def test_a_name_means_a_layout_of_the_board(gpu: GpuReport, name: str, layout: dict[str, int]) -> None:
    assert dict(named(name, board(gpu), {"mine": (("3g.40gb", 2),)})) == layout


@pytest.mark.parametrize(
    ("gpu", "name", "words"),
    [
        (h100(), "all-5g", ["'5g'", "1g.10gb, 2g.20gb"]),
        (h100(), "all-1g.6gb", ["'1g.6gb'", "0000:10:00.0"]),
        (t4(), "all-1g", ["none, it cannot be partitioned"]),
        (t4(), "balanced", ["no balanced layout"]),
        (h100(), "halves", ["'halves' is not known", "balanced, whole, mine"]),
    ],
)
def test_a_name_that_means_nothing_for_the_board_is_refused(
    gpu: GpuReport, name: str, words: list[str]
) -> None:
    with pytest.raises(LayoutError) as raised:
        named(name, board(gpu), {"mine": (("3g.40gb", 2),)})
    for word in words:
        assert word in str(raised.value)


def test_the_file_of_layouts(tmp_path: Path) -> None:
    file = tmp_path / "layouts.yaml"
    file.write_text('layouts:\n  mine: {"3g.40gb": 1, "1g.10gb": 3}\n')
    assert read(file) == {"mine": (("1g.10gb", 3), ("3g.40gb", 1))}
    file.write_text("")
    assert read(file) == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("layouts: {mine: {1g.10gb: 0}}", "layouts.mine.1g.10gb"),
        ("layouts: {mine: 3}", "layouts.mine"),
        ("layout: {}", "field layout is unknown; allowed here: layouts"),
        ("[]", "must be an object"),
        ("{", "no YAML document"),
    ],
)
def test_a_wrong_file_of_layouts_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "layouts.yaml"
    file.write_text(text)
    with pytest.raises(LayoutsError) as raised:
        read(file)
    assert words in str(raised.value)
    assert str(file) in str(raised.value)


def test_a_missing_file_of_layouts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LayoutsError, match="cannot be read: No such file"):
        read(tmp_path / "none.yaml")
