"""The values of the container toolkit's ``config.toml``: their kinds, how they are checked, typed and written."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any, Final

from kgpu.base.suggest import did_you_mean

Value = bool | str | tuple[str, ...]
MAX_ITEMS: Final = 1000

_KIND: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]/[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]", re.ASCII)
# As Go's strconv.ParseBool.
_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "FALSE", "false", "False"})
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\b": "\\b", "\f": "\\f"}
_UNPRINTABLE: Final = re.compile(r'["\\\x00-\x1f\x7f]')


class ValueKind(StrEnum):
    """What a setting takes, in the words of an error message."""

    BOOL = "true or false"
    OPTIONAL_BOOL = "true, false or nil"
    TEXT = "a text"
    LIST = "a list of texts"
    CAPABILITIES = "driver capabilities with commas between"
    CDI_KIND = "a CDI kind, vendor/class"


_BOOLS: Final = (ValueKind.BOOL, ValueKind.OPTIONAL_BOOL)


def check_value(kind: ValueKind, raw: Any, choices: tuple[str, ...] = ()) -> tuple[Value | None, str]:
    """The value of a decoded TOML value, and "" or why it isn't one."""
    if kind in _BOOLS:
        return (raw, "") if isinstance(raw, bool) else (None, _wrong(kind, raw))
    if kind is ValueKind.LIST:
        if not isinstance(raw, list | tuple) or not all(isinstance(item, str) for item in raw):
            return None, _wrong(kind, raw)
        return (tuple(raw), "") if len(raw) <= MAX_ITEMS else (None, f"more than {MAX_ITEMS} items")
    if not isinstance(raw, str):
        return None, _wrong(kind, raw)
    words = raw.split(",") if kind is ValueKind.CAPABILITIES else [raw]
    for word in words if choices and raw else ():
        if word.strip() not in choices and (kind, word.strip()) != (ValueKind.CAPABILITIES, "all"):
            hint = did_you_mean(word[:50], choices)
            return None, f'"{word:.50}" is none of {", ".join(choices)}' + (f"; {hint}" if hint else "")
    if kind is ValueKind.CDI_KIND and not _KIND.fullmatch(raw):
        return None, f'"{raw:.50}" is not a CDI kind, such as vendor.com/class'
    return raw, ""


def read_text(kind: ValueKind, text: str | None, separator: str) -> tuple[Any, str]:
    """What a command line's text stands for (None: the key stood alone), decoded, and "" or why it is nothing."""
    if kind in _BOOLS:
        if text is None or text in _TRUE:
            return True, ""
        return (False, "") if text in _FALSE else (None, f'"{text:.50}" is neither true nor false')
    if text is None:
        return None, "it has no value"
    if kind is not ValueKind.LIST:
        return text, ""
    if not text:
        return [], ""
    return text.split(separator if separator and separator in text else ","), ""


def toml(value: Value) -> str:
    """A value as TOML, on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{_UNPRINTABLE.sub(_escape, value)}"'
    return f"[{', '.join(toml(item) for item in value)}]"


def _escape(match: re.Match[str]) -> str:
    return _ESCAPES.get(match[0]) or f"\\u{ord(match[0]):04x}"


def _wrong(kind: ValueKind, raw: Any) -> str:
    names = {bool: "true or false", int: "a number", float: "a number", str: "a text", list: "a list", dict: "a table"}
    return f"{names.get(type(raw), 'a time')} is there, not {kind}"
