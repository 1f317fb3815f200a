"""The table of ``kgpu status``: nodes of every vendor, whoever offers their devices, those that look alike as one row.

Nodes that kgpu's operator runs have a cell for each operand. Of the others there is one, how their devices are, and
the column ``agent``, which says what of kgpu is on them. A column that no node has anything for is left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from kgpu.cli._status_vendors import VendorNode, shown_devices
from kgpu.formats.operands import BY_NAME
from kgpu.hw.vendor import vendors

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from kgpu.operator.overview import NodeOverview, Overview

MOST_ROWS: Final = 15
MOST_NAME: Final = 48
JUDGE: Final = "health"
_GOOD: Final = "ok"
_OFF: Final = "-"
# How a cell looks.
_CELLS: Final = {
    "works": (_GOOD, "green"),
    "fails": ("FAIL", "bold red"),
    "waits": ("wait", "yellow"),
    "off": (_OFF, "dim"),
}
_STYLES: Final = dict(_CELLS.values())
_BAD: Final = ("ILL", "FAIL", "wait")
"""The last words of cells that are not as they should be, the worst first."""


Column: TypeAlias = "tuple[bool, Callable[[StatusRow], str | Text]]"
"""Whether long cells are folded, and what is in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusRow:
    """What the table says of one node's devices of one vendor. ``cells`` are words by operand, ``state`` follows the
    name; ``agent`` is what of kgpu is there without an operator.
    """

    name: str
    vendor: str
    devices: str
    product: str
    driver: str
    source: str = ""
    cuda: str = ""
    cells: dict[str, str] = field(default_factory=dict)
    agent: str = ""
    ready: bool = True
    state: str = ""


def node_rows(overview: Overview, others: Iterable[VendorNode]) -> list[StatusRow]:
    """A row for each vendor on each node."""
    beside = {(node.name, node.vendor): node for node in others}
    rows = [_operated(node, beside.pop((node.name, node.vendor), None)) for node in overview.nodes]
    return [*rows, *map(_alone, beside.values())]


def _operated(node: NodeOverview, seen: VendorNode | None) -> StatusRow:
    """A row of a node that the operator knows, and what else is ``seen`` there."""
    cells = {name: _word(node, name, state) for name, state in node.operands.items()}
    alone = seen if seen is not None and not cells else None  # no policy is in force
    amounts = {name: (one.allocatable, one.capacity) for name, one in node.resources.items()}
    return StatusRow(
        name=node.name,
        vendor=vendors()[node.vendor].title,
        devices=seen.devices if seen is not None and seen.claims else shown_devices(node.vendor, amounts),
        product=node.product or (seen.product if seen else ""),
        driver=node.driver or (seen.driver if seen else ""),
        source=node.driver_source,
        cuda=node.cuda,
        cells=cells or ({JUDGE: alone.health} if alone else {}),
        agent=alone.agent if alone else "",
        ready=node.ready,
        state=("" if node.ready else " (not Ready)") + (" (opted out)" if node.opted_out else ""),
    )


def _alone(node: VendorNode) -> StatusRow:
    return StatusRow(
        name=node.name,
        vendor=node.title,
        devices=node.devices,
        product=node.product,
        driver=node.driver,
        cuda=node.cuda,
        cells={JUDGE: node.health},
        agent=node.agent,
        ready=node.ready,
        state="" if node.ready else " (not Ready)",
    )


def _word(node: NodeOverview, operand: str, state: str) -> str:
    """How an operand is on a node; where the one that judges devices works, what it says of them."""
    if operand == JUDGE and state == "works" and node.gpus_bad:
        return f"{node.gpus_bad} ILL"
    if operand == JUDGE and state == "works" and node.gpus_to_look_at:
        return f"{node.gpus_to_look_at} look"
    return _CELLS[state][0]


def node_table(rows: Sequence[StatusRow], operands: Iterable[str], *, narrow: bool = False) -> Table:
    """A column for each of these operands that a node has; ``narrow``: one for all, which names those that do not
    work, and none for a vendor that all have.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    columns = _columns(rows, operands, narrow=narrow)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for head, (folds, _) in {"node": (True, None), **columns}.items():
        table.add_column(head, overflow="fold", no_wrap=not folds)
    groups = _alike(rows)
    for names, row in groups[:MOST_ROWS]:
        name = short(names[0]) + (f" (+{len(names) - 1} alike)" if len(names) > 1 else "") + row.state
        cells = (cell(row) for _, cell in columns.values())  # a node's own words are no markup
        table.add_row(
            Text(name, style="" if row.ready else "red"), *(Text(one) if isinstance(one, str) else one for one in cells)
        )
    if len(groups) > MOST_ROWS:
        table.caption = f"and {sum(len(names) for names, _ in groups[MOST_ROWS:])} more nodes"
    return table


def _columns(rows: Sequence[StatusRow], operands: Iterable[str], *, narrow: bool) -> dict[str, Column]:
    """Those after the node's name, by head."""
    heads = {name: BY_NAME[name].heading or name for name in operands if any(name in row.cells for row in rows)}
    narrow = narrow and len(heads) > 1
    columns: dict[str, Column] = {}
    if not narrow or len({row.vendor for row in rows}) > 1:
        columns["vendor"] = (True, lambda row: row.vendor)
    columns |= {
        "devices": (True, lambda row: row.devices),
        "product": (True, lambda row: row.product or _OFF),
        "driver": (True, lambda row: _driver(row, narrow=narrow)),
    }
    if not narrow and any(row.cuda for row in rows):
        columns["CUDA"] = (True, lambda row: row.cuda or _OFF)
    if narrow:
        columns["operands"] = (True, lambda row: _in_short(row, heads))
    else:
        columns |= {head: (False, partial(_cell, operand=name)) for name, head in heads.items()}
    if any(row.agent for row in rows):
        columns["agent"] = (True, lambda row: row.agent or _OFF)
    return columns


def _driver(row: StatusRow, *, narrow: bool) -> str:
    return f"{row.driver} ({row.source})" if row.source and not narrow else row.driver or _OFF


def _cell(row: StatusRow, *, operand: str) -> Text:
    from rich.text import Text

    word = row.cells.get(operand, _OFF)
    return Text(word, style=_STYLES.get(word, "yellow" if word.endswith("look") else "bold red"))


def _in_short(row: StatusRow, heads: Mapping[str, str]) -> Text:
    """``validated FAIL, health 1 ILL, 6 ok``."""
    from rich.text import Text

    words = {head: _cell(row, operand=name) for name, head in heads.items()}
    parts = [Text(f"{head} ").append_text(word) for head, word in words.items() if word.plain not in (_GOOD, _OFF)]
    works = sum(word.plain == _GOOD for word in words.values())
    if works:
        parts.append(Text(f"{'all ' if not parts else ''}{works} ok", style="green"))
    return Text(", ").join(parts or [Text(_OFF, style="dim")])


def _alike(rows: Iterable[StatusRow]) -> list[tuple[list[str], StatusRow]]:
    """Nodes that look the same but for their names, the worst first."""
    import msgspec

    groups: dict[bytes, tuple[list[str], StatusRow]] = {}
    for row in rows:
        key = msgspec.json.encode(dataclasses.replace(row, name=""), order="sorted")
        groups.setdefault(key, ([], row))[0].append(row.name)
    return sorted(groups.values(), key=lambda group: (_worst(group[1]), group[0]))


def _worst(row: StatusRow) -> int:
    ends = {word.rpartition(" ")[2] for word in row.cells.values()}
    return next((place for place, word in enumerate(_BAD) if word in ends), len(_BAD))


def short(name: str) -> str:
    """A Node's name may have 253 characters; the end is what tells machines of one make apart."""
    return name if len(name) <= MOST_NAME else f"{name[: MOST_NAME // 2]}…{name[-(MOST_NAME // 2 - 1) :]}"
