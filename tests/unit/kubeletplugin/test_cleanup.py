"""Clean-up: only an answer that a claim is gone frees its devices; any doubt keeps it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from driver.claim import ClaimReference
from kube.conditions import Announce, nobody
from kube.errors import ApiError, ApiTooDeep, ApiUnavailable
from kubeletplugin import cleanup as cleanup_module
from kubeletplugin.cleanup import Cleanup
from kubeletplugin.gpulocks import LockTimeout
from kubeletplugin.metrics import Metrics
from kubeletplugin.store import ClaimRecord, ClaimState, StoreReplaced
from tests.unit.kubeletplugin.records import record

POOL = "node-1"


def api_claim(uid: str, name: str = "claim", pool: str = POOL, driver: str = "gpu.nvidia.com") -> Any:
    results = [{"request": "gpu", "driver": driver, "pool": pool, "device": "gpu-0000-65-00-0"}]
    return {
        "metadata": {"namespace": "default", "name": name, "uid": uid},
        "status": {"allocation": {"devices": {"results": results}}},
    }


class Api:
    """The API server's answers: claims by name, or an error for each."""

    def __init__(self) -> None:
        self.claims: dict[str, Any] = {}
        self.error: Exception | None = None
        self.refuses_writes: Exception | None = None
        self.written: list[str] = []

    async def get(self, resource: object, name: str, namespace: str) -> Any:
        if self.error is not None:
            raise self.error
        if name not in self.claims:
            raise ApiError(404, "NotFound", f"no {name}")
        return self.claims[name]

    async def apply(self, resource: object, name: str, body: Any, namespace: str, **more: str) -> Any:
        assert more == {"field_manager": "gpu.nvidia.com", "subresource": "status"}
        if self.refuses_writes is not None:
            raise self.refuses_writes
        self.written.append(name)
        self.claims[name]["status"]["devices"] = body["status"]["devices"]

    async def list(self, resource: object) -> Any:
        if self.error is not None:
            raise self.error
        return [*self.claims.values()], "1"


class Engine:
    """Claims in the store, and those that were unprepared."""

    def __init__(self, *records: ClaimRecord) -> None:
        self.held = {item.claim.uid: item for item in records}
        self.unprepared: list[str] = []
        self.broken = False
        self.left_over: list[str] = []
        self.store_error: Exception | None = None
        self.restored = asyncio.Event()

    async def records(self) -> dict[str, ClaimRecord]:
        if self.store_error is not None:
            raise self.store_error
        return dict(self.held)

    async def mend(self) -> list[ClaimReference]:
        return [one.claim for one in (await self.records()).values()]

    async def vanished(self) -> list[Any]:
        return []

    async def put_back_intervals(self) -> list[str]:
        return self.left_over

    async def sweep(self) -> list[str]:
        if self.broken:
            raise OSError("the CDI folder cannot be listed")
        return []

    async def unprepare(self, reference: ClaimReference, timeout: float) -> None:
        if self.broken and reference.uid == "stuck":
            raise LockTimeout("GPU is still being changed")
        self.unprepared.append(reference.uid)
        del self.held[reference.uid]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(cleanup_module, "time", clock)
    return clock


def cleanup(engine: Engine, api: Api, announce: Announce = nobody) -> Cleanup:
    engine_, client = engine, api
    return Cleanup(
        engine_,  # type: ignore[arg-type]
        client,  # type: ignore[arg-type]
        Metrics(),
        pool=POOL,
        period_seconds=600,
        grace_seconds=120,
        on_vanished=lambda record, devices: None,
        announce=announce,
    )


GONE: dict[str, dict[str, Any]] = {
    "deleted": {},
    "replaced": {"claim": api_claim("another")},
    "not allocated": {"claim": {**api_claim("a"), "status": {}}},
    "allocated on another node": {"claim": api_claim("a", pool="node-2")},
    "of another driver": {"claim": api_claim("a", driver="nic.example.com")},
}


@pytest.mark.parametrize("case", GONE)
async def test_b059_a_claim_that_is_gone_is_freed_after_the_grace_time(case: str, clock: Clock) -> None:
    engine, api = Engine(record(uid="a")), Api()
    api.claims = GONE[case]
    rounds = cleanup(engine, api)
    await rounds.once()
    clock.now += 119
    await rounds.once()
    assert engine.unprepared == []
    clock.now += 2
    await rounds.once()
    assert engine.unprepared == ["a"]


async def test_b059_a_claim_that_comes_back_within_the_grace_time_starts_anew(clock: Clock) -> None:
    engine, api = Engine(record(uid="a")), Api()
    rounds = cleanup(engine, api)
    await rounds.once()
    api.claims = {"claim": api_claim("a")}
    clock.now += 100
    await rounds.once()
    api.claims = {}
    clock.now += 100
    await rounds.once()
    clock.now += 100
    await rounds.once()
    assert engine.unprepared == []
    clock.now += 21
    await rounds.once()
    assert engine.unprepared == ["a"]


@pytest.mark.parametrize("case", GONE)
async def test_b058_a_half_prepared_claim_that_is_gone_is_undone_at_once(case: str, clock: Clock) -> None:
    engine, api = Engine(record(uid="a", state=ClaimState.PREPARING)), Api()
    api.claims = GONE[case]
    await cleanup(engine, api).once()
    assert engine.unprepared == ["a"]


async def test_b058_a_half_prepared_claim_that_is_there_is_left_to_the_kubelet(clock: Clock) -> None:
    engine, api = Engine(record(uid="a", state=ClaimState.PREPARING)), Api()
    api.claims = {"claim": api_claim("a")}
    await cleanup(engine, api).once()
    assert engine.unprepared == []


@pytest.mark.parametrize(
    "error",
    [ApiUnavailable("away"), ApiError(403, "Forbidden", "no"), ApiError(500, "x", "y"), ApiTooDeep("d")],
)
async def test_b058_an_api_error_keeps_everything(error: Exception, clock: Clock) -> None:
    engine = Engine(record(uid="a", state=ClaimState.PREPARING), record(uid="b"), record(uid="c", name=""))
    api = Api()
    api.error = error
    rounds = cleanup(engine, api)
    for _ in range(3):
        await rounds.once()
        clock.now += 1000
    assert engine.unprepared == []


async def test_one_claim_or_folder_that_cannot_be_cleaned_keeps_no_other(clock: Clock) -> None:
    engine = Engine(*(record(uid=uid, state=ClaimState.PREPARING) for uid in ("a", "stuck", "b")))
    engine.broken = True
    await cleanup(engine, Api()).once()
    assert engine.unprepared == ["a", "b"]


async def test_b063_a_claim_rebuilt_without_its_name_is_looked_for_by_its_uid(clock: Clock) -> None:
    engine, api = Engine(record(uid="a", name=""), record(uid="b", name="")), Api()
    api.claims = {"anything": api_claim("a", name="anything")}
    rounds = cleanup(engine, api)
    await rounds.once()
    clock.now += 121
    await rounds.once()
    assert engine.unprepared == ["b"]


async def test_a_status_that_was_not_written_before_the_process_ended_is_written(clock: Clock) -> None:
    engine = Engine(
        record(uid="a"), record(uid="b", name="half", state=ClaimState.PREPARING), record(uid="c", name="")
    )
    api = Api()
    api.claims = {"claim": api_claim("a"), "half": api_claim("b", "half"), "other": api_claim("c", "other")}
    api.refuses_writes = ApiError(503, "ServiceUnavailable", "busy")
    rounds = cleanup(engine, api)
    await rounds.once()
    assert api.written == []
    api.refuses_writes = None
    await rounds.once()
    assert api.written == ["claim"]
    # What says that a device is not ready any more stays.
    api.claims["claim"]["status"]["devices"][0]["conditions"][0]["status"] = "False"
    await rounds.once()
    assert api.written == ["claim"]
    assert engine.unprepared == []


async def test_an_interval_that_cannot_be_put_back_is_told_once_each_time(
    clock: Clock,
) -> None:
    engine, told = Engine(), []
    rounds = cleanup(engine, Api(), lambda reason, message: told.append((reason, message)))
    for problem in ["GPU 0: status 255", "GPU 0: status 255", None, "GPU 0: status 255"]:
        engine.left_over = [problem] if problem else []
        await rounds.once()
    assert told == [("TimeSliceLeft", "GPU 0: status 255")] * 2


@pytest.mark.parametrize("restored", [False, True])
async def test_a_store_that_was_replaced_ends_the_process(restored: bool) -> None:
    engine = Engine()
    engine.store_error = StoreReplaced("state.db was deleted")
    if restored:
        engine.restored.set()
    with pytest.raises(StoreReplaced, match=r"state\.db was deleted"):
        await asyncio.wait_for(cleanup(engine, Api()).run(), 5)
