"""Paths in the loader's cache, ``/etc/ld.so.cache`` (glibc, ``sysdeps/generic/dl-cache.h``)."""

from __future__ import annotations

import struct

_MAGIC = b"glibc-ld.so.cache1.1"
_HEADER = struct.Struct("<20sII20x")
_ENTRY = struct.Struct("<iIIIQ")


def library_paths(content: bytes, *, prefixes: tuple[str, ...]) -> list[str]:
    """Absolute paths of the libraries whose name begins with one of the prefixes, in the cache's order.

    Reads the format of glibc 2.2 and later, also where it follows the older one in the same file. Content
    that is no such cache has no libraries: the cache only adds to the known folders.
    """
    start = content.find(_MAGIC)
    if start < 0:
        return []
    cache = memoryview(content)[start:]
    found: list[str] = []
    try:
        _, count, _ = _HEADER.unpack_from(cache)
        for i in range(count):
            _, name_offset, path_offset, _, _ = _ENTRY.unpack_from(cache, _HEADER.size + i * _ENTRY.size)
            if _text(content, start + name_offset).startswith(prefixes):
                found.append(_text(content, start + path_offset))
    except struct.error:
        return found
    return found


def _text(content: bytes, offset: int) -> str:
    end = content.find(b"\0", offset)
    return content[offset : max(end, offset)].decode("utf-8", "surrogateescape")
