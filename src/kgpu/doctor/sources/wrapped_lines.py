"""Lines of a kernel's log that a terminal or a log shipper has broken, whole again.

A line of such a log begins with its time, or with the module that says it. One that does not, and follows a line that
has no room for its first word, is the rest of that line. The column at which lines were broken is the length of the
longest line that begins so: what was broken there fills it, or fills it up to the word that did not fit. Where no line
has a time, the rest of one that itself begins like a module's line stays alone.
"""

from __future__ import annotations

import re
from typing import Final

_TIMED: Final = re.compile(
    r"(?:<\d{1,3}>|[a-z]{1,8} {0,4}: ?[a-z]{1,8} {0,4}: )?"
    r"\[ *(?:\d{1,12}\.\d{1,9}|\+\d{1,9}\.\d{1,9}|[A-Z][a-z]{2} ?[A-Z\d][^\]]{0,30})\]"
    r"|\d{1,4},\d{1,18},\d{1,18},[^;]{0,40};"
    r"|(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\d[T ]\d\d:\d\d)"
    r"|-- "
)
"""How lines begin in dmesg (with -T, -H and -x too), in /dev/kmsg and in the journal, where ``-- Boot`` stands between
boots.
"""
_BARE: Final = re.compile(r"[A-Za-z][\w.-]{0,40}(?: [\w.:-]{1,24})?: ")
"""How they begin where nobody has written the time: with a module, and perhaps its device."""
_OTHER: Final = re.compile(r"\s*$|[+|=_*-]{2}|\| |\S*[#$](?: |$)")
"""What is no rest of a line: tables, rules between sections, a shell's prompt."""
_LEAST: Final = 40
"""Nobody's terminal is narrower."""
_LONGEST_WORD: Final = 40


def joined(text: str) -> str:
    """The text with each broken line of a kernel's log in one; all else as it was."""
    lines = text.splitlines()
    begins = _TIMED if any(_TIMED.match(line) for line in lines) else _BARE
    heads = [begins.match(line) is not None for line in lines]
    column = max((len(line) for line, head in zip(lines, heads, strict=True) if head), default=0)
    rests = _rests(lines, heads, column)
    if not rests:
        return text
    between_words = _is_between_words(lines, rests, column)
    whole: list[str] = []
    for at, line in enumerate(lines):
        if at not in rests:
            whole.append(line)
        elif between_words or len(lines[at - 1]) < column:
            whole[-1] += f" {line}"
        else:
            whole[-1] += line
    return "\n".join(whole) + "\n"


def _rests(lines: list[str], heads: list[bool], column: int) -> frozenset[int]:
    """The positions of lines that are the rest of the one above."""
    found: set[int] = set()
    inside = False
    for at, (line, head) in enumerate(zip(lines, heads, strict=True)):
        if head:
            inside = True
        elif inside and _goes_on(lines[at - 1], line, column):
            found.add(at)
        else:
            inside = False
    return frozenset(found)


def _goes_on(above: str, line: str, column: int) -> bool:
    if column < _LEAST or _OTHER.match(line) or not column - _LONGEST_WORD <= len(above) <= column:
        return False
    word, _, _ = line.partition(" ")
    return len(above) + 1 + len(word) > column


def _is_between_words(lines: list[str], rests: frozenset[int], column: int) -> bool:
    """Whether lines were broken at blanks, which are gone: then most do not fill the column. A terminal breaks
    anywhere, and a blank at the very end of a line is lost where it is copied.
    """
    short = sum(len(lines[at - 1]) < column - 1 for at in rests)
    return 2 * short >= len(rests)
