"""Time-slice intervals, and what is known of those that were set."""

from __future__ import annotations

import pytest

from driver.inventory import PciAddress
from driver.timeslicing import Interval, NotedInterval


def test_numbers_are_those_that_nvidia_smi_takes() -> None:
    assert {str(interval): interval.number for interval in Interval} == {
        "Default": 0,
        "Short": 1,
        "Medium": 2,
        "Long": 3,
    }


@pytest.mark.parametrize(
    ("noted", "asked", "boot_id", "known", "may_be"),
    [
        ((Interval.LONG, "boot-1", True), Interval.LONG, "boot-1", True, True),
        ((Interval.LONG, "boot-1", True), Interval.SHORT, "boot-1", False, True),
        ((Interval.LONG, "boot-1", False), Interval.LONG, "boot-1", False, True),
        ((Interval.LONG, "boot-1", True), Interval.LONG, "boot-2", False, False),
        ((Interval.LONG, "", True), Interval.LONG, "", False, True),
        ((Interval.LONG, "boot-1", True), Interval.LONG, "", False, True),
    ],
)
def test_an_interval_is_known_when_it_was_set_in_this_boot(
    noted: tuple[Interval, str, bool], asked: Interval, boot_id: str, known: bool, may_be: bool
) -> None:
    interval, noted_boot, holds = noted
    one = NotedInterval(PciAddress(0, 0x1B, 0, 0), "GPU-0", interval, noted_boot, holds)
    assert one.is_known_to_be(asked, boot_id) is known
    assert one.may_be_of_boot(boot_id) is may_be
