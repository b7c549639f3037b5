"""The delays of the back-off, with clock and chance in the test's hand."""

from __future__ import annotations

import pytest

from kube.backoff import Backoff


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def longest(low: float, high: float) -> float:
    return high


def shortest(low: float, high: float) -> float:
    return low


def test_delays_double_up_to_the_maximum() -> None:
    backoff = Backoff(1.0, 10.0, clock=Clock(), uniform=longest)
    assert [backoff.next_delay() for _ in range(6)] == [1, 2, 4, 8, 10, 10]


def test_jitter_takes_away_at_most_half() -> None:
    backoff = Backoff(1.0, 10.0, clock=Clock(), uniform=shortest)
    assert [backoff.next_delay() for _ in range(5)] == [0.5, 1, 2, 4, 5]


def test_success_starts_the_row_anew() -> None:
    backoff = Backoff(1.0, 10.0, clock=Clock(), uniform=longest)
    backoff.next_delay()
    backoff.next_delay()
    backoff.reset()
    assert backoff.next_delay() == 1


@pytest.mark.parametrize(("pause", "delay"), [(60.0, 2.0), (62.0, 1.0)])
def test_a_quiet_time_starts_the_row_anew(pause: float, delay: float) -> None:
    clock = Clock()
    backoff = Backoff(1.0, 10.0, reset_after=60.0, clock=clock, uniform=longest)
    clock.now += backoff.next_delay()
    clock.now += pause
    assert backoff.next_delay() == delay


def test_the_servers_retry_after_is_kept_with_jitter_on_top() -> None:
    backoff = Backoff(1.0, 10.0, clock=Clock(), uniform=longest)
    assert backoff.next_delay(at_least=30.0) == 30.5
    assert backoff.next_delay(at_least=0.1) == 2
