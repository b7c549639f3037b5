"""Takes symbols out of a copy of the library, as a driver that is too old to have them lacks them."""

import struct
from collections.abc import Collection

_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SHT_DYNSYM = 11


def without_symbols(library: bytes, symbols: Collection[str]) -> bytes:
    """The library (ELF, 64 bits, little-endian) with these symbols undefined, so that dlsym fails for them.

    Raises KeyError naming a symbol that the library does not have.
    """
    changed = bytearray(library)
    missing = set(symbols)
    for name, offset in _dynamic_symbols(library):
        if name in missing:
            missing.remove(name)
            name_offset, information, other, _, _, size = _SYMBOL.unpack_from(library, offset)
            _SYMBOL.pack_into(changed, offset, name_offset, information, other, 0, 0, size)
    if missing:
        raise KeyError(", ".join(sorted(missing)))
    return bytes(changed)


def _dynamic_symbols(library: bytes) -> list[tuple[str, int]]:
    (table,) = struct.unpack_from("<Q", library, 40)
    entry_size, count = struct.unpack_from("<HH", library, 58)
    headers = [_SECTION_HEADER.unpack_from(library, table + entry_size * index) for index in range(count)]
    found = []
    for _, kind, _, _, offset, size, link, *_ in headers:
        if kind != _SHT_DYNSYM:
            continue
        names = headers[link][4]
        for at in range(offset, offset + size, _SYMBOL.size):
            start = names + _SYMBOL.unpack_from(library, at)[0]
            found.append((library[start : library.index(b"\0", start)].decode(), at))
    return found
