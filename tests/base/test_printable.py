"""What is shown to people has one line and nothing in it that a terminal or an API server takes amiss."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.printable import last_words, one_line, printable

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


@pytest.mark.parametrize(
    ("text", "limit", "shown"),
    [
        ("", 10, ""),
        ("\n \n", 10, ""),
        ("one", 10, "one"),
        ("first\n\nlast  line\n", 20, "first; last line"),
        ("first\nlast", 10, "last"),
        ("first\n" + "x" * 20, 10, "x" * 9 + "…"),
        ("a\r\nb\x1b[0m", 20, "a; b\ufffd[0m"),
    ],
)
def test_the_last_lines_of_a_log_that_fit(text: str, limit: int, shown: str) -> None:
    assert last_words(text, limit) == shown


@given(ANY, st.integers(1, 40))
def test_last_words_fit_and_are_printable(text: str, limit: int) -> None:
    words = last_words(text, limit)
    assert len(words) <= limit
    assert words.isprintable()
