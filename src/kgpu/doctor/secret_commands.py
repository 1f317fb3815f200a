"""Passwords that programs take by short options or as plain words: rows of programs, and where each has them.

``hidden(text)`` replaces them within one command line of a text; a text that names none of the programs is as it was.
"""

from __future__ import annotations

import re
from typing import Final

HIDDEN: Final = "<redacted>"
_REACH: Final = 400
"""Characters after a program's name that count as its command line, which ends at a new line, ``|`` or ``&`` too."""
# Between two words: blanks, or what stands between the words of a list in JSON.
BETWEEN: Final = r"(?:\s|\\?[\"'],?\s?\\?[\"']?){1,4}"
_WORD: Final = r"(?!<redacted>|\$|[-,]|[\d.:]+(?:/\w+)?(?:[\s\"',\\\]]|$))[^\s\"',;\\\]]+"


def _apart(flag: str) -> str:
    """A flag, and its value as the next word."""
    return rf"(?<![\w.-])({flag}{BETWEEN}){_WORD}"


def _rows(*rows: tuple[str, str]) -> tuple[tuple[re.Pattern[str], re.Pattern[str]], ...]:
    return tuple((re.compile(programs, re.IGNORECASE), re.compile(flag)) for programs, flag in rows)


_ROWS: Final = _rows(
    (r"(?:redis|valkey|keydb)-cli", _apart("-a")),
    (r"mysql\w*|mariadb[\w-]*|mycli|7za?|sshpass", r"(?<![\w.-])(-p[\"']?)" + _WORD),
    (
        r"sshpass|docker|podman|nerdctl|buildah|skopeo|crane|helm|oras|regctl|az|oc|mongo\w*|cypher-shell|rabbitmqadmin",
        _apart("-p"),
    ),
    (r"sqlcmd|mosquitto_[ps]ub|zip|unzip", _apart("-P")),
    (r"ldap\w+", _apart("-w")),
    (r"https?|xh", r"(?<![\w.-])(-a" + BETWEEN + r"[^\s:]{1,100}:)" + _WORD),
    (
        r"curl",
        r"(?<![\w.-])((?:-u|--user|--proxy-user)(?:=|"
        + BETWEEN
        + r")?(?!\d+:\d+(?:[\s\"']|$))[^\s:\"',]{1,100}:)(?!<red|\$)[^\s\"'\\]+",
    ),
    (r"smbclient|rpcclient", r"(?<![\w.-])(-U" + BETWEEN + r"[^\s%]{1,100}%)" + _WORD),
    (r"wandb|vault|ngc|hf|huggingface-cli", r"(?<![\w.-])(login" + BETWEEN + r")(?=\S*\d)" + _WORD),
)
_PROGRAMS: Final = re.compile(
    rf"(?i)(?<![\w.-])(?:{'|'.join(dict.fromkeys(programs.pattern for programs, _ in _ROWS))})(?=[\s\"',\\])"
)
_END: Final = re.compile(r"[\n|&]")
_MAYBE: Final = re.compile(r"[\s\"']-(?:[apPwUu]|-user|-proxy-user)|login")


def hidden(text: str) -> str:
    """The text without what such programs are given as passwords."""
    if not _MAYBE.search(text):
        return text
    starts = [hit.start() for hit in _PROGRAMS.finditer(text)]
    if not starts:
        return text
    found = [text[: starts[0]]]
    for start, following in zip(starts, [*starts[1:], len(text)], strict=True):
        line = text[start:following]
        stop = _END.search(line, 0, _REACH)
        length = min(stop.start() if stop else _REACH, len(line))
        found += [_of(line[:length]), line[length:]]
    return "".join(found)


def _of(line: str) -> str:
    for programs, flag in _ROWS:
        if programs.match(line):
            line = flag.sub(rf"\1{HIDDEN}", line)
    return line
