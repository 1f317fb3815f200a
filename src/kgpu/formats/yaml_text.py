"""Writes plain values as YAML without PyYAML, whose import alone takes longer than writing a large CDI spec.

Promises: what is written reads back to the same value in YAML 1.1 and 1.2 alike, because whatever any reader might take
for something else than text is quoted; keys keep their order; the same value gives the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

# Text that no reader takes for a number, a date, a mark of YAML's own or, with the words below, anything else.
_NEXT: Final = "[A-Za-z0-9/_.=@+-]"
_SAFE: Final = re.compile(rf"[A-Za-z/](?:{_NEXT}|:(?={_NEXT}))*|[0-9]+\.[0-9]+\.[0-9]+", re.ASCII)
_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
_PRINTABLE: Final = re.compile(r"[ -~]*", re.ASCII)
_ESCAPED: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}


def write(value: Any) -> str:
    """Block style. ``value``: mappings with text keys, sequences, text, bool, int, None; else TypeError."""
    return "\n".join(_lines(value, "")) + "\n"


def _lines(value: Any, indent: str) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            head = f"{indent}{_text(key)}:"
            if _block(item):
                yield head
                # Items of a list stand below their key, those of a table one step further in.
                yield from _lines(item, indent if isinstance(item, Sequence) else f"{indent}  ")
            else:
                yield f"{head} {_scalar(item)}"
    elif _block(value):
        for item in value:
            if _block(item):
                below = _lines(item, f"{indent}  ")
                yield f"{indent}- {next(below)[len(indent) + 2 :]}"
                yield from below
            else:
                yield f"{indent}- {_scalar(item)}"
    else:
        yield f"{indent}{_scalar(value)}"


def _block(value: Any) -> bool:
    return bool(value) and not isinstance(value, str | bytes) and isinstance(value, Mapping | Sequence)


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Mapping):
        return "{}"
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return "[]"
    raise TypeError(f"{type(value).__name__} is not written")


def _text(text: str) -> str:
    if _SAFE.fullmatch(text) and text.lower() not in _WORDS:
        return text
    if _PRINTABLE.fullmatch(text):
        return "'" + text.replace("'", "''") + "'"
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(char: str) -> str:
    if char in _ESCAPED:
        return _ESCAPED[char]
    code = ord(char)
    if 0x20 <= code < 0x7F:
        return char
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
