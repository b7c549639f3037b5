"""NVML as it is open now: opened once, and anew when it lists too few GPUs or the driver was replaced."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from cdi.driverroot import DriverRoot
from driver.nvml import Nvml, NvmlError, NvmlUnavailable

_LIBRARY = "libnvidia-ml.so.1"


class NvmlSession:
    """For threads. To open NVML anew takes seconds without persistence mode: who uses it meanwhile waits."""

    def __init__(self, driver_root: DriverRoot, timeout: float) -> None:
        """``timeout``: seconds to wait for calls under way before NVML is shut down under them."""
        self._driver_root = driver_root
        self._timeout = timeout
        self._changed = threading.Condition()
        self._users = 0
        self._reopening = False
        self.current: Nvml | None = None

    def open(self) -> Nvml:
        """NVML, initialised if it is not yet.

        Raises:
            DriverRootError: there is no library; names every path tried.
            NvmlUnavailable: it cannot be initialised now.
        """
        if self.current is None:
            self.current = Nvml(self._driver_root.find_library(_LIBRARY))
        return self.current

    def reopen(self) -> Nvml:
        """Shut NVML down and initialise it anew. Raises as :meth:`open`; then nothing is open."""
        with self._changed:
            self._reopening = True
            self._changed.wait_for(lambda: self._users == 0, self._timeout)
        try:
            nvml, self.current = self.current, None
            if nvml is not None:
                # What the library says to its end does not matter, and a driver that is gone makes it fail.
                with contextlib.suppress(NvmlError):
                    nvml.close()
            return self.open()
        finally:
            with self._changed:
                self._reopening = False
                self._changed.notify_all()

    @contextlib.contextmanager
    def use(self) -> Iterator[Nvml]:
        """NVML for a few calls, not shut down in between; waits while it is being opened anew.

        Raises:
            NvmlUnavailable: it is not open.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._reopening, self._timeout)
            nvml = self.current
            if nvml is None:
                raise NvmlUnavailable("NVML is not initialised; trying again is safe")
            self._users += 1
        try:
            yield nvml
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()
