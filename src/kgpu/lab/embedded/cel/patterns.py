"""Regular expressions of schemas and rules in Go's dialect, RE2, matched in time linear in the text.

RE2 comes with the CEL library. Python's ``re`` has another dialect, and can take exponential time.
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
# RE2's messages -> Go's, which have the part of the pattern in backquotes.
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


def _eval(expression: str, pattern: str, text: str) -> Any:
    try:
        answer = _program(expression).eval(data={"text": text, "pattern": pattern})
    except (RuntimeError, ValueError, UnicodeError) as error:
        raise ValueError(_complaint(pattern, str(error))) from error
    if answer.type() == cel.Type.ERROR:
        raise ValueError(_complaint(pattern, str(answer.plain_value())))
    return answer.plain_value()


class Pattern:
    """A regular expression that can be searched for."""

    __slots__ = ("_pattern",)

    def __init__(self, pattern: str) -> None:
        """Raises ValueError with Go's message for an invalid pattern."""
        self._pattern = pattern
        _eval("text.matches(pattern)", pattern, "")

    def found_in(self, text: str) -> bool:
        """Whether it matches somewhere in the text, as Go's ``MatchString`` says."""
        return bool(_eval("text.matches(pattern)", self._pattern, text))

    def all_in(self, text: str) -> list[str]:
        """Every match, from left to right, none overlapping another."""
        matches: list[str] = _eval("regex.extractAll(text, pattern)", _without_groups(self._pattern), text)
        return matches


@functools.lru_cache(maxsize=4096)
def go_pattern(pattern: str) -> Pattern:
    """The pattern. Raises ValueError with Go's message, ``error parsing regexp: missing closing ): `(a```."""
    return Pattern(pattern)


def _without_groups(pattern: str) -> str:
    """The pattern with non-capturing groups: with a capturing one only the group would be returned."""
    tokens = _TOKEN.findall(pattern)
    return "".join("(?:" if part == "(" or part.startswith(("(?P<", "(?<")) else part for part in tokens)


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
