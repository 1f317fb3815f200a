"""Columns of custom resources: ``additionalPrinterColumns`` with the JSONPaths that the real server allows there."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, TypeAlias

import msgspec

from kgpu.base.times import moment_of
from kgpu.lab.embedded.status import Object
from kgpu.lab.embedded.tables.text import Cell, duration

_STEP: Final = re.compile(
    r"""\.(?P<field>(?:\\.|[^.\[\\])+)|\[(?:'(?P<quoted>(?:\\.|[^'\\])*)'|(?P<index>-?\d+)|(?P<all>\*)
    |\?\(\s*@(?P<path>[^=!<>\s]+)\s*(?P<operator>==|!=|<=|>=|<|>)\s*(?P<value>"[^"]*"|'[^']*'|[^)\s]+)\s*\))\]""",
    re.VERBOSE,
)
_Step: TypeAlias = tuple[str, Any]


class JSONPathError(ValueError):
    """A JSONPath that a column may not use."""


@functools.lru_cache(1024)
def steps(path: str) -> tuple[_Step, ...]:
    """The steps of ``.a['b'][0][*][?(@.c=="d")]``; a leading dot may be missing. Raises JSONPathError."""
    text = path if path.startswith((".", "[")) else f".{path}"
    path_steps: list[_Step] = []
    position = 0
    while position < len(text):
        match = _STEP.match(text, position)
        if match is None:
            raise JSONPathError(path)
        position = match.end()
        groups = match.groupdict()
        if groups["field"] is not None or groups["quoted"] is not None:
            field = groups["field"] if groups["field"] is not None else groups["quoted"]
            path_steps.append(("all", None) if field == "*" else ("field", re.sub(r"\\(.)", r"\1", field)))
        elif groups["index"] is not None:
            path_steps.append(("index", int(groups["index"])))
        elif groups["all"] is not None:
            path_steps.append(("all", None))
        else:
            value = groups["value"].strip("'") if groups["value"].startswith("'") else _literal(groups["value"])
            path_steps.append(("where", (steps(groups["path"]), groups["operator"], value)))
    return tuple(path_steps)


def _literal(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


_COMPARE: Final = {
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b, ">": lambda a, b: a > b,
    "<=": lambda a, b: a <= b, ">=": lambda a, b: a >= b,
}  # fmt: skip


def find(value: Any, path: tuple[_Step, ...]) -> list[Any]:
    """All values at the path."""
    values = [value]
    for kind, what in path:
        values = [item for holder in values for item in _next(holder, kind, what)]
    return values


def _next(holder: Any, kind: str, what: Any) -> list[Any]:
    if kind == "field":
        return [holder[what]] if isinstance(holder, Mapping) and what in holder else []
    if kind == "all" and isinstance(holder, Mapping):
        return list(holder.values())
    if not isinstance(holder, list):
        return []
    if kind == "all":
        return holder
    if kind == "index":
        return [holder[what]] if -len(holder) <= what < len(holder) else []
    path, operator, wanted = what
    return [item for item in holder if _matches(find(item, path), operator, wanted)]


def _matches(values: list[Any], operator: str, wanted: Any) -> bool:
    try:
        return bool(values) and bool(_COMPARE[operator](values[0], wanted))
    except TypeError:
        return False


def cell(column: Mapping[str, Any]) -> Cell:
    """The cell of one column; its value is None if the path has none or if its type is not the column's."""
    convert = _CONVERT.get(str(column.get("type", "")), _nothing)
    try:
        path = steps(str(column.get("jsonPath", "")))
    except JSONPathError:
        return lambda _obj, _now: None

    def show(obj: Object, now: datetime) -> Any:
        values = find(obj, path)
        return convert(values[0], now) if values and values[0] is not None else None

    return show


def _text(value: Any, _now: datetime) -> Any:
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value, order="sorted").decode()


def _integer(value: Any, _now: datetime) -> Any:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _number(value: Any, _now: datetime) -> Any:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _boolean(value: Any, _now: datetime) -> Any:
    return value if isinstance(value, bool) else None


_ZONE: Final = re.compile(r"(?:Z|[+-][0-9]{2}:[0-9]{2})\Z", re.ASCII)


def _date(value: Any, now: datetime) -> Any:
    if not isinstance(value, str):
        return None
    when = moment_of(value) if _ZONE.search(value) else None
    if when is None:
        return "<invalid>"
    return duration((now - when).total_seconds())


def _nothing(_value: Any, _now: datetime) -> Any:
    return None


_CONVERT: Final = {"string": _text, "integer": _integer, "number": _number, "boolean": _boolean, "date": _date}
