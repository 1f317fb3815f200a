"""Reads the modules and versions that a Go program on the host was linked from, without running it.

Reads are bounded and never fail: a file that isn't a little-endian 64-bit ELF program of Go 1.18 or later gives
nothing. Programs that a distribution built from its own source packages name no modules; ``has_symbols`` is for those.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Final

_MAX: Final = 1 << 20
_MAX_SECTIONS: Final = 4096
_SECTION: Final = b".go.buildinfo"
_MAGIC: Final = b"\xff Go buildinf:"
_INLINE: Final = 2
_HEADER: Final = 32
_SENTINEL: Final = 16  # bytes before and after the module list


def modules(path: Path) -> dict[str, str]:
    """Module path to version, for a replaced module that of its replacement; empty if the file does not tell."""
    try:
        with path.open("rb") as file:
            section = _section(file)
        if section[: len(_MAGIC)] != _MAGIC or not section[len(_MAGIC) + 1] & _INLINE:
            return {}
        _, at = _text(section, _HEADER)
        raw, _ = _text(section, at)
    except (OSError, OverflowError, ValueError, IndexError, struct.error):
        return {}
    return _modules(raw[_SENTINEL:-_SENTINEL].decode("utf-8", errors="replace"))


def has_symbols(path: Path, symbols: Iterable[str]) -> frozenset[str]:
    """Which of these symbols are in the file: a stripped Go program still has its functions' names."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return frozenset(symbol for symbol in symbols if data.find(symbol.encode()) >= 0)
    except (OSError, ValueError):
        return frozenset()


def _modules(text: str) -> dict[str, str]:
    versions: dict[str, str] = {}
    last = ""
    for line in text.splitlines():
        kind, *fields = line.split("\t")
        if kind in {"mod", "dep"} and len(fields) >= 2:
            last = fields[0]
            versions[last] = fields[1]
        elif kind == "=>" and len(fields) >= 2 and last:
            versions[last] = fields[1]
    return versions


def _section(file: BinaryIO) -> bytes:
    header = file.read(64)
    if header[:6] != b"\x7fELF\x02\x01":
        raise ValueError
    (table,) = struct.unpack_from("<Q", header, 40)
    size, count, names_at = struct.unpack_from("<HHH", header, 58)
    if size != 64 or not names_at < count <= _MAX_SECTIONS:
        raise ValueError
    file.seek(table)
    raw = file.read(size * count)
    sections = [struct.unpack_from("<IIQQQQ", raw, at * size) for at in range(count)]
    file.seek(sections[names_at][4])
    names = file.read(min(sections[names_at][5], _MAX))
    for name, _, _, _, offset, length in sections:
        if names[name : name + len(_SECTION) + 1] == _SECTION + b"\0":
            file.seek(offset)
            return file.read(min(length, _MAX))
    raise ValueError


def _text(data: bytes, at: int) -> tuple[bytes, int]:
    """Read a varint length and that many bytes; return the bytes and the position after them."""
    length = shift = 0
    while True:
        byte = data[at]
        at += 1
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
        if shift > 28:
            raise ValueError
    return data[at : at + length], at + length
