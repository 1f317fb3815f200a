"""What is shown to people has one line and nothing in it that a terminal or an API server takes amiss."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.printable import counted, in_columns, last_words, one_line, printable

ANY = st.text(st.characters(exclude_categories=()))


@given(ANY)
def test_everything_is_printable_and_can_be_encoded(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert len(shown) == len(text)
    assert shown.encode().decode() == shown
    assert printable(shown) == shown
    assert all(new == old for new, old in zip(shown, text, strict=True) if old.isprintable())


@given(ANY, st.integers(1, 40))
def test_a_line_fits(text: str, limit: int) -> None:
    line = one_line(text, limit)
    assert len(line) <= limit
    assert line.isprintable()
    assert line in (one_line(text), one_line(text)[: limit - 1] + "…")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\n\tb  c ", "a b c"),
        ("\x1b[31mred", "\ufffd[31mred"),
        ("a\u202eb", "a\ufffdb"),
        ("a\ud800b", "a\ufffdb"),
        ("nul\0", "nul\ufffd"),
        ("größer 日本 😀", "größer 日本 😀"),
    ],
)
def test_examples(text: str, shown: str) -> None:
    assert one_line(text) == shown


@given(ANY, st.integers(1, 40))
def test_last_words_fit(text: str, limit: int) -> None:
    words = last_words(text, limit)
    assert len(words) <= limit
    assert words.isprintable()
    if len(one_line(text)) <= limit:
        assert words == " ".join(filter(None, map(one_line, text.splitlines())))


@pytest.mark.parametrize(
    ("text", "limit", "shown"),
    [
        ("compiling\n\nno headers\nstopping\n", 22, "… no headers stopping"),
        ("compiling\nno headers", 40, "compiling no headers"),
        ("compiling\nno headers found", 10, "… no head…"),
        ("no headers found", 10, "no header…"),
        ("", 10, ""),
    ],
)
def test_the_end_is_what_is_kept_of_a_log(text: str, limit: int, shown: str) -> None:
    assert last_words(text, limit) == shown


@pytest.mark.parametrize(
    ("count", "words", "said"),
    [
        (0, ("node",), "0 nodes"),
        (1, ("node",), "1 node"),
        (2, ("node",), "2 nodes"),
        (1, ("operation on a node", "operations on nodes"), "1 operation on a node"),
        (3, ("operation on a node", "operations on nodes"), "3 operations on nodes"),
    ],
)
def test_a_number_has_its_noun_in_the_right_form(count: int, words: tuple[str, ...], said: str) -> None:
    assert counted(count, *words) == said


def test_rows_stand_in_columns() -> None:
    assert in_columns([("NAME", "N", "WHAT"), ("a", "100", ""), ("longer", "", "x")]) == [
        "NAME    N    WHAT", "a       100", "longer       x",
    ]  # fmt: skip
    with pytest.raises(ValueError):
        in_columns([("a", "b"), ("c",)])
