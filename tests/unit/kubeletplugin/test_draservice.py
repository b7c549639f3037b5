"""The DRA service in front of an engine that must not be asked."""

from __future__ import annotations

from typing import Any

import pytest

from cdi.specfolder import SpecFolder
from driver.claim import ClaimError, ClaimReference
from kubeletplugin.draservice import DraService
from kubeletplugin.failures import Failure
from kubeletplugin.metrics import Metrics

BAD_UIDS = ["", "../x", "a/b", "a b", "-a", "a.", "a\n", "ä", "a" * 129]


class _Untouched:
    """An engine and a source that count how often they are used."""

    def __init__(self) -> None:
        self.used = 0

    async def unprepare(self, reference: ClaimReference, timeout: float) -> None:
        self.used += 1


class _Observer:
    def __init__(self) -> None:
        self.failures: list[tuple[str, Failure]] = []

    def failed(self, operation: str, reference: ClaimReference, reason: Failure) -> None:
        self.failures.append((operation, reason))

    def unprepared(self, reference: ClaimReference) -> None:
        return


def _service() -> tuple[DraService, _Untouched, _Observer]:
    engine, observer = _Untouched(), _Observer()
    untouched: Any = engine
    told: Any = observer
    return DraService(untouched, untouched, told, Metrics()), engine, observer


@pytest.mark.parametrize("uid", BAD_UIDS)
async def test_a_uid_that_names_no_file_is_refused_before_anything_is_touched(
    uid: str, caplog: pytest.LogCaptureFixture
) -> None:
    service, engine, observer = _service()
    answer = await service.unprepare(ClaimReference("team", "training", uid), 1.0)
    assert isinstance(answer, Failure)
    assert answer.cause == "BadUid"
    for words in ("team/training", repr(uid[:128]), "letters, digits, '-', '_' and '.'"):
        assert words in answer.message
    assert observer.failures == [("unprepare", answer)]
    assert engine.used == 0
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("uid", ["0b4e1d2c-6b1f-4f0e-9e8e-0d6a4b6c7f01", "a", "A.b_c-1", "a" * 128])
async def test_a_uid_that_is_allowed_names_a_file(uid: str, tmp_path: Any) -> None:
    service, engine, _ = _service()
    assert await service.unprepare(ClaimReference("team", "training", uid), 1.0) is None
    assert engine.used == 1
    folder = SpecFolder(tmp_path)
    folder.write(uid, b"{}")
    assert folder.claim_uids() == {uid}
    with pytest.raises(ClaimError):
        ClaimReference("team", "training", f"{uid}/").check()
