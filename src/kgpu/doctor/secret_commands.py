"""Passwords that programs take by short options or as plain words: rows of programs, and where each has them.

``spans(text)`` says where they are, each within the command line of its program.
"""

from __future__ import annotations

import re
from typing import Final

HIDDEN: Final = "<redacted>"
_REACH: Final = 400
"""Characters after a program's name that count as its command line, which ends at a new line, ``|`` or ``&`` too."""
# Between two words: blanks, or what stands between the words of a list in JSON.
BETWEEN: Final = r"(?:\s|\\{0,3}[\"'],?\s?\\{0,3}[\"']?){1,4}"
_REST: Final = r"[^\s\"',;\\\]]+"
_WORD: Final = r"(?!<redacted>|\$|[-,])" + _REST
# Where the same option is a port's, or a pair of them, in other commands of the program.
_NO_PORT: Final = r"(?![\d.:]+(?:/\w+)?(?:[\s\"',;\\\]]|$))" + _WORD


def _apart(flag: str, word: str = _WORD) -> str:
    """A flag, and its value as the next word."""
    return rf"(?<![\w.-])({flag}{BETWEEN}){word}"


def _rows(*rows: tuple[str, str]) -> tuple[tuple[re.Pattern[str], re.Pattern[str]], ...]:
    return tuple((re.compile(programs, re.IGNORECASE), re.compile(flag)) for programs, flag in rows)


_ROWS: Final = _rows(
    (r"(?:redis|valkey|keydb)-cli", _apart("-a")),
    (r"mysql\w*|mariadb[\w-]*|mycli|7za?|sshpass", r"(?<![\w.-])(-p[\"']?)" + _WORD),
    (r"sshpass|mongo\w*|cypher-shell|rabbitmqadmin|racadm|redfishtool|ilorest", _apart("-p")),
    (r"docker|podman|nerdctl|buildah|skopeo|crane|helm|oras|regctl|az|oc", _apart("-p", _NO_PORT)),
    (r"sqlcmd|mosquitto_[ps]ub|zip|unzip|ipmitool", _apart("-P")),
    (r"snmp\w+", _apart("-c")),
    (r"ldap\w+", _apart("-w")),
    (r"https?|xh", r"(?<![\w.-])(-a" + BETWEEN + r"[^\s:]{1,100}:)" + _WORD),
    (
        r"curl",
        r"(?<![\w.-])((?:-u|--user|--proxy-user)(?:=|"
        + BETWEEN
        + r")?(?!\d+:\d+(?:[\s\"']|$))[^\s:\"',]{1,100}:)(?!<red|\$)[^\s\"'\\]+",
    ),
    (r"smbclient|rpcclient", r"(?<![\w.-])(-U" + BETWEEN + r"[^\s%]{1,100}%)" + _WORD),
    (r"wandb|vault|ngc|hf|huggingface-cli", r"(?<![\w.-])(login" + BETWEEN + r")(?=\S*\d)" + _NO_PORT),
    (  # NAME URL ACCESS-KEY SECRET-KEY
        r"mc|mcli",
        r"(?<![\w.-])((?:alias" + BETWEEN + "set|config" + BETWEEN + "host" + BETWEEN + "add)"
        rf"(?:{BETWEEN}{_REST}){{3}}{BETWEEN})" + _WORD,
    ),
)
_PROGRAMS: Final = re.compile(
    rf"(?i)(?<![\w.-])(?:{'|'.join(dict.fromkeys(programs.pattern for programs, _ in _ROWS))})(?=[\s\"',\\])"
)
_END: Final = re.compile(r"[\n|&]")
_MAYBE: Final = re.compile(r"[\s\"']-(?:[acpPwUu]|-user|-proxy-user)|login|alias\W{1,9}set|host\W{1,9}add")


def spans(text: str) -> list[tuple[int, int]]:
    """Where in the text such programs are given passwords: from, to."""
    if not _MAYBE.search(text):
        return []
    starts = [hit.start() for hit in _PROGRAMS.finditer(text)]
    hidden: list[tuple[int, int]] = []
    for start, following in zip(starts, [*starts[1:], len(text)], strict=False):
        line = text[start : min(start + _REACH, following)]
        stop = _END.search(line)
        line = line[: stop.start()] if stop else line
        for programs, flag in _ROWS:
            if programs.match(line):
                hidden += [(start + hit.end(1), start + hit.end()) for hit in flag.finditer(line)]
    return hidden
