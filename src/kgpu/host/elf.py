"""Reads one thing from a shared library: its SONAME, the name by which the loader asks for it.

Bounded and total: any file that isn't a little-endian 64-bit ELF library with a SONAME gives "", whatever its bytes.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

_MAX: Final = 1 << 20
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_STRTAB, _DT_SONAME = 5, 14


def soname(path: Path) -> str:
    """The DT_SONAME of the library, "" when there is none to be read."""
    try:
        with path.open("rb") as file:
            header = file.read(64)
            if header[:6] != b"\x7fELF\x02\x01":
                return ""
            offset, size, count = *struct.unpack_from("<Q", header, 32), *struct.unpack_from("<HH", header, 54)
            if size != 56 or count > 1024:
                return ""
            file.seek(offset)
            table = file.read(size * count)
            segments = [struct.unpack_from("<IIQQQQQQ", table, at) for at in range(0, size * count, size)]
            dynamic = next(segment for segment in segments if segment[0] == _PT_DYNAMIC)
            file.seek(dynamic[2])
            raw = file.read(min(dynamic[5], _MAX))
            tags = dict(reversed(list(struct.iter_unpack("<QQ", raw[: len(raw) // 16 * 16]))))
            address = tags[_DT_STRTAB]
            load = next(s for s in segments if s[0] == _PT_LOAD and s[3] <= address < s[3] + s[5])
            file.seek(load[2] + address - load[3] + tags[_DT_SONAME])
            name, end, _ = file.read(256).partition(b"\0")
            return name.decode("ascii") if end and b"/" not in name else ""
    except (OSError, OverflowError, ValueError, struct.error, StopIteration, KeyError):
        return ""
