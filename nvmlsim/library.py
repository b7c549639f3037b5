"""Calls the compiled library's own functions: there is one implementation of the node's state, in C."""

import ctypes
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nvmlsim.build import Build, build

_MESSAGE_BYTES = 1024
_SHOW_BYTES = 1 << 18
_SAFE = frozenset(range(0x21, 0x7F)) - {ord("%"), ord("=")}


class StateError(RuntimeError):
    """The node refused a change, or its state file cannot be used; the message says which and why."""


def line(verb: str, words: Mapping[str, object]) -> str:
    """One line of the library's language: `verb key=value …`. None is left out; True is 1."""
    parts = [verb]
    for key, value in words.items():
        if value is None:
            continue
        plain = int(value) if isinstance(value, bool) else value
        data = plain if isinstance(plain, bytes) else str(plain).encode()
        parts.append(f"{key}=" + "".join(chr(byte) if byte in _SAFE else f"%{byte:02X}" for byte in data))
    return " ".join(parts)


class StateLibrary:
    """The `nvmlsim_*` functions of a build's library; errors name the node by its folder, `root`."""

    def __init__(self, root: Path, built: Build | None = None) -> None:
        self._root = root
        self._library = ctypes.CDLL(str((built or build()).library))
        for name in ("nvmlsim_create", "nvmlsim_apply", "nvmlsim_show"):
            getattr(self._library, name).restype = ctypes.c_int64

    def create(self, path: Path, lines: Iterable[str]) -> None:
        self._change(self._library.nvmlsim_create, path, lines)

    def apply(self, path: Path, lines: Iterable[str]) -> None:
        """Carries out all lines as one change, or none of them. Raises StateError."""
        self._change(self._library.nvmlsim_apply, path, lines)

    def show(self, path: Path) -> dict[str, Any]:
        size = _SHOW_BYTES
        while True:
            buffer = ctypes.create_string_buffer(size)
            result = self._library.nvmlsim_show(str(path).encode(), buffer, ctypes.c_uint64(size))
            if result < 0:
                raise StateError(f"{self._root}: {buffer.value.decode(errors='replace')}")
            if result == 0:
                shown: dict[str, Any] = json.loads(buffer.value)
                return shown
            size = result

    def _change(self, function: Any, path: Path, lines: Iterable[str]) -> None:
        buffer = ctypes.create_string_buffer(_MESSAGE_BYTES)
        text = "\n".join(lines).encode()
        if function(str(path).encode(), text, buffer, ctypes.c_uint64(_MESSAGE_BYTES)) != 0:
            raise StateError(f"{self._root}: {buffer.value.decode(errors='replace')}")
