"""Log lines as text or JSON, each with the claim that it is about."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import faulthandler
import io
import json
import logging
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator

_claim: contextvars.ContextVar[str] = contextvars.ContextVar("claim", default="")

log = logging.getLogger(__name__)


@contextlib.contextmanager
def about(claim: object) -> Iterator[None]:
    """Lines written inside name ``claim``."""
    token = _claim.set(str(claim))
    try:
        yield
    finally:
        _claim.reset(token)


class _Text(logging.Formatter):
    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        return _timestamp(record)

    def format(self, record: logging.LogRecord) -> str:
        claim = _claim.get()
        text = super().format(record)
        return f"{text} claim={claim!r}" if claim and claim not in text else text


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if claim := _claim.get():
            line["claim"] = claim
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def _timestamp(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"


def set_up(form: str, level: str) -> None:
    """Write log lines of ``level`` (debug, info, warning, error) and above to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    if form == "json":
        handler.setFormatter(_Json())
    else:
        handler.setFormatter(_Text("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def write_stacks() -> None:
    """Log where every task and thread is, for a process that seems to hang."""
    text = io.StringIO()
    for task in asyncio.all_tasks():
        frames = "".join(
            traceback.format_list(
                traceback.StackSummary.extract((frame, frame.f_lineno) for frame in task.get_stack())
            )
        )
        text.write(f"task {task.get_name()} ({task.get_coro()!r})\n{frames}")
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        text.write(file.read().decode(errors="replace"))
    log.warning("stacks of all tasks and threads:\n%s", text.getvalue())
