"""Reading one GPU field by field, so that a query that fails costs one field only."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

from driver.inventory import UnreadableField
from driver.nvml import Code, NvmlError

T = TypeVar("T")


class FieldReader:
    """Runs the queries of one GPU and keeps what failed in ``failures``."""

    def __init__(self, gpu: str) -> None:
        self._gpu = gpu
        self.failures: list[UnreadableField] = []

    def read(self, field: str, query: Callable[[], T], empty: T, *, absent: Collection[Code] = ()) -> T:
        """The query's answer, or ``empty`` when it fails.

        A code in ``absent`` says that the GPU has no such thing: that is an answer, not a failure.

        Raises:
            NvmlError: GPU_IS_LOST, after which no answer about this GPU means anything.
        """
        try:
            return query()
        except NvmlError as error:
            if error.code == Code.GPU_IS_LOST:
                raise
            if error.code not in absent:
                self.note(field, error)
        except (OSError, ValueError) as error:
            self.note(field, error)
        return empty

    def note(self, field: str, error: Exception) -> None:
        """Keep a failure; the same one, as of each of many links, once."""
        failure = UnreadableField(self._gpu, field, str(error))
        if failure not in self.failures:
            self.failures.append(failure)
