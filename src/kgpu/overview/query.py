"""Pure: the address's query as what is asked for. Whatever it says is only ever a filter, and cut to a bound."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl

from kgpu.base.printable import one_line
from kgpu.overview.model import OverviewQuery
from kgpu.overview.pieces import USUAL_SORT
from kgpu.top.sorts import SORTS

MOST_WORDS: Final = 200
MOST_NAME: Final = 253
MOST_FIELDS: Final = 16
_KEYS: Final = ("q", "node", "ns", "sort", "page")
_OTHERS: Final = ("stamp", "token", "list", "as")
"""Of the page's script, of a link that is opened again, and of a list that is downloaded."""


def parse(text: str) -> OverviewQuery:
    """What the query asks for; what it has that is not understood is told."""
    try:
        pairs = parse_qsl(text, max_num_fields=MOST_FIELDS)
    except ValueError:
        return OverviewQuery(notes=("The address has too many fields: all is shown.",))
    fields = {key: one_line(value) for key, value in pairs}
    notes = [f"The address's {one_line(key, 40)} is not known." for key in fields if key not in (*_KEYS, *_OTHERS)]
    sort = fields.get("sort", USUAL_SORT)
    if sort not in SORTS:
        notes.append(f"There is no order {one_line(sort, 40)}: {', '.join(SORTS)}.")
        sort = USUAL_SORT
    page = fields.get("page", "1")
    if not (page.isascii() and page.isdigit() and 0 < int(page[:9]) == int(page)):
        notes.append("The page is no number.")
        page = "1"
    return OverviewQuery(
        words=one_line(fields.get("q", ""), MOST_WORDS), node=fields.get("node", "")[:MOST_NAME],
        namespace=fields.get("ns", "")[:MOST_NAME], sort=sort, page=int(page), notes=tuple(notes),
    )  # fmt: skip
