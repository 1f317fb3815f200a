"""Pure: the map, a cell for each GPU: cards where there are a few, rows of nodes, and small cells for thousands.

It comes in parts of some nodes each, so that a change sends little of it again. What a cell shows, its node's label
says in words, and the table of GPUs one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from kgpu.base.printable import counted
from kgpu.overview.figures import age, celsius, memory, percent, watts
from kgpu.overview.markup import NOTHING, Markup, joined, tag
from kgpu.overview.model import CellState, GpuCell, LabButtons, MapScale, NodeCells, OverviewPage
from kgpu.overview.pieces import buttons, curve, link
from kgpu.top.history import activity

NODES: Final = 48
"""How many are one part."""
SAYS: Final = {  # after the state's own word
    CellState.LOST: "can't be read",
    CellState.BAD: "something is to be done",
    CellState.WARN: "works, and somebody should look",
    CellState.BUSY: "filled by how much",
    CellState.HELD: "somebody has it, and it does nothing now",
    CellState.FREE: "nobody holds it",
    CellState.UNKNOWN: "nobody says what it does",
    CellState.STALE: "not read now: as it was",
}


def chunks(page: OverviewPage, lab: LabButtons | None) -> Iterator[Markup]:
    """The parts of the map, the first with the legend; none without GPUs."""
    first = True
    for model, nodes in page.pools:
        for begin in range(0, len(nodes), NODES):
            head = joined(tag("h2", "Map"), _legend(page)) if first else NOTHING
            total = sum(len(node.cells) for node in nodes)
            title = tag("h3", model, " ", tag("small", f"{counted(total, 'GPU')} on {counted(len(nodes), 'node')}"))
            shown = [_node(node, page, lab) for node in nodes[begin : begin + NODES]]
            yield joined(head, NOTHING if begin else title, tag("div", *shown, class_=f"nodes {page.scale}"))
            first = False


def _legend(page: OverviewPage) -> Markup:
    counts = Counter(cell.state for _, nodes in page.pools for node in nodes for cell in node.cells)
    rows = [
        tag("li", tag("i", class_=f"cell {state} f2"), f" {counts[state]} {state} ", tag("small", says))
        for state, says in SAYS.items()
        if counts[state]
    ]
    return tag("ul", *rows, class_="legend")


def _node(node: NodeCells, page: OverviewPage, lab: LabButtons | None) -> Markup:
    counts = Counter(cell.state for cell in node.cells)
    said = ", ".join(f"{counts[state]} {state}" for state in SAYS if counts[state])
    old = "" if node.stale is None else f"not read: figures are of {age(node.stale)}"
    words = f"{node.name}: {counted(len(node.cells), 'GPU')}: {said}" + (f"; {old}" if old else "")
    href = link(replace(page.query, node=node.name, page=1))
    stale = " old" if node.stale is not None else ""
    if page.scale is MapScale.CARDS:
        title = tag("h4", tag("a", node.name, href=href), " ", tag("small", old))
        return tag("div", title, *(_card(cell, page, lab) for cell in node.cells), class_=f"node{stale}")
    small = page.scale is MapScale.DENSE
    cells = tag("span", *(_cell(cell, small=small) for cell in node.cells), class_="cells", aria_hidden="true")
    name = NOTHING if small else tag("span", node.name, tag("small", " ", old) if old else NOTHING, class_="name")
    return tag("a", name, cells, href=href, class_=f"node{stale}", aria_label=words, title=words)


def _cell(cell: GpuCell, *, small: bool) -> Markup:
    if small:
        return Markup(f'<i class="cell {cell.state} f{cell.fill}"></i>')
    gpu = cell.row.gpu
    who = ", ".join(user.name if user.namespace else user.pod for user in gpu.everybody)
    words = f"GPU {gpu.index}: {cell.state}, {percent(activity(gpu))}" + (f", {who}" if who else "")
    return tag("i", class_=f"cell {cell.state} f{cell.fill}", title=words)


def _card(cell: GpuCell, page: OverviewPage, lab: LabButtons | None) -> Markup:
    gpu = cell.row.gpu
    active = activity(gpu)
    values = gpu.values
    bar = NOTHING if active is None else tag("meter", min="0", max="100", value=f"{active:.0f}", aria_label="busy")
    facts = (
        ("busy", joined(bar, " ", percent(active))),
        ("memory", memory(values)),
        ("heat", celsius(values.get("temperature_c"))),
        ("power", watts(values.get("power_w"))),
    )
    why = f"{gpu.reason}: {gpu.action}" if cell.state in {CellState.LOST, CellState.BAD, CellState.WARN} else ""
    pods = [tag("li", user.name if user.namespace else user.pod) for user in gpu.everybody]
    parts = ", ".join(part.profile or "part" for part in gpu.parts)
    return tag(
        "article",
        tag("h5", tag("i", class_=f"cell {cell.state} f{cell.fill}", aria_hidden="true"), f" GPU {gpu.index} ",
            tag("b", cell.state)),
        tag("p", why, class_="alarm") if why else NOTHING,
        tag("dl", *(joined(tag("dt", name), tag("dd", shown)) for name, shown in facts)),
        curve(cell.row.activity),
        tag("p", "MIG: ", parts) if parts else NOTHING,
        tag("ul", *pods) if pods else NOTHING,
        buttons(cell, page.query, lab),
        class_=f"card {cell.state}",
    )  # fmt: skip
