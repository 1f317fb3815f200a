"""What a terminal sends becomes keys, however it is cut up; what each key does."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.top.keys import _NAMES, keys
from kgpu.top.rows import Detail, TableView, Wish
from kgpu.top.sorts import SORTS
from kgpu.top.ui import Ui, at, press
from tests.budget import tries

SENT = [*sorted(_NAMES), "a", "한", "é", "/", "\x03", "\x1b[1;5C", "\x1b[200~"]


@tries(100)
@given(st.lists(st.sampled_from(SENT), max_size=8), st.lists(st.integers(0, 40), max_size=5))
def test_keys_are_the_same_however_they_arrive(sent, cuts) -> None:
    text = "".join(sent)
    whole, rest = keys(text)
    assert rest == ""
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    found: list[str] = []
    for start, end in itertools.pairwise(places):
        more, rest = keys(rest + text[start:end])
        found += more
    assert found == whole


def test_a_lone_escape_is_a_key_when_nothing_follows() -> None:
    assert keys("\x1b") == ([], "\x1b")
    assert keys("\x1b", last=True) == (["esc"], "")


@given(st.text(max_size=20))
def test_no_input_stops_it(text) -> None:
    found, rest = keys(text, last=True)
    assert rest == ""
    ui = Ui(wish=Wish())
    for key in found:
        ui = press(ui, key, rows=10, height=5)


def typed(text: str, ui: Ui | None = None, rows: int = 100, height: int = 10) -> Ui:
    ui = ui or Ui(wish=Wish())
    for key in keys(text, last=True)[0]:
        ui = press(ui, key, rows=rows, height=height)
    return ui


@pytest.mark.parametrize("sort", SORTS.values(), ids=lambda sort: sort.name)
def test_o_and_a_letter_sorts(sort) -> None:
    assert typed(f"o{sort.letter}").wish.sort == sort.name


def test_sorts_views_and_details_by_key() -> None:
    assert typed(".").wish.sort == list(SORTS)[1]
    assert typed(".,").wish.sort == typed("").wish.sort
    assert typed("R").wish.reverse
    assert (typed("2").wish.view, typed("\t\t").wish.view) == (TableView.NODES, TableView.PODS)
    assert (typed("f").wish.detail, typed("fc").wish.detail) == (Detail.FULL, Detail.COMPACT)
    assert typed("oq").quit is False
    assert typed("q").quit
    assert typed("r").refresh
    assert typed("rj").refresh is False


def test_the_filter_counts_while_it_is_typed_and_escape_ends_it() -> None:
    assert typed("/훈련 q").wish.words == "훈련 q"
    assert typed("/ab\x7f").wish.words == "a"
    assert (typed("/ab\r").typed, typed("/ab\r").wish.words) == (None, "ab")
    assert typed("/ab\x1b").wish.words == ""
    assert typed("/ab\r\x1b").wish.words == ""


def test_help_closes_with_any_key() -> None:
    assert typed("h").help
    assert (typed("hj").help, typed("hj").cursor, typed("hq").quit) == (False, 0, True)


@tries(100)
@given(st.lists(st.sampled_from(["up", "down", "pageup", "pagedown", "home", "end"]), max_size=20),
       st.integers(0, 30), st.integers(0, 12))  # fmt: skip
def test_the_cursor_stays_on_a_row_in_sight(pressed, rows, height) -> None:
    ui = Ui(wish=Wish())
    for key in pressed:
        ui = press(ui, key, rows=rows, height=height)
        assert 0 <= ui.cursor <= max(0, rows - 1)
        assert ui.top <= ui.cursor < ui.top + max(1, height)
    shrunk = at(ui, rows=rows // 2, height=height)
    assert shrunk.cursor <= max(0, rows // 2 - 1)
