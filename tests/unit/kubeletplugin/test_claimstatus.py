"""What is written into a claim's status.devices."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from kube.errors import ApiError, ApiUnavailable
from kubeletplugin import claimstatus
from kubeletplugin.claimstatus import StatusWriter, device_statuses
from kubeletplugin.metrics import Metrics
from tests.unit.kubeletplugin.records import held, record


def test_a_whole_gpu_and_a_mig_device() -> None:
    whole, part = device_statuses(
        record(
            held(),
            held("gpu-0000-66-00-0-mig-1g10gb-3", "0000:66:00.0", uuid="MIG-1", gpu_instance_id=9,
                 compute_instance_id=0, share_id="s"),
        )
    )  # fmt: skip
    assert whole == {
        "driver": "gpu.nvidia.com",
        "pool": "node-1",
        "device": "gpu-0000-65-00-0",
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "Prepared",
                "message": "gpu-0000-65-00-0 is prepared as GPU-of-0000:65:00.0",
                "lastTransitionTime": "2023-11-14T22:13:20Z",
            }
        ],
        "data": {
            "uuid": "GPU-of-0000:65:00.0",
            "parentUUID": "GPU-of-0000:65:00.0",
            "pciBusID": "0000:65:00.0",
        },
    }
    assert part["data"] == {
        "uuid": "MIG-1",
        "parentUUID": "GPU-of-0000:66:00.0",
        "pciBusID": "0000:66:00.0",
        "gpuInstanceID": 9,
        "computeInstanceID": 0,
    }
    assert part["shareID"] == "s"


def test_what_stands_there_already_is_not_written_again() -> None:
    prepared = record()
    stored = {**device_statuses(prepared)[0]}
    stored["conditions"] = [{**stored["conditions"][0], "lastTransitionTime": "2020-01-01T00:00:00Z"}]
    cases = {
        "there": ([stored], False),
        "not there": ([], True),
        "there without condition": ([{**stored, "conditions": []}], True),
        "of another card": ([{**stored, "data": {"uuid": "GPU-other"}}], True),
        "of another driver": ([{**stored, "driver": "nic.example.com"}], True),
    }
    for case, (devices, is_written) in cases.items():
        writer = StatusWriter(None, None, None)  # type: ignore[arg-type]
        writer.prepared(prepared, {"status": {"devices": devices}})
        assert (prepared.claim.uid in writer._pending) is is_written, case
        writer.unprepared(prepared.claim.uid)
        assert writer._pending == {}, case


class Api:
    """Answers each write with the next of ``answers``, ``None`` for success, and with the last for ever."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)
        self.tries = 0
        self.asked = asyncio.Event()

    async def apply(self, *arguments: Any, **more: Any) -> None:
        self.tries += 1
        self.asked.set()
        await asyncio.sleep(0)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is not None:
            raise answer


class Events:
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def warning(self, about: object, reason: str, message: str) -> None:
        self.reasons.append(reason)


BUSY = ApiError(429, "TooManyRequests", "slow down", 0.01)


@pytest.mark.parametrize(
    ("answers", "tries", "events"),
    [
        ((None,), 1, []),
        ((BUSY, ApiError(500, "InternalError", "x"), ApiUnavailable("away"), BUSY, BUSY, None), 6, []),
        ((ApiError(403, "Forbidden", "no"),), 1, ["StatusNotWritten"]),
        ((ApiError(404, "NotFound", "gone"),), 1, []),
        ((ApiError(409, "Conflict", "another UID"),), 1, []),
    ],
)
async def test_what_can_succeed_later_is_tried_until_it_does(
    monkeypatch: pytest.MonkeyPatch, answers: tuple[Exception | None, ...], tries: int, events: list[str]
) -> None:
    monkeypatch.setattr(claimstatus, "_DELAY_SECONDS", 0.0)
    monkeypatch.setattr(claimstatus, "_LONGEST_PAUSE_SECONDS", 0.01)
    api, told = Api(*answers), Events()
    writer = StatusWriter(api, Metrics(), told)  # type: ignore[arg-type]
    task = asyncio.create_task(writer.run())
    writer.prepared(record(), {})
    async with asyncio.timeout(5):
        for _ in range(tries):
            await api.asked.wait()
            api.asked.clear()
    await asyncio.sleep(0.05)
    assert writer._pending == {}
    assert (api.tries, told.reasons) == (tries, events)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_a_claim_that_ends_while_its_status_cannot_be_written_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(claimstatus, "_DELAY_SECONDS", 0.0)
    api, prepared = Api(BUSY), record()
    writer = StatusWriter(api, Metrics(), Events())  # type: ignore[arg-type]
    task = asyncio.create_task(writer.run())
    writer.prepared(prepared, {})
    await asyncio.wait_for(api.asked.wait(), 5)
    writer.unprepared(prepared.claim.uid)
    await asyncio.sleep(0.05)
    assert writer._pending == {}
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
