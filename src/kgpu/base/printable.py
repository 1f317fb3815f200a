"""Text from outside, made fit to be shown: in conditions, Events, terminals.

Control characters forge lines and drive terminals, marks of direction turn a sentence round, and half characters can't
be encoded at all. Each becomes the replacement character, so that it is seen that something was there.
"""

from __future__ import annotations

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


def last_words(text: str, limit: int) -> str:
    """The last lines of a log that fit into ``limit`` characters, as one line: why a program ends is said last."""
    found = ""
    for line in reversed(text.splitlines()):
        words = one_line(line)
        more = f"{words}; {found}" if words and found else words or found
        if len(more) > limit:
            return found or one_line(words, limit)
        found = more
    return found
