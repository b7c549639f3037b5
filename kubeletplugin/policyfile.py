"""The file of the node policy: read at the start, and again when what it says has changed."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from driver.nodepolicy import NodePolicy
from kube.conditions import Announce, Condition, Conditions
from kubeletplugin.metrics import Metrics

LONGEST_BYTES = 1024 * 1024

log = logging.getLogger(__name__)


class PolicyFileError(ValueError):
    """The file cannot be used; the text names it, the field, the value and what is allowed."""


def read_policy(path: Path, defaults: NodePolicy) -> NodePolicy:
    """The node's defaults with the entries of the file.

    Raises:
        PolicyFileError: it cannot be read, or says something that is not allowed.
    """
    return _parse(path, _content(path), defaults)


class PolicyFile:
    """Looks at the file's content again and again: of a mounted ConfigMap the whole folder is replaced."""

    def __init__(
        self,
        path: Path,
        policy: NodePolicy,
        metrics: Metrics,
        announce: Announce,
        *,
        period_seconds: float,
    ) -> None:
        """``policy`` is what holds now. A file that becomes wrong leaves in force what it said before."""
        self._path = path
        self._policy = policy
        self._valid = metrics.policy_valid
        self._conditions = Conditions(announce)
        self._period_seconds = period_seconds
        self._seen: bytes | None = None
        self._says = policy
        self._valid.set(1)

    async def run(self, apply: Callable[[NodePolicy], None]) -> None:
        """Call ``apply`` with each new policy, for ever."""
        while True:
            try:
                policy = await asyncio.to_thread(self._look)
            except PolicyFileError as error:
                self._valid.set(0)
                text = f"what the node policy said before stays in force: {error}"
                self._conditions.stand([Condition("NodePolicyInvalid", text)])
            else:
                self._valid.set(1)
                self._conditions.stand([])
                if policy != self._policy:
                    log.info("%s has changed: %d entries hold now", self._path, len(policy.entries))
                    self._policy = policy
                    apply(policy)
            await asyncio.sleep(self._period_seconds)

    def _look(self) -> NodePolicy:
        """What the file says now. Reads it, so it belongs into a thread.

        Raises:
            PolicyFileError: see :func:`read_policy`.
        """
        content = _content(self._path)
        if content != self._seen:
            says = _parse(self._path, content, replace(self._policy, entries=()))
            self._seen, self._says = content, says
        return self._says


def _content(path: Path) -> bytes:
    try:
        # A pipe without a writer would hold up a blocking open for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise PolicyFileError(f"{path} cannot be read: it is no regular file")
            with open(descriptor, "rb", closefd=False) as file:
                content = file.read(LONGEST_BYTES + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise PolicyFileError(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > LONGEST_BYTES:
        raise PolicyFileError(
            f"{path} is longer than {LONGEST_BYTES} bytes, which is all a ConfigMap can hold"
        )
    return content


def _parse(path: Path, content: bytes, defaults: NodePolicy) -> NodePolicy:
    # Not at the top: YAML and pydantic take memory that a node without such a file need not hold.
    from driver.policydocument import PolicyDocumentError, parse
    from kube.plainyaml import PlainYamlError, load

    try:
        return replace(defaults, entries=parse(load(content)))
    except PlainYamlError as error:
        raise PolicyFileError(f"{path} is no YAML document: {error}") from None
    except PolicyDocumentError as error:
        raise PolicyFileError(f"{path}: {error}") from None
