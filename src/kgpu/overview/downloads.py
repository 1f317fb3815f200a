"""Pure: the page's lists as CSV and JSON, whole, and by the same filter and rights as on the page.

Numbers are plain, with the unit in the name; what nobody knows is null, and empty in CSV. A text that a spreadsheet
would take for a formula has a quote in front in CSV.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from kgpu.base.printable import one_line
from kgpu.overview.hardware_errors import remedy_of
from kgpu.overview.model import CellState, OverviewPage
from kgpu.top.history import activity

Row: TypeAlias = dict[str, Any]

FORMATS: Final = ("csv", "json")
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def as_text(page: OverviewPage, name: str, form: str) -> bytes:
    """A list in one of ``FORMATS``. Raises KeyError for a list that there is not."""
    columns, rows = LISTS[name]
    found = [dict(zip(columns, row, strict=True)) for row in rows(page)]
    if form == "json":
        return json.dumps({"version": 1, name: found}, ensure_ascii=False, indent=1).encode() + b"\n"
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row.values()] for row in found)
    return out.getvalue().encode()


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        value = "; ".join(map(str, value))
    if not isinstance(value, str):
        return value  # None is empty
    return f"'{value}" if value.startswith(_FORMULA) else value


def _gpus(page: OverviewPage) -> Iterator[tuple[Any, ...]]:
    read_at, now, named = page.gathered.read_at, page.gathered.now, page.gathered.named
    for cell in page.rows:
        node, gpu = cell.row.node, cell.row.gpu
        at = read_at.get(node.name)
        stale = cell.state is CellState.STALE
        uuid = gpu.uuid if named is None or node.name in named else None
        pods = [one_line(user.name if user.namespace else user.pod) for user in gpu.everybody]
        yield (
            node.name, gpu.index, uuid, gpu.name, cell.state.value, None if at is None else round(now - at, 1),
            None if stale else _number(activity(gpu)),
            *(None if stale else _number(gpu.values.get(key)) for key in _READ), pods, gpu.reason or None,
        )  # fmt: skip


_READ: Final = ("memory_used_mib", "memory_total_mib", "temperature_c", "power_w")


def _waiting(page: OverviewPage) -> Iterator[tuple[Any, ...]]:
    for row in page.waiting:
        asks = [f"{count} {name}" for name, count in row.pod.asks]
        found = row.finding
        cause, remedy = (None, []) if found is None else (found.cause, [str(step) for step in found.remedy])
        yield row.pod.namespace, row.pod.name, asks, row.pod.since or None, cause, remedy


def _idle(page: OverviewPage) -> Iterator[tuple[Any, ...]]:
    for row in page.idle:
        numbers = (_number(row.per_hour), _number(row.wasted))
        yield row.who, row.kind, row.state, row.gpus, row.where, row.since, *numbers, row.currency


def _namespaces(page: OverviewPage) -> Iterator[tuple[Any, ...]]:
    for row in page.namespaces:
        cost = (_number(row.idle), _number(row.per_hour), row.currency or None)
        limits = None if row.limits is None else [str(limit) for limit in row.limits]
        yield row.name or None, row.pods, row.held, row.busy, limits, *cost


def _errors(page: OverviewPage) -> Iterator[tuple[Any, ...]]:
    for row in page.errors:
        error, found = row.error, row.finding
        remedy = [str(step) for step in remedy_of(error)]
        yield (
            error.at, error.since or None, error.node, row.place, error.code, row.means or None, error.count,
            list(row.holders), None if found is None else found.id, remedy,
        )  # fmt: skip


def _attention(page: OverviewPage) -> Iterator[tuple[Any, ...]]:
    for row in page.troubles:
        yield "not read", None, ", ".join(row.nodes), row.what, [row.remedy] if row.remedy else []
    for cell in page.unwell:
        place = f"GPU {cell.row.gpu.index} of {cell.row.node.name}"
        yield cell.state.value, None, place, cell.row.gpu.reason or None, [cell.row.gpu.action or ""]
    for one in page.findings:
        yield one.level, one.id, one.subject, one.cause, [str(step) for step in one.remedy]


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


LISTS: Final[Mapping[str, tuple[tuple[str, ...], Callable[[OverviewPage], Iterator[tuple[Any, ...]]]]]] = {
    "attention": (("level", "id", "subject", "cause", "remedy"), _attention),
    "waiting": (("namespace", "pod", "asks", "since", "cause", "remedy"), _waiting),
    "idle": (("who", "kind", "state", "gpus", "where", "since", "per_hour", "wasted", "currency"), _idle),
    "errors": (
        ("last", "first", "node", "gpu", "error", "meaning", "times_told", "pods_now", "finding", "remedy"), _errors,
    ),
    "namespaces": (("namespace", "pods", "held", "busy", "quota", "idle", "per_hour", "currency"), _namespaces),
    "gpus": (
        ("node", "gpu", "uuid", "model", "state", "age_seconds", "busy_percent", *_READ, "pods", "reason"), _gpus,
    ),
}  # fmt: skip
"""The columns of each list, and its rows."""
