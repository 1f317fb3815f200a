"""Paths into a schema as rules and selectable fields name them: ``.spec.limits['a.b']``."""

from __future__ import annotations

import re
from typing import Final

from kgpu.lab.embedded.crd.shape import Schema

_TOKEN: Final = re.compile(r"'(?:\\.|[^'\\])*'|[.\[\]]|[^.\[\]']+|'")
_ESCAPES: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "'": "'", "\\": "\\"}


class PathError(ValueError):
    """The path is invalid or names no field; the text is the real server's."""


def resolve(path: str, schema: Schema, *, brackets: bool = True) -> tuple[str, Schema]:
    """(The path as messages show it, the schema there). Raises PathError."""
    tokens = iter(_TOKEN.findall(path))
    shown = ""
    for symbol in tokens:
        if symbol == "." or (symbol == "[" and brackets):
            name = _name(tokens, symbol)
            properties, extra = schema.get("properties"), schema.get("additionalProperties")
            if properties:
                if name not in properties:
                    raise PathError("does not refer to a valid field")
                shown = f"{shown}.{name}" if shown else name
                schema = properties[name]
            elif isinstance(extra, dict):
                shown += f"[{name}]"
                schema = extra
            else:
                raise PathError("does not refer to a valid field")
        elif symbol == "[":
            raise PathError("array notation is not allowed")
        else:
            raise PathError(f"expected [ or . but got: {symbol}")
    return shown, schema


def _name(tokens: object, opened: str) -> str:
    end = "unexpected end of JSON path"
    token: str | None = next(tokens, None)  # type: ignore[call-overload]
    if token is None:
        raise PathError(end)
    if opened == ".":
        return token
    if len(token) < 2 or token[0] != "'" or token[-1] != "'":
        raise PathError(f"expected single quoted string but got {token}")
    closing = next(tokens, None)  # type: ignore[call-overload]
    if closing is None:
        raise PathError(end)
    if closing != "]":
        raise PathError(f"expected ] but got {closing}")
    return re.sub(r"\\(.)", _unescaped, token[1:-1])


def _unescaped(match: re.Match[str]) -> str:
    if match[1] not in _ESCAPES:
        raise PathError(f"invalid string literal: invalid escape char {match[0]}")
    return _ESCAPES[match[1]]
