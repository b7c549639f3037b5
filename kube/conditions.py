"""What a person should know: each thing said when it begins and when it is over."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

log = logging.getLogger(__name__)

Announce = Callable[[str, str], None]
"""Told what a person should see as an event: one CamelCase word, and a sentence."""


def nobody(reason: str, message: str) -> None:
    """Announce to nobody: where there is no object to tell it on, or the log is enough."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One CamelCase word, and a sentence that stays the same while the condition lasts."""

    reason: str
    message: str


class Conditions:
    """The conditions that stand now. A new one is logged and announced, one that is over is logged."""

    def __init__(self, announce: Announce) -> None:
        self._announce = announce
        self._standing: frozenset[Condition] = frozenset()

    def stand(self, conditions: Iterable[Condition]) -> None:
        """Exactly these stand now."""
        now = dict.fromkeys(conditions)
        for condition in now:
            if condition not in self._standing:
                log.warning("%s", condition.message)
                self._announce(condition.reason, condition.message)
        for condition in self._standing.difference(now):
            log.info("over: %s", condition.message)
        self._standing = frozenset(now)
