"""Pure: the list of hardware errors. It says who was asked for them, and of whom nothing is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from kgpu.base.printable import counted
from kgpu.overview.figures import UNKNOWN
from kgpu.overview.hardware_errors import remedy_of
from kgpu.overview.markup import NOTHING, Markup, joined, tag
from kgpu.overview.model import HardwareError, OverviewPage, ShownError, Told
from kgpu.overview.pieces import command, link, steps, table

MOST: Final = 50
_EVENTS: Final = "kubectl get events -n default --field-selector involvedObject.kind=Node"
_HEAD: Final = ("Last told", "Node", "GPU", "Error", "How often told", "Held now by", "What to do")
_SPAN: Final = (
    "From Events, which a cluster keeps for an hour where it is not told otherwise, from what health reports of "
    "GPUs that are unwell now, and from Xids that came while somebody looked at this page: what was over before may be "
    "missing."
)


def errors(page: OverviewPage) -> Markup:
    """What the hardware did wrong, the newest first."""
    known = page.gathered
    silent = [_silent("Events of nodes", known.events), _silent("health's reports", known.verdicts)]
    lines = [*silent, tag("p", _SPAN, class_="quiet"), _hidden(page.hidden_errors), _undated(page.undated)]
    if not page.errors:
        asked = known.events.at is not None or known.verdicts.at is not None
        nothing = tag("p", "None is known.") if asked and not page.hidden_errors else NOTHING
        return joined(nothing, *lines)
    rows = (_row(row, page) for row in page.errors[:MOST])
    left = len(page.errors) - MOST
    more = tag("p", f"and {left} more: ", command(_EVENTS)) if left > 0 else NOTHING
    return joined(table("Hardware errors", _HEAD, rows), more, *lines)


def _row(row: ShownError, page: OverviewPage) -> Sequence[object]:
    error = row.error
    node = tag("a", error.node, href=link(replace(page.query, node=error.node, page=1)))
    what = joined(tag("b", error.code), f": {row.means}" if row.means else "")
    above = NOTHING if row.finding is None else tag("a", f"{row.finding.id} above", href="#attention")
    todo = joined(above, steps(remedy_of(error)))
    return (
        tag("time", error.at, datetime=error.at), node, row.place or UNKNOWN, what, _often(row),
        ", ".join(row.holders), todo,
    )  # fmt: skip


def _often(row: ShownError) -> Markup:
    count, since = row.error.count, row.error.since
    said = UNKNOWN if count is None else counted(count, "time")
    return joined(said, tag("small", f" since {since}") if since and since != row.error.at else NOTHING)


def _silent(name: str, told: Told[tuple[HardwareError, ...]]) -> Markup:
    """Why nothing is known of a source, or nothing newer."""
    if told.trouble:
        return tag("p", f"Of {name}: {told.trouble}", class_="trouble")
    return tag("p", f"Of {name} nothing is known yet.") if told.at is None else NOTHING


def _hidden(count: int) -> Markup:
    if not count:
        return NOTHING
    words = f"{counted(count, 'error')} of nodes that you may not name {'is' if count == 1 else 'are'} not listed here."
    return tag("p", words, class_="quiet")


def _undated(count: int) -> Markup:
    if not count:
        return NOTHING
    shows = "shows" if count == 1 else "show"
    return tag("p", f"{counted(count, 'GPU')} {shows} an Xid of which nobody says when it came.", class_="quiet")
