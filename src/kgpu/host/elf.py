"""Reads four facts from an ELF file: word size, machine, SONAME (of a library), interpreter (of a program).

Reads are bounded and never fail: a file that is not regular, not ELF, truncated or malicious gives what could be read
reliably, and "" or 0 for the rest; a pipe never blocks the caller. SONAME and interpreter are read only from
little-endian 64-bit files, as all current drivers are.
"""

from __future__ import annotations

import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_MAX: Final = 1 << 20
_MAX_TEXT: Final = 4096
_MAX_SEGMENTS: Final = 1024
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_STRTAB, _DT_SONAME = 5, 14
_BITS: Final = {1: 32, 2: 64}

_Segment = tuple[int, int, int, int, int, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Elf:
    """``bits`` is 32 or 64, 0 for a file that is not ELF; ``machine`` is e_machine (62: x86-64, 183: aarch64)."""

    bits: int = 0
    machine: int = 0
    soname: str = ""
    interpreter: str = ""
    size: int = 0


def soname(path: Path) -> str:
    """The DT_SONAME of the library, "" if it has none or can't be read."""
    return read_elf(path).soname


def read_elf(path: Path) -> Elf:
    """The facts of the file; an empty ``Elf`` if it can't be opened or is not a regular file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return Elf()
    size = 0
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return Elf()
        size = status.st_size
        return _facts(descriptor, size)
    except (OSError, OverflowError, ValueError, struct.error):
        return Elf(size=size)
    finally:
        os.close(descriptor)


def _facts(file: int, size: int) -> Elf:
    header = _at(file, 0, 64)
    if header[:4] != b"\x7fELF" or len(header) < 20:
        return Elf(size=size)
    bits, little = _BITS.get(header[4], 0), header[5] == 1
    machine = int.from_bytes(header[18:20], "little" if little else "big")
    if bits != 64 or not little or len(header) < 64:
        return Elf(bits=bits, machine=machine, size=size)
    segments = _segments(file, header)
    return Elf(
        bits=bits, machine=machine, soname=_soname(file, segments), interpreter=_interpreter(file, segments), size=size
    )


def _segments(file: int, header: bytes) -> list[_Segment]:
    offset, entry, count = *struct.unpack_from("<Q", header, 32), *struct.unpack_from("<HH", header, 54)
    if entry != 56 or count > _MAX_SEGMENTS:
        return []
    table = _at(file, offset, entry * count)
    return [struct.unpack_from("<IIQQQQQQ", table, at) for at in range(0, len(table) // entry * entry, entry)]


def _soname(file: int, segments: list[_Segment]) -> str:
    try:
        dynamic = next(segment for segment in segments if segment[0] == _PT_DYNAMIC)
        raw = _at(file, dynamic[2], min(dynamic[5], _MAX))
        tags = dict(reversed(list(struct.iter_unpack("<QQ", raw[: len(raw) // 16 * 16]))))
        address = tags[_DT_STRTAB]
        load = next(s for s in segments if s[0] == _PT_LOAD and s[3] <= address < s[3] + s[5])
        name = _text(_at(file, load[2] + address - load[3] + tags[_DT_SONAME], 256))
    except (OSError, OverflowError, ValueError, struct.error, StopIteration, KeyError):
        return ""
    return "" if "/" in name else name


def _interpreter(file: int, segments: list[_Segment]) -> str:
    try:
        segment = next(segment for segment in segments if segment[0] == _PT_INTERP)
        return _text(_at(file, segment[2], min(segment[5], _MAX_TEXT)))
    except (OSError, OverflowError, ValueError, StopIteration):
        return ""


def _at(file: int, offset: int, size: int) -> bytes:
    return os.pread(file, size, offset)


def _text(raw: bytes) -> str:
    """The ASCII text up to its NUL byte; "" without one."""
    text, end, _ = raw.partition(b"\0")
    return text.decode("ascii") if end else ""
