"""Pure: what was gathered in; what one viewer is shown of it out. Read it first.

Nothing is judged here: GPUs are as ``kgpu top`` has them, causes and remedies as ``kgpu doctor``, waste as ``kgpu
idle``. A GPU whose node can't be read is shown as it was, with its age, and is in no sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from kgpu.overview.hardware_errors import found_errors
from kgpu.overview.model import (
    HIDDEN,
    CellState,
    GpuCell,
    HeadTotals,
    KnownCluster,
    MapScale,
    NamespaceLimit,
    NamespaceRow,
    NodeCells,
    OverviewPage,
    OverviewQuery,
    Sees,
    ShownWaiting,
    ToldFinding,
    ToldIdle,
)
from kgpu.overview.rights import hidden_names, may_read, may_see, seen_nodes
from kgpu.top.history import activity
from kgpu.top.model import GpuHealth, GpuNode
from kgpu.top.plan import plan as plan_rows
from kgpu.top.plan import whole
from kgpu.top.rows import Detail, GpuRow, TroubleRow, Wish
from kgpu.top.sorts import natural

ROWS: Final = 50
"""Of the table of GPUs on one page, and of any other list."""
MOST_CARDS: Final = 16
MOST_ROWS: Final = 256
STALE_AFTER: Final = 60.0
"""Seconds without a reading after which what is shown of a node is old, though nothing has failed yet."""
PACES: Final = 2.0
"""Or so many times the seconds that readings of most nodes are apart, where reading them all takes long."""

_BY_HEALTH: Final = {
    GpuHealth.LOST: CellState.LOST,
    GpuHealth.BAD: CellState.BAD,
    GpuHealth.WARN: CellState.WARN,
}
_BROKEN: Final = frozenset({CellState.LOST, CellState.BAD, CellState.WARN})


def shown(gathered: KnownCluster, query: OverviewQuery, sees: Sees, *, rows: int = ROWS) -> OverviewPage:
    """The page for somebody who sees the pods of these namespaces. ``rows``: how many GPUs the table has on a page."""
    nodes = seen_nodes(gathered.nodes, sees)
    ages = {node.name: _stale(node, gathered) for node in nodes}
    spaces = frozenset({query.namespace} - {""})
    wish = Wish(
        detail=Detail.COMPACT, sort=query.sort, words=query.words, nodes=frozenset({query.node} - {""}),
        namespaces=spaces,
    )  # fmt: skip
    screen = plan_rows(nodes, wish, gathered.history, gathered.now)
    cells = {id(row): _cell(row, ages) for row in screen.gpus}
    in_order = sorted(cells.values(), key=lambda cell: (natural(cell.row.node.name), cell.row.gpu.index))
    findings, waiting, idle = _told(gathered, query, sees)
    errors = found_errors(gathered, nodes, query, findings, texts=sees is None)
    pages = max(1, math.ceil(len(screen.gpus) / rows))
    everything = not (query.words or query.node or query.namespace)
    begin = (min(query.page, pages) - 1) * rows
    return OverviewPage(
        query=query,
        totals=replace(
            _totals(in_order, screen.nodes, gathered, everything=everything),
            errors=len(errors.rows) + errors.hidden if everything and _knows_errors(gathered) else None,
        ),
        scale=_scale(len(in_order)),
        pools=_pools(in_order, ages),
        findings=findings,
        hidden_findings=0 if sees is None else len(gathered.report.value.findings) - len(findings),
        troubles=tuple(row for row in screen.rows if isinstance(row, TroubleRow)),
        unwell=tuple(cell for cell in cells.values() if cell.state in _BROKEN and _alone(cell, findings)),
        waiting=waiting,
        hidden_waiting=sum(not may_see(sees, pod.namespace) for pod in gathered.waiting.value),
        idle=idle,
        hidden_idle=sum(row.gpus for row in gathered.idleness.value.idle if not _may_see(row, sees)),
        errors=errors.rows,
        hidden_errors=errors.hidden,
        undated=errors.undated,
        namespaces=_namespaces(
            in_order, idle, spaces, limits=_limits(gathered, query, sees), said=_knows_idle(gathered)
        ),
        rows=tuple(cells[id(row)] for row in screen.gpus[begin : begin + rows]),
        pages=pages,
        gathered=gathered,
    )


def _stale(node: GpuNode, gathered: KnownCluster) -> float | None:
    """For how long the node has not been read; None while that is no matter."""
    read_at = gathered.read_at.get(node.name)
    age = math.inf if read_at is None else max(0.0, gathered.now - read_at)
    return age if node.trouble is not None or age > max(STALE_AFTER, PACES * gathered.pace) else None


def _cell(row: GpuRow, ages: Mapping[str, float | None]) -> GpuCell:
    active = activity(row.gpu)
    # Any activity is to be seen, however little.
    fill = 0 if not active or not math.isfinite(active) else min(4, max(1, math.ceil(active / 25)))
    return GpuCell(row=row, state=_state(row, active, stale=ages[row.node.name] is not None), fill=fill)


def _state(row: GpuRow, active: float | None, *, stale: bool) -> CellState:
    if stale:
        return CellState.STALE
    if row.gpu.health in _BY_HEALTH:
        return _BY_HEALTH[row.gpu.health]
    if active is None:
        return CellState.UNKNOWN
    if active > 0:
        return CellState.BUSY
    return CellState.HELD if row.gpu.everybody or row.gpu.processes else CellState.FREE


def _scale(gpus: int) -> MapScale:
    return MapScale.CARDS if gpus <= MOST_CARDS else MapScale.ROWS if gpus <= MOST_ROWS else MapScale.DENSE


def _pools(cells: Iterable[GpuCell], ages: Mapping[str, float | None]) -> tuple[tuple[str, tuple[NodeCells, ...]], ...]:
    """The nodes by the model of their first GPU."""
    by_node: dict[str, list[GpuCell]] = {}
    for cell in cells:
        by_node.setdefault(cell.row.node.name, []).append(cell)
    pools: dict[str, list[NodeCells]] = {}
    for name, own in by_node.items():
        trouble = own[0].row.node.trouble
        node = NodeCells(name=name, cells=tuple(own), stale=ages[name], trouble=trouble.what if trouble else "")
        pools.setdefault(own[0].row.gpu.name or "GPU", []).append(node)
    return tuple((model, tuple(pools[model])) for model in sorted(pools))


def _knows_idle(gathered: KnownCluster) -> bool:
    """Whether anybody has said what is idle, of some nodes at least: else it is not known, which is not 0."""
    silent = gathered.idleness.value.silent
    return gathered.idleness.at is not None and "*" not in silent and len(silent) < len(gathered.nodes)


def _knows_errors(gathered: KnownCluster) -> bool:
    """Whether anybody but the page itself has said which errors there were."""
    return gathered.events.at is not None or gathered.verdicts.at is not None


def _totals(cells: Sequence[GpuCell], nodes: int, gathered: KnownCluster, *, everything: bool) -> HeadTotals:
    """What is idle is known of the whole cluster alone."""
    fresh = [cell for cell in cells if cell.state is not CellState.STALE]
    idle = gathered.idleness.value.idle
    said = everything and _knows_idle(gathered)
    sums = whole([cell.row.gpu for cell in fresh])
    if any(user.pod == HIDDEN and not user.namespace for cell in fresh for user in cell.row.gpu.everybody):
        sums = replace(sums, pods=0)  # those without a name can't be told apart
    return HeadTotals(
        whole=sums,
        nodes=nodes,
        busy=sum(bool(cell.fill) for cell in fresh),
        free=sum(cell.state is CellState.FREE for cell in fresh),
        stale=len(cells) - len(fresh),
        idle=sum(row.gpus for row in idle) if said else None,
        per_hour=sum(row.per_hour for row in idle) if said else None,
        wasted=sum(row.wasted or 0.0 for row in idle) if said else None,
        currency=next((row.currency for row in idle), ""),
        silent=len(gathered.idleness.value.silent),
    )


def _told(
    gathered: KnownCluster, query: OverviewQuery, sees: Sees
) -> tuple[tuple[ToldFinding, ...], tuple[ShownWaiting, ...], tuple[ToldIdle, ...]]:
    """What the doctor says, who waits and who holds what is idle, as far as it may be told and is asked for."""
    hidden = hidden_names(gathered, sees)
    findings = tuple(one for one in gathered.report.value.findings if may_read(one, sees, hidden))
    by_pod = {path: root for root in reversed(findings) for one in _all(root) for path in one.pods}
    waiting = tuple(
        ShownWaiting(pod=pod, finding=by_pod.get(pod.path))
        for pod in gathered.waiting.value
        if may_see(sees, pod.namespace) and query.namespace in ("", pod.namespace) and _has(query, pod.path)
    )
    idle = tuple(
        row
        for row in gathered.idleness.value.idle
        if _may_see(row, sees)
        and query.namespace in ("", _space(row))
        and _has(query, row.who, row.kind, row.state, row.where)
    )
    return tuple(one for one in findings if _wanted(one, query)), waiting, idle


def _all(finding: ToldFinding) -> Iterable[ToldFinding]:
    """Itself and what is folded under it."""
    yield finding
    for under in finding.consequences:
        yield from _all(under)


def _wanted(finding: ToldFinding, query: OverviewQuery) -> bool:
    if not _has(query, *(text for one in _all(finding) for text in (one.subject, one.cause, *one.nodes, *one.pods))):
        return False
    space = f"{query.namespace}/"
    return (not query.node or _is_about(finding, query.node)) and (
        not query.namespace or any(path.startswith(space) for one in _all(finding) for path in one.pods)
    )


def _has(query: OverviewQuery, *texts: str) -> bool:
    """Whether every word of the filter is somewhere in these."""
    lower = "\n".join(texts).lower()
    return all(word in lower for word in query.words.lower().split())


def _is_about(finding: ToldFinding, node: str) -> bool:
    """Whether it, or what is folded under it, is about a node or hurts it."""
    return any(node in one.nodes or one.subject == f"Node {node}" for one in _all(finding))


def _space(row: ToldIdle) -> str:
    return row.who.partition("/")[0] if "/" in row.who else ""


def _may_see(row: ToldIdle, sees: Sees) -> bool:
    return may_see(sees, _space(row))


def _alone(cell: GpuCell, findings: Iterable[ToldFinding]) -> bool:
    """Whether the doctor has said nothing of the GPU's node yet."""
    return not any(_is_about(root, cell.row.node.name) for root in findings)


def _limits(gathered: KnownCluster, query: OverviewQuery, sees: Sees) -> dict[str, tuple[NamespaceLimit, ...]] | None:
    """What quotas allow, by namespace, where it may be told and is asked for; None where nobody has said."""
    if gathered.limits.at is None:
        return None
    found: dict[str, tuple[NamespaceLimit, ...]] = {}
    for limit in gathered.limits.value:
        if may_see(sees, limit.namespace) and _has(query, limit.namespace, limit.resource):
            found[limit.namespace] = (*found.get(limit.namespace, ()), limit)
    return found


def _namespaces(
    cells: Iterable[GpuCell],
    idle: Iterable[ToldIdle],
    only: frozenset[str],
    *,
    limits: Mapping[str, tuple[NamespaceLimit, ...]] | None,
    said: bool,
) -> tuple[NamespaceRow, ...]:
    """Who holds what now, and who may hold what; GPUs of nodes that can't be read are nobody's. ``said``: whether
    ``idle`` is all there is.
    """
    held: dict[str, set[str]] = {}
    busy: dict[str, set[str]] = {}
    pods: dict[str, set[str]] = {}
    for cell in cells:
        if cell.state is CellState.STALE:
            continue
        for user in cell.row.gpu.everybody:
            held.setdefault(user.namespace, set()).add(cell.row.gpu.uuid)
            pods.setdefault(user.namespace, set()).add(user.pod)
            if cell.fill:
                busy.setdefault(user.namespace, set()).add(cell.row.gpu.uuid)
    unused: dict[str, list[ToldIdle]] = {}
    for row in idle:
        if space := _space(row):
            unused.setdefault(space, []).append(row)
    rows = []
    for name in held.keys() | unused.keys() | (limits or {}).keys():
        own = unused.get(name, ())
        known = said and bool(name)
        rows.append(
            NamespaceRow(
                name=name, pods=len(pods.get(name, ())) if name else None,
                held=len(held.get(name, ())), busy=len(busy.get(name, ())),
                idle=sum(row.gpus for row in own) if known else None,
                per_hour=sum(row.per_hour for row in own) if known else None,
                currency=next((row.currency for row in own), ""),
                limits=limits.get(name, ()) if limits is not None and name else None,
            )
        )  # fmt: skip
    return tuple(sorted((row for row in rows if not only or row.name in only), key=lambda row: (-row.held, row.name)))
