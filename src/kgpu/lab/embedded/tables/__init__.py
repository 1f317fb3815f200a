"""Tables for ``kubectl get``: columns and cells as the real printers make them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from kgpu.lab.embedded.kinds import ApiKind
from kgpu.lab.embedded.status import Object
from kgpu.lab.embedded.tables import custom, pods
from kgpu.lab.embedded.tables.rows import DEFAULT, POD_COLUMNS, ROWS
from kgpu.lab.embedded.tables.text import Cell, name

_TYPES: Final = {"#": "integer", "?": "boolean", "@": "date"}
_AGE: Final = ({"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},)


def render(
    kind: ApiKind,
    objects: Sequence[Object],
    *,
    now: datetime,
    printer_columns: Sequence[Mapping[str, Any]] = (),
    include_object: str = "Metadata",
    list_meta: Object | None = None,
    headers: bool = True,
) -> Object:
    """A ``meta.k8s.io/v1`` Table of ``objects``, all of ``kind``; shares parts with them.

    ``now`` has a time zone. ``printer_columns`` are a CRD version's additionalPrinterColumns (none: NAME and AGE);
    ``include_object`` is ``Metadata``, ``Object`` or ``None``; ``list_meta`` the list's metadata, of which
    resourceVersion, continue and remainingItemCount are shown (None: one object's resourceVersion). ``-o wide`` also
    shows columns with a priority above 0. ``headers`` False leaves columnDefinitions out, as in every watch event but
    the first.
    """
    columns, cells = _plan(kind, printer_columns)
    show = _OBJECTS[include_object]
    rows = [_row(kind, obj, cells(obj, now), show) for obj in objects]
    meta = list_meta if list_meta is not None else objects[0].get("metadata", {}) if len(objects) == 1 else {}
    kept = ("resourceVersion", "continue", "remainingItemCount") if list_meta is not None else ("resourceVersion",)
    shown = {key: meta[key] for key in kept if meta.get(key)}
    table: Object = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": shown}
    return {**table, "columnDefinitions": columns if headers else None, "rows": rows}


def _row(kind: ApiKind, obj: Object, cells: list[Any], show: Callable[[Object], Object | None]) -> Object:
    row: Object = {"cells": cells}
    if kind.key == ("", "pods"):
        conditions = pods.CONDITIONS.get(obj.get("status", {}).get("phase", ""))
        if conditions:
            row["conditions"] = conditions
    row["object"] = show(obj)
    return row


def _metadata(obj: Object) -> Object:
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


_OBJECTS: Final[dict[str, Callable[[Object], Object | None]]] = {
    "": _metadata,
    "Metadata": _metadata,
    "Object": lambda obj: obj,
    "None": lambda _obj: None,
}


def _plan(
    kind: ApiKind, printer_columns: Sequence[Mapping[str, Any]]
) -> tuple[list[Object], Callable[[Object, datetime], list[Any]]]:
    if kind.custom:
        columns = printer_columns or _AGE
        return [_column("Name!"), *map(_custom_column, columns)], _all((name, *map(custom.cell, columns)))
    if kind.key == ("", "pods"):
        return _columns(POD_COLUMNS), pods.cells
    row = ROWS.get(kind.key, DEFAULT)
    return _columns(row.columns), _all(row.cells)


def _all(cells: Sequence[Cell]) -> Callable[[Object, datetime], list[Any]]:
    return lambda obj, now: [cell(obj, now) for cell in cells]


@functools.cache
def _columns(text: str) -> list[Object]:
    return [_column(column) for column in text.split(", ")]


def _column(text: str) -> Object:
    wide, text = text.endswith("+"), text.removesuffix("+")
    form, text = ("name", text[:-1]) if text.endswith("!") else ("", text)
    kind = _TYPES.get(text[-1], "string")
    return {
        "name": text if kind == "string" else text[:-1], "type": kind, "format": form, "description": "",
        "priority": int(wide),
    }  # fmt: skip


def _custom_column(column: Mapping[str, Any]) -> Object:
    path = column.get("jsonPath", "")
    return {
        "name": column.get("name", ""),
        "type": column.get("type", ""),
        "format": column.get("format", ""),
        "description": column.get("description") or f"Custom resource definition column (in JSONPath format): {path}",
        "priority": column.get("priority", 0),
    }
