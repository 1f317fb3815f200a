"""The columns of each view, as rows of a table, and what each kind of row has in them.

A column is dropped where the terminal is too narrow, that with the highest number first; number 0 always stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kgpu.top import cells
from kgpu.top.history import IdleTime, activity, busy
from kgpu.top.model import GpuHealth, GpuUser, ShownGpu
from kgpu.top.rows import GpuRow, NodeTotals, PartRow, PodRow, ProcessRow, Row, TableView, TroubleRow, UserRow, Whole

BAR: Final = 8
CURVE: Final = 12
Cell = tuple[str, str]
"""Text and style."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawingStyle:
    """How things are drawn. Thresholds are percent: from the first on it is moderate, from the second on heavy."""

    ascii_only: bool = False
    busy: tuple[int, int] = (10, 75)
    memory: tuple[int, int] = (10, 80)


@dataclass(frozen=True, slots=True)
class Column:
    """``most`` is its greatest width, 0 for the one that takes what is left."""

    key: str
    head: str
    drop: int = 0
    right: bool = False
    most: int = 40


COLUMNS: Final[Mapping[TableView, tuple[Column, ...]]] = {
    TableView.GPUS: (
        Column("node", "NODE", most=32), Column("gpu", "GPU", right=True), Column("model", "MODEL", 6, most=24),
        Column("busy", "BUSY"), Column("sm", "SM", 7, right=True), Column("curve", "HISTORY", 5),
        Column("bar", "MEM", 9), Column("memory", "GIB", 1, right=True), Column("temp", "TEMP", 4, right=True),
        Column("power", "POWER", 3, right=True), Column("idle", "IDLE", 8, right=True),
        Column("state", "STATE", 2, most=28), Column("who", "USED BY", 1, most=0),
    ),
    TableView.NODES: (
        Column("node", "NODE", most=48), Column("gpu", "GPUS", right=True), Column("used", "USED", 2, right=True),
        Column("busy", "BUSY"), Column("bar", "MEM", 7), Column("memory", "GIB", 1, right=True),
        Column("temp", "TEMP", 4, right=True), Column("power", "POWER", 3, right=True),
        Column("pods", "PODS", 5, right=True), Column("state", "STATE", 1, most=28),
        Column("model", "MODEL", 6, most=0),
    ),
    TableView.PODS: (
        Column("namespace", "NAMESPACE", most=32), Column("pod", "POD", most=56), Column("gpu", "GPUS", right=True),
        Column("busy", "BUSY"), Column("bar", "MEM", 7), Column("memory", "GIB", 1, right=True),
        Column("power", "POWER", 3, right=True), Column("idle", "IDLE", 5, right=True),
        Column("state", "STATE", 4, most=28), Column("model", "MODEL", 6, most=24), Column("node", "NODES", 2, most=0),
    ),
}  # fmt: skip

_STATES: Final[Mapping[GpuHealth, Cell]] = {
    GpuHealth.OK: ("ok", "green"),
    GpuHealth.WARN: ("look", "yellow"),
    GpuHealth.BAD: ("BAD", "bold red"),
    GpuHealth.LOST: ("LOST", "bold red"),
    GpuHealth.UNKNOWN: ("", ""),
}


def row_cells(row: Row, look: DrawingStyle) -> dict[str, Cell]:
    """The cells of a row by column; a TroubleRow has none."""
    match row:
        case GpuRow():
            return _gpu(row, look)
        case PartRow():
            return _part(row, look)
        case UserRow():
            return _user(row.user, row.total_mib, look)
        case ProcessRow():
            return _process(row, look)
        case NodeTotals():
            return _node(row, look)
        case PodRow():
            return _pod(row, look)
        case TroubleRow():
            return {}


def level(percent: float | None, thresholds: tuple[int, int]) -> str:
    """The colour of a percentage."""
    if percent is None:
        return "dim"
    return "red" if percent >= thresholds[1] else "yellow" if percent >= thresholds[0] else "green"


def _busy(percent: float | None, look: DrawingStyle) -> Cell:
    part = None if percent is None else percent / 100
    style = level(percent, look.busy)
    return f"{cells.bar(part, BAR, ascii_only=look.ascii_only)} {cells.percent(percent):>4}", style


def _memory(used: float | None, total: float | None, look: DrawingStyle) -> dict[str, Cell]:
    part = used / total if used is not None and total else None
    style = level(None if part is None else part * 100, look.memory)
    return {
        "bar": (cells.bar(part, BAR, ascii_only=look.ascii_only), style),
        "memory": (cells.of_total(cells.gib(used), cells.gib(total), ""), style),
    }


def _idle(idle: IdleTime | None) -> Cell:
    if idle is None:
        return "", ""
    return (">" if idle.at_least else "") + cells.span(idle.seconds), "yellow" if idle.seconds >= 600 else ""


def _power(used: float | None, limit: float | None) -> Cell:
    return cells.of_total(cells.watts(used), cells.watts(limit), "W"), ""


def state(gpu: ShownGpu, xid_age: float | None = None) -> Cell:
    """The GPU's state, and what to do about it.

    An exporter shows the last Xid for ever. Once health has judged the GPU to be well, the Xid is shown only with its
    age, which is known if it came while kgpu top ran. Where nothing judges, it is shown as the last one.
    """
    word, style = _STATES[gpu.health]
    if gpu.health in {GpuHealth.WARN, GpuHealth.BAD, GpuHealth.LOST}:
        return ": ".join(part for part in (word, gpu.action or gpu.reason) if part), style
    xid = int(gpu.values.get("last_xid", 0))
    if xid > 0 and xid_age is not None:
        return f"{word} xid {xid} {cells.span(xid_age)} ago".strip(), "yellow"
    if xid > 0 and gpu.health is GpuHealth.UNKNOWN:
        return f"last xid {xid}", "yellow"
    return word, style


def who(users: Sequence[GpuUser]) -> str:
    """All users in few words."""
    names = list(dict.fromkeys(user.name for user in users))
    return ", ".join(names[:3]) + (f" +{len(names) - 3}" if len(names) > 3 else "")


def _gpu(row: GpuRow, look: DrawingStyle) -> dict[str, Cell]:
    gpu, values = row.gpu, row.gpu.values
    stale = row.node.trouble is not None
    users = gpu.everybody
    used = who(users) or (f"{len(gpu.processes)} processes" if gpu.processes else "")
    by_column = {
        "node": (row.node.name, "bold"),
        "gpu": (str(gpu.index) if gpu.index >= 0 else "?", "bold"),
        "model": (cells.short_model(gpu.name), ""),
        "busy": _busy(activity(gpu), look),
        "sm": (cells.percent(values.get("sm_percent")), ""),
        "curve": (cells.curve(row.activity, CURVE, ascii_only=look.ascii_only) if row.activity else "", "cyan"),
        **_memory(values.get("memory_used_mib"), values.get("memory_total_mib"), look),
        "temp": (f"{temp:.0f}C" if (temp := values.get("temperature_c")) is not None else "-", ""),
        "power": _power(values.get("power_w"), values.get("power_limit_w")),
        "idle": _idle(row.idle),
        "state": state(gpu, row.xid_age),
        "who": (used, ""),
    }
    return {key: (text, "dim") for key, (text, _) in by_column.items()} if stale else by_column


def _part(row: PartRow, look: DrawingStyle) -> dict[str, Cell]:
    values = row.part.values
    return {
        "gpu": (f"{row.gpu.index}:{row.part.gpu_instance}", "dim"),
        "model": (f"MIG {row.part.profile}".strip(), "dim"),
        "busy": _busy(busy(values), look),
        "sm": (cells.percent(values.get("sm_percent")), ""),
        **_memory(values.get("memory_used_mib"), values.get("memory_total_mib"), look),
        "who": (who(row.part.users), ""),
    }


def _user(user: GpuUser, total: float | None, look: DrawingStyle) -> dict[str, Cell]:
    name = f"{user.name} ({user.container})" if user.container else user.name
    return {**(_memory(user.memory_mib, total, look) if user.memory_mib is not None else {}), "who": (name, "dim")}


def _process(row: ProcessRow, look: DrawingStyle) -> dict[str, Cell]:
    process = row.process
    return {
        "busy": _busy(process.sm_percent, look) if process.sm_percent is not None else ("", ""),
        **(_memory(process.memory_mib, row.total_mib, look) if process.memory_mib is not None else {}),
        "state": (process.kind, "dim"),
        "who": (" ".join(part for part in (str(process.pid), process.user, process.command) if part), "dim"),
    }


def _count(whole: Whole) -> Cell:
    if whole.lost or whole.bad:
        both = ((whole.lost, "LOST"), (whole.bad, "BAD"))
        return ", ".join(f"{count} {word}" for count, word in both if count), "bold red"
    return "ok", "green"


def _node(row: NodeTotals, look: DrawingStyle) -> dict[str, Cell]:
    whole = row.whole
    by_column = {
        "node": (row.node.name, "bold"),
        "gpu": (str(whole.gpus), ""),
        "used": (str(whole.used), ""),
        "busy": _busy(whole.utilization, look),
        **_memory(whole.memory_mib, whole.total_mib, look),
        "temp": (f"{whole.temperature_c:.0f}C" if whole.temperature_c is not None else "-", ""),
        "power": _power(whole.power_w, whole.limit_w),
        "pods": (str(whole.pods), ""),
        "state": ("silent", "dim") if row.node.trouble else _count(whole),
        "model": (", ".join(map(cells.short_model, whole.models)), ""),
    }
    return {key: (text, "dim") for key, (text, _) in by_column.items()} if row.node.trouble else by_column


def _pod(row: PodRow, look: DrawingStyle) -> dict[str, Cell]:
    word, style = _STATES[row.health]
    return {
        "namespace": (row.namespace, "bold"),
        "pod": (row.pod, "bold"),
        "gpu": (f"{row.devices}{' shared' if row.shared else ''}", ""),
        "busy": _busy(row.utilization, look),
        **_memory(row.memory_mib, row.total_mib, look),
        "power": _power(row.power_w, None),
        "idle": _idle(row.idle),
        "state": (word, style),
        "model": (", ".join(map(cells.short_model, row.models)), ""),
        "node": (", ".join(row.nodes) if len(row.nodes) <= 3 else f"{len(row.nodes)} nodes", ""),
    }
