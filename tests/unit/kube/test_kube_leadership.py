"""What a candidate does with a Lease: a table."""

from __future__ import annotations

import pytest

from kube.leadership import Step, decide, lease_spec


def lease(holder: str | None, seconds: int | None = 12) -> dict[str, object]:
    return {"spec": {"holderIdentity": holder, "leaseDurationSeconds": seconds}}


@pytest.mark.parametrize(
    ("found", "unchanged", "step"),
    [
        (None, 0.0, Step.CREATE),
        (lease("me"), 0.0, Step.RENEW),
        (lease("me"), 100.0, Step.RENEW),
        (lease("other"), 0.0, Step.WAIT),
        (lease("other"), 11.9, Step.WAIT),
        (lease("other"), 12.1, Step.TAKE),
        (lease("other", 40), 12.1, Step.WAIT),
        (lease("other", None), 12.1, Step.TAKE),
        (lease(""), 0.0, Step.TAKE),
        (lease(None), 0.0, Step.TAKE),
        ({}, 0.0, Step.TAKE),
    ],
)
def test_decide(found: dict[str, object] | None, unchanged: float, step: Step) -> None:
    assert decide(found, "me", unchanged, 12.0) is step


@pytest.mark.parametrize(
    ("step", "acquired", "transitions"),
    [(Step.CREATE, "now", 0), (Step.TAKE, "now", 4), (Step.RENEW, "then", 3)],
)
def test_what_is_written(step: Step, acquired: str, transitions: int) -> None:
    found = {"spec": {"acquireTime": "then", "leaseTransitions": 3}}
    assert lease_spec(found if step is not Step.CREATE else None, step, "me", 12.0, "now") == {
        "holderIdentity": "me",
        "leaseDurationSeconds": 12,
        "acquireTime": acquired,
        "renewTime": "now",
        "leaseTransitions": transitions,
    }
