"""How Go's ``%v`` and ``%s`` print decoded JSON and its types: the API's messages carry such text."""

from __future__ import annotations

from typing import Any, Final

_TYPES: Final[dict[type, str]] = {
    dict: "map[string]interface {}",
    list: "[]interface {}",
    str: "string",
    bool: "bool",
    int: "int64",
    float: "float64",
}
_JSON_NAMES: Final[dict[type, str]] = {
    dict: "object", list: "array", str: "string", bool: "bool", int: "number", float: "number",
}  # fmt: skip


def go_text(value: Any) -> str:
    """``%v``: maps by sorted key, no quotes."""
    if value is None:
        return "<nil>"
    if isinstance(value, dict):
        return f"map[{' '.join(f'{key}:{go_text(value[key])}' for key in sorted(value))}]"
    if isinstance(value, list):
        return f"[{' '.join(map(go_text, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e21:
        return str(int(value))
    return str(value)


def go_type(value: Any) -> str:
    """The Go type that a decoder gives the value, as ``reflect.Type`` prints."""
    return _TYPES.get(type(value), "%!s(<nil>)")


def json_name(value: Any) -> str:
    """The name of the value's type in type errors of encoding/json."""
    return _JSON_NAMES.get(type(value), "null")
