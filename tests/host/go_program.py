"""Go programs for tests: ELF files with a .go.buildinfo section, as the linker writes it since Go 1.18."""

from __future__ import annotations

import struct
from collections.abc import Iterable


def go_program(modules: Iterable[str], *, tail: bytes = b"", magic: bytes = b"\xff Go buildinf:") -> bytes:
    """``modules`` are the lines of the module list: ``dep\\tpath\\tversion``."""
    text = b"0" * 16 + "".join(f"{line}\n" for line in modules).encode() + b"1" * 16
    info = magic + b"\x08\x02" + bytes(16) + _text(b"go1.24.0") + _text(text)
    names = b"\0.shstrtab\0.go.buildinfo\0"
    begin = 64 + 3 * 64
    rows = [
        (0, 0, 0, 0, 0, 0),
        (1, 3, 0, 0, begin, len(names)),
        (11, 1, 0, 0, begin + len(names), len(info)),
    ]
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, 0, 0, 64, 0, 64, 56, 0, 64, 3, 1)
    table = b"".join(struct.pack("<IIQQQQIIQQ", *row, 0, 0, 0, 0) for row in rows)
    return head + table + names + info + tail


def _text(data: bytes) -> bytes:
    length, size = b"", len(data)
    while size >= 0x80:
        length += bytes([size & 0x7F | 0x80])
        size >>= 7
    return length + bytes([size]) + data
