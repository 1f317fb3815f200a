"""Cuts a template into texts and the tokens of its actions."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Final

from kgpu.discovery.rules.model import RuleError

OPEN: Final = "{{"
CLOSE: Final = "}}"
_SPACE: Final = " \t\r\n"
_COMMENT: Final = re.compile(r"/\*.*?\*/(?P<trim>\s-)?\}\}", re.DOTALL)
_TOKEN: Final = re.compile(
    r"""(?P<space>[ \t\r\n]+)
      | (?P<trim>-\}\})
      | (?P<close>\}\})
      | (?P<string>"(?:\\.|[^"\\\n])*")
      | (?P<raw>`[^`]*`)
      | (?P<number>[+-]?(?:0[xX][0-9a-fA-F]+|0[oO]?[0-7]+|[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+)(?![\w.]))
      | (?P<field>\.[^\W\d]\w*)
      | (?P<variable>\$\w*)
      | (?P<word>[^\W\d]\w*)
      | (?P<sign>:=|[|(),=.])
    """,
    re.VERBOSE,
)
_ESCAPE: Final = re.compile(r"\\(?:([abfnrtv\\'\"])|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|([0-7]{3})|(.?))", re.DOTALL)
_PLAIN: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


@dataclass(frozen=True, slots=True)
class Token:
    """``kind`` is ``text``, ``open``, ``close``, or one of the groups of an action's tokens. ``spaced``: white space
    comes before it.
    """

    kind: str
    text: str
    line: int
    spaced: bool = False


def tokens(template: str) -> Iterator[Token]:
    """The template in order. Raises RuleError."""
    at, trim = 0, False
    while at < len(template):
        begin = template.find(OPEN, at)
        end = len(template) if begin < 0 else begin
        text = template[at:end]
        text = text.lstrip(_SPACE) if trim else text
        inside = end + len(OPEN)
        trims_before = (
            begin >= 0 and template[inside : inside + 1] == "-" and template[inside + 1 : inside + 2] in _SPACE
        )
        text = text.rstrip(_SPACE) if trims_before and template[inside + 1 : inside + 2] else text
        if text:
            yield Token("text", text, _line(template, at))
        if begin < 0:
            return
        inside += 2 if trims_before else 0
        comment = _COMMENT.match(template, inside) if template.startswith("/*", inside) else None
        if comment is not None:
            at, trim = comment.end(), comment["trim"] is not None
            continue
        yield Token("open", OPEN, _line(template, begin))
        at, trim = yield from _action(template, inside)


def _action(template: str, at: int) -> Generator[Token, None, tuple[int, bool]]:
    """The tokens of one action; returns the place after it, and whether the text there loses its white space."""
    begin, spaced = at, False
    while True:
        found = _TOKEN.match(template, at)
        line = _line(template, at)
        if found is None:
            if at >= len(template):
                raise RuleError(
                    f"line {_line(template, begin)} of the template: an action has no end", "}} after each {{", "add }}"
                )
            raise RuleError(
                f"line {line} of the template: {template[at : at + 1]!r} can't be read",
                "an action of Go's text/template", "correct the template",
            )  # fmt: skip
        at = found.end()
        kind = found.lastgroup or ""
        if kind == "space":
            spaced = True
            continue
        if kind in {"close", "trim"}:
            yield Token("close", CLOSE, line)
            return at, kind == "trim"
        yield Token(kind, found[0], line, spaced)
        spaced = False


def unquoted(token: Token) -> str:
    """The value of a string's token. Raises RuleError for an escape that Go does not know."""
    if token.kind == "raw":
        return token.text[1:-1]

    def value(found: re.Match[str]) -> str:
        plain, byte, unicode, octal, _ = found.groups()
        if plain is not None:
            return _PLAIN.get(plain, plain)
        if byte or unicode:
            code = int(byte or unicode, 16)
            return "\ufffd" if 0xD800 <= code <= 0xDFFF else chr(code)
        if octal:
            return chr(int(octal, 8))
        raise RuleError(
            f"line {token.line} of the template: the text {token.text[:40]} has an unknown escape",
            r"\n, \t, \", \\ or \u00e9", "correct the text, or put it between backquotes",
        )  # fmt: skip

    return _ESCAPE.sub(value, token.text[1:-1])


def _line(template: str, at: int) -> int:
    return template.count("\n", 0, at) + 1
