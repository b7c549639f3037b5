"""The few facts of an ELF shared object that decide how it is mounted (System V ABI, ``elf.h``)."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

_HEADER = struct.Struct("<HHIQQQIHHH")
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_DYNAMIC_ENTRY = struct.Struct("<qQ")
_CLASS_64_LITTLE_ENDIAN = b"\x7fELF\x02\x01"
_CLASS_32 = b"\x7fELF\x01"
_IDENT_SIZE = 16
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_STRTAB, _DT_SONAME = 0, 5, 14
_MAXIMUM_NAME = 255
_MACHINES = {62: "x86_64", 183: "aarch64"}


@dataclass(frozen=True, slots=True)
class SharedObject:
    """``bits`` is 32 or 64; ``machine`` is as in ``uname -m``, "" for any other; ``soname`` is DT_SONAME."""

    bits: int
    machine: str
    soname: str | None


def read_shared_object(path: Path) -> SharedObject | None:
    """The facts of one file, None when it is no ELF file or a damaged one.

    Of a 32-bit file only that it is one is read. Reads a few hundred bytes, whatever the file's size.

    Raises:
        OSError: the file cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        ident = os.pread(descriptor, _IDENT_SIZE, 0)
        if ident.startswith(_CLASS_32):
            return SharedObject(bits=32, machine="", soname=None)
        if not ident.startswith(_CLASS_64_LITTLE_ENDIAN):
            return None
        try:
            return _read_64_bit(descriptor)
        except (struct.error, OverflowError):
            return None
    finally:
        os.close(descriptor)


def _read_64_bit(descriptor: int) -> SharedObject:
    header = _HEADER.unpack(os.pread(descriptor, _HEADER.size, _IDENT_SIZE))
    machine = _MACHINES.get(header[1], "")
    program_headers_offset, entry_size, entry_count = header[4], header[8], header[9]
    table = os.pread(descriptor, entry_size * entry_count, program_headers_offset)
    segments = [_PROGRAM_HEADER.unpack_from(table, i * entry_size) for i in range(entry_count)]
    dynamic = next((segment for segment in segments if segment[0] == _PT_DYNAMIC), None)
    if dynamic is None:
        return SharedObject(64, machine, None)
    entries = os.pread(descriptor, dynamic[5], dynamic[2])
    values: dict[int, int] = {}
    for tag, value in _DYNAMIC_ENTRY.iter_unpack(
        entries[: len(entries) // _DYNAMIC_ENTRY.size * _DYNAMIC_ENTRY.size]
    ):
        if tag == _DT_NULL:
            break
        values[tag] = value
    if _DT_SONAME not in values or _DT_STRTAB not in values:
        return SharedObject(64, machine, None)
    # DT_STRTAB is an address in memory; the segment that is loaded there tells where it is in the file.
    strings = values[_DT_STRTAB]
    for kind, _, offset, address, _, file_size, _, _ in segments:
        if kind == _PT_LOAD and address <= strings < address + file_size:
            position = strings - address + offset + values[_DT_SONAME]
            name, end, _ = os.pread(descriptor, _MAXIMUM_NAME + 1, position).partition(b"\0")
            if name and end:
                return SharedObject(64, machine, name.decode("utf-8", "surrogateescape"))
    return SharedObject(64, machine, None)
