"""The answer as text: the table of ways, what each kind of GPU can do, and what to take for a need."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from kgpu.advise.model import GpuKind, Possibility, SharingWay, WayChoice, WayHere
from kgpu.advise.plan import configured
from kgpu.advise.ways import FACTS, SharingNeed
from kgpu.base.printable import counted

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from kgpu.advise.answer import SharingAnswer

MOST_KINDS: Final = 15
MOST_NODES: Final = 3
MOST_NAME: Final = 48
_STYLES: Final = {
    Possibility.IN_USE: "bold green",
    Possibility.YES: "green",
    Possibility.MISSING: "yellow",
    Possibility.UNKNOWN: "yellow",
    Possibility.NO: "red",
}


def as_text(one: SharingAnswer, *, width: int, color: bool = False) -> str:
    """All of it, ``width`` columns wide."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, force_terminal=color, no_color=not color, highlight=False)
    with console.capture() as capture:
        for part in _parts(one):
            console.print(part)
    return "\n".join(line.rstrip() for line in capture.get().rstrip().split("\n"))


def _parts(one: SharingAnswer) -> Iterator[RenderableType]:
    if one.table:
        yield from _table()
    if one.need is not None:
        yield from _need(one.need)
    if one.found is None:
        yield _text(f"Nodes were not looked at: {one.why}", "yellow")
        return
    yield from _cluster(one)
    shown = one.found[:MOST_KINDS]
    for choice in one.choices[:MOST_KINDS]:
        yield from _choice(choice)
    for kind in shown if one.need is None else ():
        yield from _kind(kind)
    if len(one.found) > MOST_KINDS:
        yield _text(f"and {len(one.found) - MOST_KINDS} more kinds; -o json has them all", "dim")


def _text(words: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(words, style=style)


def _table() -> Iterator[RenderableType]:
    """A property, and below it a line for each way: columns for all ways would cut resources' names in any terminal."""
    from rich.padding import Padding
    from rich.table import Table

    for row in FACTS:
        grid = Table.grid(padding=(0, 2, 0, 0))
        for way in SharingWay:
            grid.add_row(_text(way.words), _text(row.of(way)))
        yield _text(row.title, "bold")
        yield Padding(grid, (0, 0, 1, 2))


def _need(need: SharingNeed) -> Iterator[Text]:
    yield _text(f"Need: {need.title} ({need.key})", "bold")
    order = ", else ".join(way.words for way in need.ways)
    yield _text(f"  take {order}")


def _cluster(one: SharingAnswer) -> Iterator[Text]:
    found = one.found or ()
    count = len({node for kind in found for node in kind.nodes})
    nodes = f"{counted(count, 'node')} with NVIDIA GPUs"
    others = f", {one.others} not known to have any" if one.others else ""
    yield _text("")
    yield _text(f"This cluster: Kubernetes {one.kubernetes}, {nodes}{others}", "bold")
    if not found:
        yield _text("  nodes have GPUs by their labels or resources: kgpu doctor says what keeps them")


def _kind(kind: GpuKind) -> Iterator[RenderableType]:
    yield _text("")
    yield _text(heading(kind), "bold")
    now = configured(kind.gpus)
    if now:
        yield _row("now", now)
    yield _ways(kind.ways)
    # Where slices can't be, their sizes would mislead.
    if kind.profiles and kind.of(SharingWay.MIG).state is not Possibility.NO:
        most = ", ".join(f"{count} x {name}" for name, count in kind.profiles)
        yield _row("MIG profiles, the most of each on one GPU", most)


def _choice(choice: WayChoice) -> Iterator[RenderableType]:
    yield _text("")
    yield _text(heading(choice.kind), "bold")
    if choice.way is None:
        yield _row("take", "none of these is there")
    else:
        yield _row("take", f"{choice.way.way.words} ({choice.way.state}): {choice.way.why}")
    for row in choice.passed:
        yield _row("not", f"{row.way.words} ({row.state}): {row.why}")


def _row(lead: str, words: str) -> RenderableType:
    from rich.padding import Padding

    return Padding(_text(f"{lead}: {words}"), (0, 0, 0, 2))


def _ways(rows: Sequence[WayHere]) -> RenderableType:
    from rich.padding import Padding
    from rich.table import Table

    grid = Table.grid(padding=(0, 2, 0, 0))
    for row in rows:
        grid.add_row(_text(row.way.words), _text(str(row.state), _STYLES[row.state]), _text(row.why))
    return Padding(grid, (0, 0, 0, 2))


def heading(kind: GpuKind) -> str:
    """What the GPUs are, how many, and where."""
    gpus = kind.gpus
    count = f"{gpus.count} x " if gpus.count and not gpus.slices else ""
    shown = [name if len(name) <= MOST_NAME else f"{name[: MOST_NAME - 1]}…" for name in kind.nodes[:MOST_NODES]]
    rest = len(kind.nodes) - len(shown)
    each = "on node" if len(kind.nodes) == 1 else f"on each of {len(kind.nodes)} nodes:"
    more = f" and {rest} more" if rest else ""
    beside = ", beside other models" if gpus.beside else ""
    return f"{count}{gpus.product or 'GPUs of an unknown model'} {each} {', '.join(shown)}{more}{beside}"
