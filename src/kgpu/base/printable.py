"""Text from outside, made fit to be shown: in conditions, Events, terminals.

Control characters forge lines and drive terminals, marks of direction turn a sentence round, and half characters can't
be encoded at all. Each becomes the replacement character, so that it is seen that something was there. A number has its
noun in the right form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

_INSTEAD: Final = "\ufffd"  # by its number: its name needs a table of 1 MiB when this is compiled


def printable(text: str) -> str:
    """The text with every character replaced that is none to be seen (``str.isprintable``), line ends among them."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _INSTEAD for char in text)


def one_line(text: str, limit: int | None = None) -> str:
    """The text as one printable line: white space is one blank, and what is longer than ``limit`` characters is cut."""
    line = printable(" ".join(text.split()))
    return line if limit is None or len(line) <= limit else line[: limit - 1] + "…"


def counted(count: int, one: str, many: str = "") -> str:
    """The number and the noun; ``many`` is its plural where an s is not enough."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"


def all_counted(counts: Mapping[str, int]) -> str:
    """Nouns in the plural and how many there are of each, in a row; none of which there are none."""
    return ", ".join(counted(count, many.removesuffix("s")) for many, count in counts.items() if count)


def in_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """A line for each row, cells to the left with two blanks between; all rows have as many cells as the first."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def underscored(name: str) -> str:
    """A product's name as one word, as AMD's programs write it: without parentheses, and underscores for blanks."""
    return name.replace("(", "").replace(")", "").replace(" ", "_")


def last_words(text: str, limit: int) -> str:
    """The end of a log as one printable line of at most ``limit`` characters: whole lines as far as they fit, as why
    a program has ended stands at the end of what it said.
    """
    kept: list[str] = []
    left = limit
    for line in reversed([shown for row in text.splitlines() if (shown := one_line(row))]):
        if kept and len(line) + 3 > left:
            return one_line("… " + " ".join(kept), limit)
        kept.insert(0, line)
        left -= len(line) + 1
    return one_line(" ".join(kept), limit)
