"""Pure: nodes as last read in; the rows of one view out, filtered and sorted, and the totals.

Three views: GPUs (with MIG instances, users and processes under each), nodes, pods. Nodes that can't be read are shown
in every view, those with the same trouble together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from kgpu.top.history import GpuHistory, activity
from kgpu.top.model import GpuHealth, GpuNode, NodeTrouble, ShownGpu
from kgpu.top.pods import pod_rows
from kgpu.top.rows import (
    Detail,
    GpuRow,
    NodeTotals,
    PartRow,
    ProcessRow,
    Row,
    Screen,
    TableView,
    TroubleRow,
    UserRow,
    Whole,
    Wish,
)
from kgpu.top.sorts import SORTS, natural


def plan(nodes: Iterable[GpuNode], wish: Wish, history: GpuHistory, now: float) -> Screen:
    """The rows of the wished view; ``now`` is of the history's clock."""
    shown = [node for node in nodes if not wish.nodes or node.name in wish.nodes]
    shown.sort(key=lambda node: natural(node.name))
    words = wish.words.lower().split()
    rows = [
        GpuRow(
            node=node,
            gpu=gpu,
            idle=history.idle(gpu.uuid, now),
            activity=history.activity(gpu.uuid),
            xid_age=history.xid_age(gpu.uuid, now),
        )
        for node in shown
        for gpu in node.gpus
        if _wanted(node, gpu, words, wish.namespaces)
    ]
    rows = _sorted(rows, wish)
    silent = [node for node in shown if node.trouble and (not words or _has(words, node.name, node.trouble.what))]
    troubles = _troubles((node.name, node.trouble) for node in silent if node.trouble)
    troubles += _troubles((node.name, node.remark) for node in shown if node.remark and not node.trouble)
    make = {TableView.GPUS: _gpu_rows, TableView.NODES: _node_rows, TableView.PODS: pod_rows}[wish.view]
    return Screen(
        rows=(*troubles, *make(rows, wish)),
        whole=whole([row.gpu for row in rows]),
        nodes=len(shown),
        silent=sum(node.trouble is not None for node in shown),
        unread=sum(node.devices for node in shown if node.trouble is not None and not node.gpus),
        # The history is of all GPUs, so it does not fit a filtered view.
        history=() if words or wish.namespaces else tuple(history.whole),
        gpus=tuple(rows),
    )


def whole(gpus: Sequence[ShownGpu]) -> Whole:
    """The totals of these GPUs."""
    busy = [percent for gpu in gpus if (percent := activity(gpu)) is not None]
    return Whole(
        gpus=len(gpus),
        used=sum(bool(gpu.everybody or gpu.processes) for gpu in gpus),
        bad=sum(gpu.health is GpuHealth.BAD for gpu in gpus),
        lost=sum(gpu.health is GpuHealth.LOST for gpu in gpus),
        pods=len({user.name for gpu in gpus for user in gpu.everybody}),
        utilization=sum(busy) / len(busy) if busy else None,
        memory_mib=_sum(gpus, "memory_used_mib"),
        total_mib=_sum(gpus, "memory_total_mib"),
        power_w=_sum(gpus, "power_w"),
        limit_w=_sum(gpus, "power_limit_w"),
        temperature_c=max((gpu.values["temperature_c"] for gpu in gpus if "temperature_c" in gpu.values), default=None),
        models=tuple(sorted({gpu.name for gpu in gpus if gpu.name})),
    )


def _sum(gpus: Iterable[ShownGpu], name: str) -> float | None:
    values = [gpu.values[name] for gpu in gpus if name in gpu.values]
    return sum(values) if values else None


def _sorted(rows: list[GpuRow], wish: Wish) -> list[GpuRow]:
    """GPUs come in by node and number, which stays the order among equals."""
    sort = SORTS[wish.sort]
    if wish.sort != "natural" or wish.reverse:
        rows.sort(key=sort.key, reverse=sort.largest != wish.reverse)  # type: ignore[arg-type]
    return rows


def _wanted(node: GpuNode, gpu: ShownGpu, words: Sequence[str], namespaces: frozenset[str]) -> bool:
    if namespaces and not any(user.namespace in namespaces for user in gpu.everybody):
        return False
    if not words:
        return True
    users = (text for user in gpu.everybody for text in (user.name, user.container))
    commands = (text for process in gpu.processes for text in (process.command, process.user, str(process.pid)))
    state = (gpu.health.value, gpu.action, gpu.reason)
    return _has(words, node.name, gpu.name, gpu.uuid, *state, *users, *commands, *(part.profile for part in gpu.parts))


def _has(words: Iterable[str], *texts: str) -> bool:
    """Whether every word occurs in one of the texts."""
    lower = "\n".join(texts).lower()
    return all(word in lower for word in words)


def _troubles(nodes: Iterable[tuple[str, NodeTrouble]]) -> list[TroubleRow]:
    """Those with the same trouble are one row; the one that most nodes have comes first."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, trouble in nodes:
        groups.setdefault((trouble.what, trouble.remedy), []).append(name)
    rows = [
        TroubleRow(nodes=tuple(sorted(names, key=natural)), what=what, remedy=remedy)
        for (what, remedy), names in groups.items()
    ]
    return sorted(rows, key=lambda row: (-len(row.nodes), row.nodes))


def _gpu_rows(gpu_rows: Iterable[GpuRow], wish: Wish) -> list[Row]:
    rows: list[Row] = []
    for row in gpu_rows:
        rows.append(row)
        if wish.detail is not Detail.COMPACT:
            rows += _under(row.gpu, full=wish.detail is Detail.FULL)
    return rows


def _under(gpu: ShownGpu, *, full: bool) -> list[Row]:
    total = gpu.values.get("memory_total_mib")
    rows: list[Row] = []
    if full or len(gpu.users) > 1:
        rows += [UserRow(user=user, total_mib=total) for user in gpu.users]
    for part in gpu.parts:
        rows.append(PartRow(gpu=gpu, part=part))
        if full or len(part.users) > 1:
            rows += [UserRow(user=user, total_mib=part.values.get("memory_total_mib")) for user in part.users]
    rows += [ProcessRow(process=process, total_mib=total) for process in gpu.processes]
    return rows


def _node_rows(gpu_rows: Iterable[GpuRow], wish: Wish) -> list[Row]:
    """Rows of nodes in the order of their first sorted GPU; by a sum where that says more."""
    groups: dict[str, list[GpuRow]] = {}
    for row in gpu_rows:
        groups.setdefault(row.node.name, []).append(row)
    rows = [NodeTotals(node=rows[0].node, whole=whole([row.gpu for row in rows])) for rows in groups.values()]
    key = _NODE_KEYS.get(wish.sort)
    if key is not None:
        rows.sort(key=key, reverse=not wish.reverse)
    return list(rows)


_NODE_KEYS: Final[Mapping[str, Callable[[NodeTotals], float]]] = {
    "utilization": lambda row: -1.0 if row.whole.utilization is None else row.whole.utilization,
    "memory": lambda row: row.whole.memory_mib or 0.0,
    "power": lambda row: row.whole.power_w or 0.0,
}
