"""CEL's extended string functions as in cel-go, with its error messages.

Positions count characters.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from typing import Any

_CLAUSE = re.compile(r"%%|%(?:\.([0-9]+))?([a-zA-Z])|%")


def char_at(text: str, index: int) -> str:
    if index < 0 or index > len(text):
        raise ValueError(f"index out of range: {index}")
    return text[index : index + 1]


def index_of(text: str, part: str, offset: int = 0) -> int:
    if offset < 0 or offset > len(text):
        if part == "" and offset == 0:
            return 0
        raise ValueError(f"index out of range: {offset}")
    return text.find(part, offset)


def last_index_of(text: str, part: str, offset: int | None = None) -> int:
    if offset is None:
        return text.rfind(part)
    if offset < 0 or offset >= max(len(text), 1):
        raise ValueError(f"index out of range: {offset}")
    return text.rfind(part, 0, offset + len(part))


def join(parts: list[Any], between: str = "") -> str:
    if not all(isinstance(part, str) for part in parts):
        raise ValueError("join: no such overload")
    return between.join(parts)


def replace(text: str, old: str, new: str, times: int = -1) -> str:
    return text.replace(old, new, times if times >= 0 else -1)


def split(text: str, between: str, limit: int = -1) -> list[str]:
    if limit == 0:
        return []
    if between == "":
        characters = list(text)
        return characters if limit < 0 or len(characters) <= limit else [*characters[: limit - 1], text[limit - 1 :]]
    return text.split(between, limit - 1 if limit > 0 else -1)


def substring(text: str, start: int, end: int | None = None) -> str:
    if end is not None and start > end:
        raise ValueError(f"invalid substring range. start: {start}, end: {end}")
    if start < 0 or start > len(text):
        raise ValueError(f"index out of range: {start}")
    if end is not None and end > len(text):
        raise ValueError(f"index out of range: {end}")
    return text[start:end]


def lower_ascii(text: str) -> str:
    return "".join(character.lower() if character.isascii() else character for character in text)


def upper_ascii(text: str) -> str:
    return "".join(character.upper() if character.isascii() else character for character in text)


def quote(text: str) -> str:
    """As strings.quote: a CEL string literal."""
    escapes = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}
    escapes |= {"\\": "\\\\", '"': '\\"'}
    return '"' + "".join(escapes.get(character, character) for character in text) + '"'


def format_text(pattern: str, values: list[Any]) -> str:
    """As ``string.format``: %s %d %f %e %b %x %X %o, with precision."""
    remaining = iter(values)
    count = 0

    def one(match: re.Match[str]) -> str:
        nonlocal count
        if match[0] == "%%":
            return "%"
        if match[2] is None:
            raise ValueError("could not parse formatting clause: unexpected end of string")
        try:
            value = next(remaining)
        except StopIteration:
            raise ValueError(f"index {count} out of range") from None
        count += 1
        return _clause(match[2], value, int(match[1]) if match[1] else 6)

    return _CLAUSE.sub(one, pattern)


def _clause(verb: str, value: Any, precision: int) -> str:
    whole = isinstance(value, int) and not isinstance(value, bool)
    match verb:
        case "s":
            return shown(value)
        case "d" if whole:
            return str(value)
        case "f" if isinstance(value, int | float) and not isinstance(value, bool):
            return f"{value:.{precision}f}" if math.isfinite(value) else shown(float(value))
        case "e" if isinstance(value, float):
            return f"{value:.{precision}e}"
        case "b" if isinstance(value, int):
            return f"{int(value):b}"
        case "o" if whole:
            return f"{value:o}"
        case "x" | "X" if whole:
            return f"{value:{verb}}"
        case "x" | "X" if isinstance(value, str | bytes | bytearray):
            text = (value.encode() if isinstance(value, str) else bytes(value)).hex()
            return text.upper() if verb == "X" else text
        case "d":
            raise ValueError(
                f"error during formatting: decimal clause can only be used on integers, was given {_kind(value)}"
            )
        case "f" | "e" | "b" | "o" | "x" | "X":
            raise ValueError("error during formatting: could not convert argument to a number")
        case _:
            raise ValueError(f'could not parse formatting clause: unrecognized formatting clause "{verb}"')


def _kind(value: Any) -> str:
    kinds = {bool: "bool", str: "string", float: "double", list: "list", dict: "map", type(None): "null_type"}
    return kinds.get(type(value), type(value).__name__)


def shown(value: Any) -> str:
    """A value as %s prints it."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case float():
            return (
                "NaN"
                if math.isnan(value)
                else ("Infinity" if value > 0 else "-Infinity")
                if math.isinf(value)
                else repr_float(value)
            )
        case bytes() | bytearray():
            return bytes(value).decode(errors="replace")
        case dt.datetime():
            return value.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")
        case dt.timedelta():
            return f"{repr_float(value.total_seconds())}s"
        case list():
            return "[" + ", ".join(_nested(item) for item in value) + "]"
        case dict():
            return "{" + ", ".join(f"{_nested(key)}: {_nested(item)}" for key, item in sorted(value.items())) + "}"
        case _:
            return str(value)


def _nested(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else shown(value)


def repr_float(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 1e21 else repr(value)
