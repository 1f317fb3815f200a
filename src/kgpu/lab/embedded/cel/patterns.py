"""Regular expressions of schemas and rules, as Go reads them: RE2's dialect, in time linear in the text.

RE2 is the one that the CEL library brings. Python's own expressions would differ in the dialect, and some of them take
for ever on a short text.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Final

from cel_expr_python import cel

# A token of an expression: quoted text, an escape, a class in brackets (with POSIX classes in it), or one character.
_TOKEN: Final = re.compile(
    r"\\Q.*?(?:\\E|$)|\\p\{\^?\w+\}|\\[\s\S]|\[\^?\]?(?:\[:\^?\w+:\]|\\[\s\S]|[^\]\\])*\]|\(\?P?<\w+>|\(\?|[\s\S]",
    re.DOTALL,
)
_ERROR: Final = re.compile(r"invalid (?:regular expression|regex): (.*?)(?: \[[A-Z_]+\])?$", re.DOTALL)
# RE2's words -> Go's, with what they are about in backquotes.
_WORDS: Final = {
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "missing )": "missing closing )",
    "missing ]": "missing closing ]",
    "no argument for repetition operator": "missing argument to repetition operator",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid repetition size": "invalid repeat count",
    "invalid character range": "invalid character class range",
    "invalid character class range": "invalid character class range",
    "trailing \\": "trailing backslash at end of expression",
}


@functools.cache
def _program(expression: str) -> Any:
    config = cel.NewEnvConfigFromYaml("extensions:\n  - name: optional\n  - name: regex\n")
    variables = {"text": cel.Type.STRING, "pattern": cel.Type.STRING}
    return cel.NewEnv(config=config, variables=variables).compile(expression)


def _asked(expression: str, pattern: str, text: str) -> Any:
    try:
        found = _program(expression).eval(data={"text": text, "pattern": pattern})
    except (RuntimeError, ValueError, UnicodeError) as error:
        raise ValueError(_complaint(pattern, str(error))) from error
    if found.type() == cel.Type.ERROR:
        raise ValueError(_complaint(pattern, str(found.plain_value())))
    return found.plain_value()


class Pattern:
    """A regular expression that can be searched for."""

    __slots__ = ("_pattern",)

    def __init__(self, pattern: str) -> None:
        """Raises ValueError with Go's words when it is none."""
        self._pattern = pattern
        _asked("text.matches(pattern)", pattern, "")

    def found_in(self, text: str) -> bool:
        """Whether it matches somewhere in the text, as Go's ``MatchString`` says."""
        return bool(_asked("text.matches(pattern)", self._pattern, text))

    def all_in(self, text: str) -> list[str]:
        """Every match, from left to right, none overlapping another."""
        found: list[str] = _asked("regex.extractAll(text, pattern)", _without_groups(self._pattern), text)
        return found


@functools.lru_cache(maxsize=4096)
def go_pattern(pattern: str) -> Pattern:
    """The expression; ValueError with Go's words, ``error parsing regexp: missing closing ): `(a```."""
    return Pattern(pattern)


def _without_groups(pattern: str) -> str:
    """With groups that don't capture: with a captured one only that would be returned."""
    tokens = _TOKEN.findall(pattern)
    return "".join("(?:" if one == "(" or one.startswith(("(?P<", "(?<")) else one for one in tokens)


def _complaint(pattern: str, text: str) -> str:
    matched = _ERROR.search(text)
    if matched is None:
        return f"error parsing regexp: {text}"
    words, _, about = matched[1].partition(": ")
    if words in {"missing )", "unexpected )"}:
        about = pattern
    if words == "trailing \\":
        about = ""
    return f"error parsing regexp: {_WORDS.get(words, words)}: `{about}`"
