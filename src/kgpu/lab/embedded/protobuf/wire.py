"""Protobuf's wire format: numbers, lengths and fields to skip, in ``data[at:end]``.

As strict as the decoders of the API's Go types, with their messages: whatever the bytes are, a function returns a
position not after ``end`` or raises BadMessageError.
"""

from __future__ import annotations

from typing import Final

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
_GROUP: Final = 3
_END_GROUP: Final = 4
_FIXED: Final = {FIXED64: 8, 5: 4}
_WIDTH: Final = (1 << 64) - 1


class BadMessageError(Exception):
    """Bytes that are no such message; the text is Go's.

    ``api_version`` and ``kind`` are those of the envelope, if it could be read.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.api_version = ""
        self.kind = ""


def varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """(unsigned number of 64 bits, the position after it)."""
    value = shift = 0
    while shift < 64:
        if at >= end:
            raise BadMessageError("unexpected EOF")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _WIDTH, at
        shift += 7
    raise BadMessageError("proto: integer overflow")


def signed(value: int, bits: int) -> int:
    """The lowest ``bits`` bits as Go's int32 or int64."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def length(data: bytes, at: int, end: int) -> tuple[int, int]:
    """(begin, stop) of the bytes whose length stands at ``at``."""
    size, at = varint(data, at, end)
    if size >> 63:
        raise BadMessageError("proto: negative length found during unmarshaling")
    if at + size > end:
        raise BadMessageError("unexpected EOF")
    return at, at + size


def skip(data: bytes, at: int, end: int) -> int:
    """The position after the field, or the group of fields, that begins at ``at``."""
    depth = 0
    while at < end:
        key, at = varint(data, at, end)
        wire = key & 7
        if wire == VARINT:
            _, at = varint(data, at, end)
        elif wire == BYTES:
            _, at = length(data, at, end)
        elif wire in _FIXED:
            at += _FIXED[wire]
        elif wire == _GROUP:
            depth += 1
        elif wire == _END_GROUP:
            if not depth:
                raise BadMessageError("proto: unexpected end of group")
            depth -= 1
        else:
            raise BadMessageError(f"proto: illegal wireType {wire}")
        if at > end:
            raise BadMessageError("unexpected EOF")
        if not depth:
            return at
    raise BadMessageError("unexpected EOF")


def tag(data: bytes, at: int, end: int, go: str) -> tuple[int, int, int]:
    """(field number, wire type, the position after the tag). ``go`` is the message's name in errors."""
    key, at = varint(data, at, end)
    number, wire = signed(key >> 3, 32), key & 7
    if wire == _END_GROUP:
        raise BadMessageError(f"proto: {go}: wiretype end group for non-group")
    if number <= 0:
        raise BadMessageError(f"proto: {go}: illegal tag {number} (wire type {key})")
    return number, wire, at
