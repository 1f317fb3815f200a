"""JSON, and values of plain types, as typed ones: the one place where msgspec is given a type.

msgspec works out what a type's fields are when it is first used, puts what it has so far on the type, and lets other
threads run meanwhile: a second thread that reads a value of the same type then ends the process with SIGSEGV. So a type
is made ready under a lock here, before its first value is read.
"""

from __future__ import annotations

import threading
from typing import Any, Final, TypeVar

import msgspec

T = TypeVar("T")

_lock: Final = threading.Lock()
_decoders: Final[dict[Any, msgspec.json.Decoder[Any]]] = {}


def decode(data: bytes | str, kind: type[T]) -> T:
    """The JSON as ``kind``. Raises msgspec.DecodeError, and msgspec.ValidationError, which is one."""
    decoded: T = _decoder(kind).decode(data)
    return decoded


def read(text: str, kind: type[T], *, most: int | None = None) -> T | None:
    """JSON from outside as ``kind``; None for what is not of that kind, or has more than ``most`` characters."""
    if most is not None and len(text) > most:
        return None
    try:
        return decode(text, kind)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None


def convert(value: Any, kind: type[T], *, strict: bool = True) -> T:
    """Mappings, lists and scalars as ``kind``; not ``strict``: "1" is a number, too. Raises msgspec.ValidationError."""
    _decoder(kind)
    return msgspec.convert(value, kind, strict=strict)


def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    decoder = _decoders.get(kind)
    if decoder is None:
        with _lock:
            decoder = _decoders.get(kind) or msgspec.json.Decoder(kind)
            _decoders[kind] = decoder
    return decoder
