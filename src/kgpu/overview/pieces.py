"""Pure: what the parts of the page share: addresses, commands to copy, sections, tables, a curve, a lab's forms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final
from urllib.parse import urlencode

from kgpu.base.remedy import is_command
from kgpu.overview.markup import NOTHING, Markup, joined, tag
from kgpu.overview.model import GpuCell, LabButtons, OverviewQuery

USUAL_SORT: Final = "health"


def link(query: OverviewQuery) -> str:
    """The address of a view, relative, so that it also holds behind a proxy."""
    fields = {
        "q": query.words, "node": query.node, "ns": query.namespace,
        "sort": "" if query.sort == USUAL_SORT else query.sort, "page": "" if query.page == 1 else query.page,
    }  # fmt: skip
    return "./?" + urlencode({key: value for key, value in fields.items() if value}, errors="replace")


def downloads(name: str, query: OverviewQuery) -> Markup:
    """Links to a list as files, by the same filter."""
    rest = link(replace(query, page=1)).removeprefix("./?")
    links = [
        tag("a", form.upper(), href=f"./list?list={name}&as={form}" + (f"&{rest}" if rest else ""),
            download=f"{name}.{form}", aria_label=f"{name} as {form.upper()}")
        for form in ("csv", "json")
    ]  # fmt: skip
    return tag("p", "This list: ", joined(links[0], ", ", links[1]), class_="quiet")


def section(name: str, title: str, *content: object, live: bool = False) -> Markup:
    """A part of the page with its heading; ``live``: a reader is told when it changes."""
    heading = tag("h2", title, id=f"{name}-title", tabindex="-1")
    return tag("section", heading, *content, id=name, aria_labelledby=f"{name}-title", data_polite=live or None)


def command(text: str) -> Markup:
    """A command; a script puts a button beside it that copies it."""
    return tag("code", text, class_="command", tabindex="0")


def steps(remedy: Iterable[str]) -> Markup:
    """What to do: sentences, and commands to copy."""
    found = [tag("li", command(step) if is_command(step) or "\n" in step else step) for step in remedy]
    return tag("ul", *found, class_="steps") if found else NOTHING


def table(name: str, head: Sequence[object], rows: Iterable[Sequence[object]]) -> Markup:
    """A table; the first cell of a row is its heading, and ready heads of columns stay as they are."""
    body = [tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:])) for row in rows]
    columns = (
        cell if isinstance(cell, Markup) and cell.startswith("<th") else tag("th", cell, scope="col") for cell in head
    )
    return tag(
        "div", tag("table", tag("thead", tag("tr", *columns)), tag("tbody", *body)),
        class_="scroll", tabindex="0", role="region", aria_label=f"{name}: table",
    )  # fmt: skip


def curve(percents: Sequence[int]) -> Markup:
    """The last readings, the newest on the right; nothing with less than two."""
    if len(percents) < 2:
        return NOTHING
    heights = [20 - min(100, max(0, value)) // 5 for value in percents]
    turns = [0, *(at for at in range(1, len(heights) - 1) if len({*heights[at - 1 : at + 2]}) > 1), len(heights) - 1]
    points = " ".join(f"{at},{heights[at]}" for at in turns)  # between them it is level
    label = f"the last {len(percents)} readings, from {min(percents)} % to {max(percents)} %"
    return tag(
        "svg", tag("polyline", points=points), viewBox=f"0 -1 {len(percents) - 1} 22", preserveAspectRatio="none",
        role="img", aria_label=label, class_="curve",
    )  # fmt: skip


def buttons(cell: GpuCell, query: OverviewQuery, lab: LabButtons | None) -> Markup:
    """What breaks and repairs a GPU of a lab; nothing elsewhere."""
    if lab is None or cell.row.node.name not in lab.nodes:
        return NOTHING
    place = f"GPU {cell.row.gpu.index} of {cell.row.node.name}"
    fields = {"secret": lab.secret, "node": cell.row.node.name, "gpu": cell.row.gpu.index, "view": link(query)}
    hidden = [tag("input", type="hidden", name=name, value=value) for name, value in fields.items()]
    found = [
        tag("button", label, name="action", value=name, aria_label=f"{label}: {place}") for name, label in lab.actions
    ]
    return tag("form", joined(*hidden), *found, method="post", action="lab", class_="lab")
