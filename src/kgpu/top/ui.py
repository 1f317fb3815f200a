"""Pure: what a key does. The keys are nvitop's where it has the same; ``/`` filters, as in less and vim."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, TypeVar

from kgpu.top.rows import Detail, TableView, Wish
from kgpu.top.sorts import SORTS

T = TypeVar("T")
MOST_TYPED: Final = 200
_BY_LETTER: Final = {one.letter: name for name, one in SORTS.items()}
_VIEWS: Final = {"1": TableView.GPUS, "2": TableView.NODES, "3": TableView.PODS}
_DETAILS: Final = {"a": Detail.AUTO, "f": Detail.FULL, "c": Detail.COMPACT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ui:
    """Which part of the rows the screen shows.

    ``cursor`` is the row that is marked, ``top`` the first that is seen. ``typed`` is the filter while it is typed,
    else None. ``ordering``: the next key is the letter of a sort.
    """

    wish: Wish
    cursor: int = 0
    top: int = 0
    typed: str | None = None
    ordering: bool = False
    help: bool = False
    quit: bool = False
    refresh: bool = False


def press(ui: Ui, key: str, *, rows: int, height: int) -> Ui:
    """The state after one key, with ``rows`` rows of which ``height`` are seen. Unknown keys change nothing."""
    ui = replace(ui, refresh=False)
    if ui.typed is not None:
        return _typing(ui, key)
    if ui.help:
        return replace(ui, help=False, quit=key in {"q", "ctrl-c"})
    if ui.ordering:
        ui = replace(ui, ordering=False)
        return _wish(ui, sort=_BY_LETTER[key], reverse=False) if key in _BY_LETTER else ui
    moved = _moved(ui.cursor, key, rows, height)
    if moved is not None:
        return at(replace(ui, cursor=moved), rows=rows, height=height)
    return _command(ui, key)


def at(ui: Ui, *, rows: int, height: int) -> Ui:
    """The state with the cursor on an existing row, and that row on the screen."""
    cursor = max(0, min(ui.cursor, rows - 1))
    height = max(1, height)
    top = min(max(ui.top, cursor - height + 1), cursor, max(0, rows - height))
    return replace(ui, cursor=cursor, top=max(0, top))


def _moved(cursor: int, key: str, rows: int, height: int) -> int | None:
    steps = {
        "up": -1, "k": -1, "down": 1, "j": 1, "pageup": -height, "[": -height, "pagedown": height, "]": height,
        "home": -rows, "^": -rows, "g": -rows, "end": rows, "$": rows, "G": rows,
    }  # fmt: skip
    return None if key not in steps else max(0, min(rows - 1, cursor + steps[key]))


def _command(ui: Ui, key: str) -> Ui:
    wish = ui.wish
    if key in _VIEWS:
        return _wish(ui, view=_VIEWS[key])
    if key in _DETAILS:
        return _wish(ui, detail=_DETAILS[key])
    if key in {"tab", "shift-tab"}:
        return _wish(ui, view=_next(list(TableView), wish.view, -1 if key == "shift-tab" else 1))
    if key in {",", "<", ".", ">"}:
        return _wish(ui, sort=_next(list(SORTS), wish.sort, -1 if key in {",", "<"} else 1), reverse=False)
    match key:
        case "q" | "ctrl-c" | "ctrl-d":
            return replace(ui, quit=True)
        case "o":
            return replace(ui, ordering=True)
        case "R":
            return _wish(ui, reverse=not wish.reverse)
        case "r" | "f5" | "ctrl-r":
            return replace(ui, refresh=True)
        case "/":
            return replace(ui, typed=wish.words)
        case "esc":
            return _wish(ui, words="")
        case "h" | "?":
            return replace(ui, help=True)
    return ui


def _typing(ui: Ui, key: str) -> Ui:
    """The filter counts while it is typed, so that its effect is seen."""
    typed = ui.typed or ""
    match key:
        case "enter":
            return replace(ui, typed=None)
        case "esc" | "ctrl-c":
            return _wish(replace(ui, typed=None), words="")
        case "backspace":
            typed = typed[:-1]
        case "ctrl-u":
            typed = ""
        case _ if len(key) == 1 and key.isprintable():
            typed = (typed + key)[:MOST_TYPED]
        case _:
            return ui
    return _wish(replace(ui, typed=typed), words=typed)


def _wish(ui: Ui, **changes: object) -> Ui:
    return replace(ui, wish=replace(ui.wish, **changes), cursor=0, top=0)  # type: ignore[arg-type]


def _next(names: list[T], now: T, step: int) -> T:
    return names[(names.index(now) + step) % len(names)]


HELP: Final[tuple[tuple[str, str], ...]] = (
    ("1 2 3, Tab", "GPUs, nodes, pods"),
    ("/ Esc", "filter by words: node, namespace, pod, model, uuid, state; show all again"),
    ("o and a letter", ", ".join(f"{one.letter} {one.help}" for one in SORTS.values())),
    (", . R", "the sort before, the next one, the other way round"),
    ("a f c", "under a GPU: what is shared or cut up; everybody; nothing"),
    ("arrows j k [ ] g G", "move; PgUp, PgDn, Home and End too"),
    ("r F5", "read everything now"),
    ("h ?", "this help"),
    ("q Ctrl-C", "end"),
)
