"""Log lines: text or JSON, each with the claim that it is about."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator

import pytest

from kube import logs

log = logging.getLogger("tests.logs")


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)


def test_a_text_line_names_its_claim_once(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up("text", "info")
    with logs.about("default/a"):
        log.warning("device %s is gone", "gpu-0")
        log.warning("claim default/a is gone")
    log.warning("outside")
    first, second, third = capsys.readouterr().err.splitlines()
    assert first.endswith("Z WARNING tests.logs: device gpu-0 is gone claim='default/a'")
    assert second.endswith("tests.logs: claim default/a is gone")
    assert third.endswith("tests.logs: outside")


def test_a_json_line_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up("json", "info")
    with logs.about("default/a"):
        log.warning('two\nlines and a "quote"')
    try:
        raise LookupError("x")
    except LookupError:
        log.exception("failed")
    log.debug("not shown")
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (first["level"], first["logger"], first["claim"]) == ("warning", "tests.logs", "default/a")
    assert first["message"] == 'two\nlines and a "quote"'
    assert first["time"].endswith("Z")
    assert "claim" not in second
    assert "LookupError: x" in second["traceback"]


async def test_claims_that_are_worked_on_at_once_do_not_mix(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up("json", "info")

    async def work(name: str) -> None:
        with logs.about(name):
            await asyncio.sleep(0)
            log.info("mine is %s", name)

    await asyncio.gather(*(work(f"default/c{n}") for n in range(10)))
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert len(lines) == 10
    assert all(line["message"] == f"mine is {line['claim']}" for line in lines)


async def test_b182_stacks_name_tasks_and_threads(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up("text", "info")
    stuck = asyncio.create_task(asyncio.Event().wait(), name="stuck part")
    await asyncio.sleep(0)
    logs.write_stacks()
    stuck.cancel()
    text = capsys.readouterr().err
    assert "task stuck part" in text
    assert "test_b182_stacks_name_tasks_and_threads" in text
    assert "thread" in text.lower()
