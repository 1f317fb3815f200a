"""TOML as text: finds each statement, so that one value can be set or removed and every other byte stays.

The scanner only reads what ``tomllib`` has accepted; it finds spans and validates nothing. Callers check their edits:
the result must parse to exactly the intended data.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import Any, Final

Path = tuple[str, ...]

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_BLANK: Final = re.compile(r"[ \t\r\n]*")
_SPACE: Final = re.compile(r"[ \t]*")
_LINE: Final = re.compile(r"[^\n]*\n?")
_QUOTED: Final = re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'', re.DOTALL)
_PLAIN: Final = re.compile(r"[^\n#]*")
_INSIDE: Final = re.compile(r"[^\"'#\[\]{}]+")
_ESCAPES: Final = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A table header (``key`` is empty) or a key with its value. ``start`` to ``end`` are whole lines.

    ``table`` is the header in force; the value is at ``value_start`` to ``value_end``; ``indent`` begins the line.
    """

    table: Path
    key: Path
    start: int
    end: int
    value_start: int
    value_end: int
    indent: str

    @property
    def is_header(self) -> bool:
        return not self.key

    @property
    def path(self) -> Path:
        return self.table + self.key


def statements(text: str) -> tuple[Statement, ...]:
    """Every header and every key of a text that ``tomllib`` accepts, in order."""
    return tuple(_scan(text))


def _scan(text: str) -> Iterator[Statement]:
    at = 0
    table: Path = ()
    if text.startswith("\ufeff"):
        at = 1
    while True:
        at = _skip(_BLANK, text, at)
        if at >= len(text):
            return
        if text[at] == "#":
            at = _skip(_LINE, text, at)
            continue
        start = text.rfind("\n", 0, at) + 1
        indent = text[start:at].lstrip("\ufeff")
        if text[at] == "[":
            brackets = 2 if text.startswith("[[", at) else 1
            table, at = _dotted(text, at + brackets)
            end = _skip(_LINE, text, at)
            yield Statement(table=table, key=(), start=start, end=end, value_start=at, value_end=at, indent=indent)
        else:
            key, at = _dotted(text, at)
            value_start = _skip(_SPACE, text, at + 1)
            value_end = _value_end(text, value_start)
            end = _skip(_LINE, text, value_end)
            yield Statement(
                table=table, key=key, start=start, end=end, value_start=value_start, value_end=value_end, indent=indent
            )
        at = end


def _skip(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at


def _dotted(text: str, at: int) -> tuple[Path, int]:
    """Read a dotted key; return it and the position of what follows it (``=`` or ``]``)."""
    parts: list[str] = []
    while True:
        at = _skip(_SPACE, text, at)
        quoted = _QUOTED.match(text, at) if text[at] in "\"'" else None
        key = quoted or _BARE.match(text, at)
        if key is None:
            raise ValueError(f"no key at character {at}")
        parts.append(tomllib.loads(f"x={key.group()}")["x"] if quoted else key.group())
        at = _skip(_SPACE, text, key.end())
        if text[at] != ".":
            return tuple(parts), at
        at += 1


def _value_end(text: str, at: int) -> int:
    if text[at] in "\"'":
        return _skip(_QUOTED, text, at)
    if text[at] not in "[{":
        value = _PLAIN.match(text, at)
        return at + len(value.group().rstrip()) if value else at
    depth = 0
    while True:
        char = text[at]
        if char in "\"'":
            at = _skip(_QUOTED, text, at)
            continue
        if char == "#":
            at = _skip(_LINE, text, at)
            continue
        if char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1
            if depth == 0:
                return at + 1
        else:
            at = _skip(_INSIDE, text, at)
            continue
        at += 1


def last_in_list(text: str, start: int, end: int) -> int:
    """The end of the last token in the list at ``start`` to ``end`` that is neither space nor comment."""
    at, last = start + 1, start + 1
    while at < end - 1:
        if text[at] == "#":
            at = _skip(_LINE, text, at)
        elif text[at].isspace():
            at += 1
        else:
            at = last = _skip(_QUOTED, text, at) if text[at] in "\"'" else at + 1
    return last


def key_text(path: Sequence[str]) -> str:
    """A dotted key as it is written."""
    return ".".join(part if _BARE.fullmatch(part) else _string(part) for part in path)


def value_text(value: Any) -> str:
    """A value on one line, with inline tables. Raises TypeError for a type that TOML lacks."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return (
            ("nan" if math.isnan(value) else "inf" if value > 0 else "-inf")
            if not math.isfinite(value)
            else repr(value)
        )
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Mapping):
        inside = ", ".join(f"{key_text((key,))} = {value_text(item)}" for key, item in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, Sequence):
        return f"[{', '.join(map(value_text, value))}]"
    raise TypeError(f"TOML has no value of type {type(value).__name__}")


def table_text(path: Path, table: Mapping[str, Any], newline: str = "\n") -> str:
    """A table with its header; each table in it has its own header and is indented one level deeper."""
    return newline.join(_table_lines(path, table, "")) + newline


def _table_lines(path: Path, table: Mapping[str, Any], indent: str) -> Iterator[str]:
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    tables = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    if plain or not tables:
        yield f"{indent}[{key_text(path)}]"
    for key, value in plain.items():
        yield f"{indent}  {key_text((key,))} = {value_text(value)}"
    for position, (key, inner) in enumerate(tables.items()):
        if plain or position:
            yield ""
        yield from _table_lines((*path, key), inner, indent + "  " if plain else indent)


def _string(value: str) -> str:
    inside = "".join(
        _ESCAPES.get(char) or (f"\\u{ord(char):04X}" if ord(char) < 0x20 or ord(char) == 0x7F else char)
        for char in value
    )
    return f'"{inside}"'
