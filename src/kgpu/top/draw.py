"""Pure: a screen's rows as lines for a terminal of a given size; only the rows that are seen cost anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.text import Text

from kgpu.base.errors import to_do
from kgpu.base.printable import counted
from kgpu.top import cells
from kgpu.top.columns import COLUMNS, Cell, Column, DrawingStyle, level, row_cells
from kgpu.top.rows import GpuRow, Row, Screen, TableView, TroubleRow

GAP: Final = 2
LEAST: Final = 6
"""Cells that a column which is not dropped keeps, if it has so many."""
MOST_NAMES: Final = 3


def table(
    rows: Sequence[Row], view: TableView, width: int, look: DrawingStyle, *, marked: int = -1, cut_troubles: bool = True
) -> list[Text]:
    """A head and a line per row, none wider than ``width`` cells; ``marked`` is the place of the cursor's row.

    Without ``cut_troubles`` they are as long as what is to be said.
    """
    cell_rows = [row_cells(row, look) for row in rows]
    _name_once(rows, cell_rows)
    columns = COLUMNS[view]
    widths = _widths(columns, cell_rows, width)
    shown = [column for column in columns if column.key in widths]
    heads = {column.key: (column.head, "bold reverse") for column in shown}
    lines = [_line(shown, widths, heads, width, "bold reverse")]
    for place, (row, line_cells) in enumerate(zip(rows, cell_rows, strict=True)):
        line = (
            _trouble(row, width if cut_troubles else 0)
            if isinstance(row, TroubleRow)
            else _line(shown, widths, line_cells, width)
        )
        if place == marked:
            line.stylize("reverse")
        lines.append(line)
    return lines


def _name_once(rows: Sequence[Row], cell_rows: Sequence[dict[str, Cell]]) -> None:
    """Leave a node's name only in the first of its GPU rows that are shown."""
    last = ""
    for row, line_cells in zip(rows, cell_rows, strict=True):
        if isinstance(row, GpuRow):
            if row.node.name == last:
                line_cells["node"] = ("", "")
            last = row.node.name


def _widths(columns: Sequence[Column], cell_rows: Sequence[dict[str, Cell]], width: int) -> dict[str, int]:
    """The width of each column in cells, without columns that are dropped or empty in all rows."""
    fitted: dict[str, int] = {}
    for column in columns:
        texts = [row[column.key][0] for row in cell_rows if column.key in row]
        # A column in which nothing is known only takes room.
        longest = max((cells.width_of(text) for text in texts if text != "-"), default=0)
        if longest or column.drop == 0:
            longest = max(longest, cells.width_of(column.head))
            fitted[column.key] = min(longest, column.most) if column.most else longest
    rest = next((column for column in columns if column.most == 0), None)
    droppable = sorted((column for column in columns if column.drop), key=lambda column: -column.drop)
    least = dict(fitted)
    if rest is not None and rest.key in fitted:
        least[rest.key] = min(fitted[rest.key], 16)
    for column in droppable:
        if _total(least) <= width:
            break
        fitted.pop(column.key, None)
        least.pop(column.key, None)
    while _total(fitted) > width:
        widest = max(fitted, key=lambda key: fitted[key])
        if fitted[widest] <= LEAST:
            break
        fitted[widest] -= min(fitted[widest] - LEAST, _total(fitted) - width)
    return fitted


def _total(widths: dict[str, int]) -> int:
    return sum(widths.values()) + GAP * max(0, len(widths) - 1)


def _line(
    columns: Sequence[Column], widths: dict[str, int], line_cells: dict[str, Cell], width: int, gap_style: str = ""
) -> Text:
    line = Text(no_wrap=True)
    left = width
    for place, column in enumerate(columns):
        text, style = line_cells.get(column.key, ("", ""))
        gap = GAP if place else 0
        room = min(widths[column.key], left - gap)
        if room <= 0:
            break
        line.append(" " * gap, gap_style)
        line.append(cells.fit(text, room, right=column.right), style)
        left -= gap + room
    if not gap_style:
        line.rstrip()
    return line


def _trouble(row: TroubleRow, width: int) -> Text:
    """The line of a trouble; of any length with ``width`` 0."""
    more = f" (+{len(row.nodes) - MOST_NAMES} more)" if len(row.nodes) > MOST_NAMES else ""
    names = ", ".join(row.nodes[:MOST_NAMES]) + more
    line = Text(no_wrap=True)
    line.append("! ", "bold yellow")
    line.append(to_do(f"{names}: {row.what}", row.remedy), "yellow")
    if width:
        line.truncate(width, overflow="ellipsis")
    return line


def summary(screen: Screen, width: int, look: DrawingStyle, *, clock: str = "") -> list[Text]:
    """Two lines about the whole."""
    whole = screen.whole
    parts = [counted(screen.nodes, "node")]
    if screen.silent:
        parts[0] += f" ({screen.silent} silent)"
    if whole.gpus or not screen.unread:
        parts.append(f"{counted(whole.gpus, 'GPU')}, {whole.used} in use")
    if screen.unread:
        parts.append(f"{counted(screen.unread, 'device')} not read")
    parts += [f"{count} {word}" for count, word in ((whole.lost, "lost"), (whole.bad, "to see to")) if count]
    parts.append(counted(whole.pods, "pod"))
    title = f"kgpu top  {'  '.join(parts)}"
    gap = width - cells.width_of(title) - cells.width_of(clock)
    first = Text(cells.fit(f"{title}{' ' * gap}{clock}" if gap > 1 else title, width), "bold", no_wrap=True)
    second = Text(no_wrap=True)
    for text, style in _sums(screen, look):
        second.append(text, style)
    second.truncate(width)
    return [first, second]


def _sums(screen: Screen, look: DrawingStyle) -> list[Cell]:
    whole, size = screen.whole, 10
    busy = None if whole.utilization is None else whole.utilization / 100
    part = whole.memory_mib / whole.total_mib if whole.memory_mib is not None and whole.total_mib else None
    memory = cells.of_total(cells.gib(whole.memory_mib), cells.gib(whole.total_mib), " GiB")
    power = cells.of_total(cells.watts(whole.power_w), cells.watts(whole.limit_w), "W")
    return [
        ("busy ", ""),
        (f"{cells.bar(busy, size, ascii_only=look.ascii_only)} {cells.percent(whole.utilization)}",
         level(whole.utilization, look.busy)),
        (f" {cells.curve(screen.history, 20, ascii_only=look.ascii_only)}" if screen.history else "", "cyan"),
        ("  memory ", ""),
        (f"{cells.bar(part, size, ascii_only=look.ascii_only)} {memory}",
         level(None if part is None else part * 100, look.memory)),
        (f"  power {power}", ""),
    ]  # fmt: skip
