"""Go's regular expressions in Python: the dialects agree but for the end of the text, ASCII classes and a few escapes."""  # noqa: E501

from __future__ import annotations

import functools
import re
from typing import Final

# A token of an expression: an escape, a class in brackets (with POSIX classes in it), or one character.
_TOKEN: Final = re.compile(
    r"\\Q.*?(?:\\E|$)|\\p\{\^?\w+\}|\\[\s\S]|\[\^?\]?(?:\[:\^?\w+:\]|\\[\s\S]|[^\]\\])*\]|[\s\S]", re.DOTALL
)
_POSIX: Final = {
    "alnum": "0-9A-Za-z", "alpha": "A-Za-z", "ascii": r"\x00-\x7F", "blank": r"\t ", "cntrl": r"\x00-\x1F\x7F",
    "digit": "0-9", "graph": "!-~", "lower": "a-z", "print": " -~", "punct": r"!-/:-@\[-`{-~", "space": r"\t\n\v\f\r ",
    "upper": "A-Z", "word": "0-9A-Za-z_", "xdigit": "0-9A-Fa-f",
}  # fmt: skip
_ESCAPES: Final = {r"\z": r"\Z", r"\C": r"[\s\S]"}


@functools.lru_cache(maxsize=4096)
def go_pattern(pattern: str) -> re.Pattern[str]:
    """The compiled expression; ``search`` is Go's MatchString. Raises ValueError with a message close to Go's."""
    try:
        return re.compile("".join(_translated(one) for one in _TOKEN.findall(pattern)), re.ASCII)
    except re.error as error:
        raise ValueError(_complaint(pattern, error)) from error


def _translated(token: str) -> str:
    if token == "$":  # noqa: S105
        return r"\Z"
    if token.startswith(r"\Q"):
        return re.escape(token[2:].removesuffix(r"\E"))
    if token.startswith("[") and len(token) > 1:
        text = re.sub(r"\[:(\w+):\]", lambda found: _POSIX.get(found[1], found[0]), token[1:])
        return "[" + text.replace("[", r"\[") if "[" in text else "[" + text
    return _ESCAPES.get(token, token)


def _complaint(pattern: str, error: re.error) -> str:
    at = error.pos or 0
    match error.msg.split(",")[0].split(" at ")[0]:
        case "missing )":
            return "error parsing regexp: missing closing ): `" + pattern + "`"
        case "unterminated subpattern" | "missing )":
            return "error parsing regexp: missing closing ): `" + pattern + "`"
        case "unbalanced parenthesis":
            return "error parsing regexp: unexpected ): `" + pattern + "`"
        case "unterminated character set":
            return "error parsing regexp: missing closing ]: `" + pattern[at:] + "`"
        case "nothing to repeat":
            return "error parsing regexp: missing argument to repetition operator: `" + pattern[at : at + 1] + "`"
        case "multiple repeat":
            return "error parsing regexp: invalid nested repetition operator: `" + pattern[at - 1 : at + 1] + "`"
        case "bad escape (end of pattern)":
            return "error parsing regexp: trailing backslash at end of expression: ``"
        case other:
            return f"error parsing regexp: {other}: `{pattern}`"
