"""The words for a strategic patch whose values have the wrong type: they are converted another way than bodies are.

Source of the rules: apimachinery's runtime converter (FromUnstructured).
"""

from __future__ import annotations

import re
from typing import Any, Final

from kgpu.lab.embedded.status import ApiError, bad_value, invalid

_UNMARSHAL: Final = re.compile(r"json: cannot unmarshal (\w+)(?: (\S+))? into Go struct field \S+ of type (\S+)$")
_SOURCES: Final = {"string": "string", "bool": "bool", "number": "int64", "object": "map", "array": "slice"}
_CONVERTIBLE: Final = frozenset({("number", "string")})  # in Go, where it would make a character of the number


def refused(error: ApiError, patch: Any) -> ApiError:
    """What the real server says instead of ``error``, the refusal to decode what ``patch`` has made of an object."""
    found = _UNMARSHAL.search(error.message)
    if error.code != 400 or found is None:
        return error
    have, number, wanted = found.groups()
    if wanted.startswith("map["):
        why = f"cannot restore map from {_SOURCES.get(have, have)}"
    elif wanted.startswith("[]"):
        why = f"cannot restore slice from {_SOURCES.get(have, have)}"
    elif "." in wanted:
        why = f"cannot restore struct from: {_SOURCES.get(have, have)}"
    elif number and wanted.startswith(("int", "uint")):
        why = f"cannot convert float64 to {wanted}"
    elif (have, wanted) in _CONVERTIBLE:
        why = f"cannot convert {_SOURCES[have]} to {wanted}"
    else:
        why = f"unrecognized type: {wanted}"
    return invalid("", "", "", [bad_value("patch", printed(patch), why)])


def printed(value: Any) -> str:
    """As Go prints a value with %+v: ``map[a:1 b:[x y]]``."""
    if isinstance(value, dict):
        return f"map[{' '.join(f'{key}:{printed(value[key])}' for key in sorted(value))}]"
    if isinstance(value, list):
        return f"[{' '.join(map(printed, value))}]"
    if value is None:
        return "<nil>"
    return str(value).lower() if isinstance(value, bool) else str(value)
