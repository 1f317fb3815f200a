"""Pure: the lists and tables of the page. Each says by which command it comes in a terminal, and why it is empty."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from kgpu.base.printable import counted
from kgpu.base.remedy import Remedy
from kgpu.overview.figures import UNKNOWN, age, amount, celsius, memory, percent, watts
from kgpu.overview.markup import NOTHING, Markup, joined, tag
from kgpu.overview.model import (
    CellState,
    GpuCell,
    LabButtons,
    MapScale,
    OverviewPage,
    ShownWaiting,
    ToldFinding,
    ToldIdle,
)
from kgpu.overview.pieces import buttons, command, curve, link, steps, table
from kgpu.top.history import IdleTime, activity
from kgpu.top.rows import TroubleRow

T = TypeVar("T")

MOST: Final = 50
NOT_YET: Final = "Not known yet."
NAMED: Final = 6
"""Nodes that are named where many have the same trouble."""
_NOTE: Final = "note"


def attention(page: OverviewPage) -> Markup:
    """What is broken: nodes that can't be read, GPUs that the doctor has not spoken of yet, and what it says."""
    real = [one for one in page.findings if one.level != _NOTE]
    rows = [*map(_trouble, page.troubles), *(_unwell(cell) for cell in page.unwell), *map(_finding, real)]
    notes = len(page.findings) - len(real)
    lines = [_hidden(page.hidden_findings, "finding", "is", "are")]
    if notes:
        lines.append(
            tag("p", f"{counted(notes, 'note')} that hurt nobody now: ", command("kgpu doctor"), class_="quiet")
        )
    if not rows:
        told = page.gathered.report
        if told.at is None:
            return tag("p", told.trouble or NOT_YET)
        return joined(tag("p", "Nothing is wrong, says ", command("kgpu doctor")), *lines)
    return joined(tag("ol", *rows[:MOST], class_="attention"), _more(rows, "kgpu doctor"), *lines)


def _trouble(row: TroubleRow) -> Markup:
    names = ", ".join(row.nodes[:NAMED]) + (f" and {len(row.nodes) - NAMED} more" if len(row.nodes) > NAMED else "")
    return tag("li", tag("b", "not read "), f"{names}: {row.what}", steps((row.remedy,) if row.remedy else ()))


def _unwell(cell: GpuCell) -> Markup:
    gpu = cell.row.gpu
    place = f"GPU {gpu.index} of {cell.row.node.name}: {gpu.reason or 'unwell'}"
    what = f"; to do: {gpu.action}" if gpu.action else ""
    return tag(
        "li", tag("b", f"{cell.state} "), place + what, steps((Remedy("kgpu doctor node {}", cell.row.node.name),))
    )


def _finding(finding: ToldFinding) -> Markup:
    """A cause with what to do; the proof and what follows from it behind a click."""
    proof = [tag("li", f"{row.object or row.file}: {row.field} {row.value}".strip(": ")) for row in finding.evidence]
    follows = [tag("li", f"{one.subject}: {one.cause}") for one in finding.consequences[:MOST]]
    more = NOTHING
    if proof or follows:
        then = f", and {counted(len(follows), 'thing that follows', 'things that follow')}" if follows else ""
        summary = f"Proof ({finding.id}){then}"
        more = tag(
            "details", tag("summary", summary), tag("ul", *proof, *follows), data_key=finding.id + finding.subject
        )
    wait = f" Goes by itself within {finding.expected}." if finding.level == "wait" and finding.expected else ""
    return tag("li", tag("b", f"{finding.level} "), f"{finding.cause}{wait}", steps(finding.remedy), more)


def waiting(page: OverviewPage) -> Markup:
    """Pods that are not placed or started, with the doctor's cause."""
    told, hidden = page.gathered.waiting, _hidden(page.hidden_waiting, "pod", "waits", "wait")
    if told.at is None:
        return tag("p", told.trouble or NOT_YET)
    trouble = tag("p", told.trouble, class_="trouble") if told.trouble else NOTHING
    if not page.waiting:
        return joined(trouble, tag("p", "No pod waits for GPUs." if not page.hidden_waiting else ""), hidden)
    rows = [_waiting(row, looked=page.gathered.report.at is not None) for row in page.waiting[:MOST]]
    head = ("Pod", "Asks for", "Since", "Why, and what to do")
    return joined(trouble, table("Waiting for GPUs", head, rows), _more(page.waiting, "kgpu doctor"), hidden)


def _waiting(row: ShownWaiting, *, looked: bool) -> Sequence[object]:
    pod = row.pod
    asks = ", ".join(f"{count} {name}" for name, count in pod.asks) or "a claim"
    why: object = "kgpu doctor has not looked at it yet" if not looked else "kgpu doctor says nothing of it"
    remedy: Iterable[str] = (Remedy("kgpu doctor pod {}", pod.path),)
    if row.finding is not None:
        why, remedy = row.finding.cause, row.finding.remedy or remedy
    return pod.path, asks, tag("time", pod.since or UNKNOWN, datetime=pod.since or None), joined(why, steps(remedy))


def idle(page: OverviewPage) -> Markup:
    """What is held and unused, the dearest first."""
    told = page.gathered.idleness
    hidden = NOTHING
    if page.hidden_idle:
        hidden = tag("p", f"{page.hidden_idle:g} GPUs of namespaces that you may not see are unused.", class_="quiet")
    if told.at is None:
        return tag("p", told.trouble or NOT_YET)
    if not page.idle:
        unknown = "; of some nodes it is not known, see below" if told.value.silent else ""
        return joined(tag("p", f"Nothing that is known{unknown}: ", command("kgpu idle")), hidden)
    head = ("Who", "Kind", "State", "GPUs", "Where", "Since", "Wasted", "An hour", "Why nothing is done")
    return joined(table("Held and not used", head, map(_idle, page.idle[:MOST])), _more(page.idle, "kgpu idle"), hidden)


def _idle(row: ToldIdle) -> Sequence[object]:
    since = tag("time", row.since or UNKNOWN, datetime=row.since)
    explain = command(Remedy("kgpu idle explain {}", row.who)) if "/" in row.who else NOTHING
    money = amount(row.wasted, row.currency), amount(row.per_hour, row.currency)
    return row.who, row.kind, row.state, f"{row.gpus:g}", row.where, since, *money, explain


def namespaces(page: OverviewPage) -> Markup:
    """Who holds how much, and who may."""
    if not page.namespaces and not page.gathered.nodes:
        return tag("p", NOT_YET if not page.gathered.found else "No GPUs are known.")
    if not page.namespaces:
        return tag("p", "No namespace holds GPUs, or has a quota of them: ", command("kgpu top --view pods"))
    rows = []
    for row in page.namespaces[:MOST]:
        name: object = "those that you may not see"
        if row.name:
            name = tag("a", row.name, href=link(replace(page.query, namespace=row.name, page=1)))
        pods = UNKNOWN if row.pods is None else row.pods
        rows.append(
            (
                name,
                pods,
                row.held,
                row.busy,
                UNKNOWN if row.limits is None else ", ".join(map(str, row.limits)),
                UNKNOWN if row.idle is None else f"{row.idle:g}",
                amount(row.per_hour, row.currency) if row.per_hour else "",
            )
        )
    shared = tag("p", "A GPU that several share is held by each of them.", class_="quiet")
    head = ("Namespace", "Pods", "GPUs held", "busy", "Quota", "unused for an hour", "which costs an hour")
    return joined(table("Namespaces", head, rows), _more(page.namespaces, "kgpu quota"), shared)


_COLUMNS: Final = (
    ("Node", "natural", "ascending"), ("GPU", "", ""), ("Model", "", ""), ("State", "health", "descending"),
    ("Busy", "utilization", "descending"), ("Lately", "", ""), ("Memory", "memory", "descending"),
    ("Heat", "temperature", "descending"), ("Power", "power", "descending"), ("No work for", "idle", "descending"),
    ("Pods", "user", "ascending"),
)  # fmt: skip


def gpus(page: OverviewPage, lab: LabButtons | None) -> Markup:
    """One page of the table of GPUs."""
    if not page.rows:
        return tag("p", "None: " if page.gathered.found else f"{NOT_YET} ", command("kgpu top"))
    head = [_column(page, *row) for row in _COLUMNS]
    if page.scale is MapScale.CARDS:
        lab = None  # the cards have the buttons
    if lab is not None:
        head.append(tag("th", "Lab", scope="col"))
    return joined(table("Every GPU", head, (_gpu(cell, page, lab) for cell in page.rows)), _pager(page))


def _column(page: OverviewPage, title: str, sort: str, way: str) -> Markup:
    if not sort:
        return tag("th", title, scope="col")
    sorted_by = page.query.sort == sort
    return tag(
        "th", tag("a", title, href=link(replace(page.query, sort=sort, page=1))), scope="col",
        aria_sort=way if sorted_by else None,
    )  # fmt: skip


def _gpu(cell: GpuCell, page: OverviewPage, lab: LabButtons | None) -> Sequence[object]:
    row, gpu, values = cell.row, cell.row.gpu, cell.row.gpu.values
    node = tag("a", row.node.name, href=link(replace(page.query, node=row.node.name, page=1)))
    old = NOTHING
    if cell.state is CellState.STALE:
        read_at = page.gathered.read_at.get(row.node.name)
        old = tag("small", " ", age(None if read_at is None else page.gathered.now - read_at))
    pods = ", ".join(user.name if user.namespace else user.pod for user in gpu.everybody)
    idle_for = ""
    if row.idle is not None and cell.state in {CellState.HELD, CellState.FREE}:
        idle_for = _idle_for(row.idle)
    state = joined(tag("i", class_=f"cell {cell.state} f{cell.fill}", aria_hidden="true"), f" {cell.state}", old)
    cells = (
        node, gpu.index, gpu.name, state, percent(activity(gpu)), curve(row.activity),
        memory(values),
        celsius(values.get("temperature_c")), watts(values.get("power_w")), idle_for, pods,
    )  # fmt: skip
    return (*cells, buttons(cell, page.query, lab)) if lab is not None else cells


def _idle_for(idle: IdleTime) -> str:
    span = age(idle.seconds).removesuffix(" ago")
    if span == "now":
        return "a moment"
    return f"over {span}" if idle.at_least else span


def _pager(page: OverviewPage) -> Markup:
    if page.pages < 2:
        return NOTHING
    now = min(page.query.page, page.pages)
    near = [(name, number) for name, number in (("previous", now - 1), ("next", now + 1)) if 1 <= number <= page.pages]
    links = [tag("a", name, href=link(replace(page.query, page=number)) + "#gpus") for name, number in near]
    return tag("nav", f"Page {now} of {page.pages} ", *links, aria_label="Pages")


def _more(rows: Sequence[T], all_of_them: str) -> Markup:
    left = len(rows) - MOST
    return tag("p", f"and {left} more: ", command(all_of_them)) if left > 0 else NOTHING


def _hidden(count: int, noun: str, one: str, many: str) -> Markup:
    if not count:
        return NOTHING
    words = f"{counted(count, noun)} of namespaces that you may not see {one if count == 1 else many} not named here."
    return tag("p", words, class_="quiet")
