"""Parses the dynamic loader's cache (/etc/ld.so.cache), for drivers in folders that are in no table. Pure.

It reads both layouts that glibc writes: the new one alone ("glibc-ld.so.cache1.1"), and the new one after the old one.
Any bytes give the entries that are complete, and never an error; the cost is bounded by the size of the data.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

MAX_CACHE: Final = 16 << 20
_OLD_MAGIC: Final = b"ld.so-1.7.0"
_NEW_MAGIC: Final = b"glibc-ld.so.cache1.1"
_OLD_HEADER: Final = 16  # the magic, padding, the number of entries
_NEW_HEADER: Final = 48
_OLD_ENTRY: Final = struct.Struct("<iII")
_NEW_ENTRY: Final = struct.Struct("<iIIIQ")
_MAX_TEXT: Final = 4096
_ELF_LIBC6: Final = 3
_BIG_ENDIAN: Final = 3
# The second byte of an entry's flags: which ABI the library has (glibc, sysdeps/generic/ldconfig.h).
_ABIS: Final = {0x03: "x86_64", 0x0A: "aarch64", 0x05: "ppc64le", 0x04: "s390x", 0x10: "riscv64", 0x12: "loongarch64"}


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """A library's SONAME, its absolute path, and its 64-bit ABI ("" for 32-bit and others)."""

    name: str
    path: str
    abi: str = ""


def parse_ld_cache(data: bytes) -> tuple[CacheEntry, ...]:
    """The entries for ELF libraries of glibc, in the cache's order, which is the loader's: best first."""
    start = _new_start(data)
    if start is None:
        return ()
    return tuple(_entries(data[:MAX_CACHE], start))


def _new_start(data: bytes) -> int | None:
    """The offset of the new layout, from which its name offsets count; None if there is none."""
    if data.startswith(_NEW_MAGIC):
        return 0
    if not data.startswith(_OLD_MAGIC) or len(data) < _OLD_HEADER:
        return None
    (count,) = struct.unpack_from("<I", data, _OLD_HEADER - 4)
    end = _OLD_HEADER + count * _OLD_ENTRY.size
    start = end + -end % 8
    return start if data.startswith(_NEW_MAGIC, start) else None


def _entries(data: bytes, start: int) -> Iterator[CacheEntry]:
    if len(data) < start + _NEW_HEADER or data[start + 28] & 3 == _BIG_ENDIAN:
        return
    (count,) = struct.unpack_from("<I", data, start + 20)
    at = start + _NEW_HEADER
    room = (len(data) - at) // _NEW_ENTRY.size
    table = data[at : at + min(count, room) * _NEW_ENTRY.size]
    for flags, key, value, _, _ in _NEW_ENTRY.iter_unpack(table):
        if flags & 0xFF != _ELF_LIBC6:
            continue
        name, path = _text(data, start + key), _text(data, start + value)
        if name and path.startswith("/"):
            yield CacheEntry(name, path, _ABIS.get(flags >> 8 & 0xFF, ""))


def _text(data: bytes, at: int) -> str:
    end = data.find(b"\0", at, at + _MAX_TEXT)
    try:
        return data[at:end].decode() if end > at else ""
    except UnicodeDecodeError:  # a spec can't contain such a path
        return ""
