"""Takes secrets out of text and of objects before anybody sees or stores them.

Environment values are kept only for variables that are known to carry no secret; in all other text what looks like a
credential is replaced. Total: any value in, the same shape out.
"""

from __future__ import annotations

import bisect
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from kgpu.doctor import public_variables, secret_commands
from kgpu.doctor.secret_commands import HIDDEN
from kgpu.doctor.secret_names import sounds_secret
from kgpu.doctor.secret_rows import BLOCK, FIELD, IN_TEXT, OPEN_FLAG

__all__ = [
    "HIDDEN",
    "cleaned",
    "data_of",
    "env_list",
    "env_value",
    "headers",
    "labels",
    "lines",
    "messages",
    "scrubbed",
    "under_key",
    "words",
]

MAX_DEPTH: Final = 60
_Span: TypeAlias = tuple[int, int]
_SHORT: Final = 512
"""Characters of a text that is remembered with what became of it."""
_LAST: Final = 200
"""Characters at the end of a line in which a name stands whose value is on the next one."""
_NAME_REACH: Final = 40
"""Characters of a value that may be another one's name; longer ones have been read for the sake of time."""

# Fields that say which Secret is meant, or which of its entries.
_REFERENCE: Final = re.compile(r"name|key|.*secret(?:name|ref|keyref)", re.IGNORECASE | re.DOTALL)
# Lists of credentials; of secrets only names are listed.
_SEVERAL: Final = re.compile(
    r"(?:PASSW(?:OR)?DS?|PASSPHRASES?|PASSCODES?|TOKENS?|API_?KEYS?|ACCESS_?KEYS?|SECRET_?KEYS?|CREDENTIALS?|CREDS?)$",
    re.IGNORECASE,
)
_STAYS: Final = re.compile(OPEN_FLAG, re.IGNORECASE)
_KEY_BEGINS: Final = re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY")
_KEY_ENDS: Final = re.compile(r"-----END [A-Z ]{0,40}PRIVATE KEY")
_VALUE_MAY_FOLLOW: Final = re.compile(r"[|>]|[Nn](?:ame|AME)")
_VALUE_FOLLOWS: Final = re.compile(rf"(?i)(?:{FIELD}|{BLOCK})\s*$")
_BASE64: Final = re.compile(r"\s*[A-Za-z0-9+/=]{8,}\s*")
_IS_SECRET: Final = re.compile(r"[ \t]{0,40}(?:- )?kind:[ \t]{1,8}Secret[ \t\r]*$")
_DATA_BEGINS: Final = re.compile(r"([ \t]{0,40})(?:data|stringData):[ \t\r]*$")
_NEAR: Final = 60
"""Lines between a manifest's kind and its data."""
_PLAIN: Final = frozenset({"", "true", "false", "enabled", "disabled"})
_APART: Final = "\x1f"
"""White space to every pattern, and in no word."""


def cleaned(text: str) -> str:
    """The text with everything replaced that looks like a credential."""
    return _without(text, _hidden(text))


def _hidden(text: str) -> Sequence[_Span]:
    """Where in the text is what has to be hidden, in order and apart from one another."""
    return _hidden_in_short(text) if len(text) <= _SHORT else _sought(text)


def _sought(text: str) -> Sequence[_Span]:
    small = text.lower()
    spans = secret_commands.spans(text)
    for gates, pattern, lead in IN_TEXT:
        for gate in gates:
            if gate in small:
                spans += _spans(pattern, text, _first(small, gates) - lead if lead >= 0 else 0)
                break
    apart: list[_Span] = []
    for start, end in sorted(spans):
        if apart and start <= apart[-1][1]:
            apart[-1] = (apart[-1][0], max(end, apart[-1][1]))
        else:
            apart.append((start, end))
    return tuple(apart)


def _first(small: str, gates: tuple[str, ...]) -> int:
    """Where the first of the words is. Some capitals become two small letters: 0 where there may be one."""
    return min(at for gate in gates if (at := small.find(gate)) >= 0) if small.isascii() else 0


_hidden_in_short: Final = functools.lru_cache(maxsize=4096)(_sought)
"""Thousands of pods have the same words, labels and images."""


def _spans(pattern: re.Pattern[str], text: str, at: int = 0) -> list[_Span]:
    """Where in the text is what the pattern hides.

    Each pattern reads the text as it was, and a short value again from its beginning on: what is taken for one
    credential may be the name of the next one.
    """
    matches: list[_Span] = []
    at = max(at, 0)
    while hit := pattern.search(text, at):
        start, end = hit.end(1) if pattern.groups else hit.start(), hit.end()
        matches.append((start, end))
        at = start if pattern.groups and end - start <= _NAME_REACH and start > at else end
    return matches


def _without(text: str, spans: Sequence[_Span]) -> str:
    pieces, at = [], 0
    for start, end in spans:
        pieces.append(text[at:start])
        at = end
    return HIDDEN.join([*pieces, text[at:]]) if pieces else text


def lines(texts: Iterable[str]) -> tuple[str, ...]:
    """The lines of a log, each cleaned; a private key goes with all the lines that it has.

    So does a value of which the line before has the name.
    """
    shown_lines: list[str] = []
    inside, name = False, ""
    for line in texts:
        begins, ends = _KEY_BEGINS.search(line), _KEY_ENDS.search(line)
        if ends and not begins and not inside:  # the log was cut within the key
            at = len(shown_lines)
            while at and _BASE64.fullmatch(shown_lines[at - 1]):
                at -= 1
            shown_lines[at:] = [HIDDEN] * (len(shown_lines) - at)
        hide = inside or (ends is not None and begins is None)
        # Lines are hardly ever the same: what is remembered is for words and labels.
        text = f"{name}\n{line}" if name else line
        shown = _without(text, _sought(text))
        shown_lines.append(HIDDEN if hide else shown.partition("\n")[2] if name else shown)
        name = line if _names_the_next(line) else ""
        inside = (inside or begins is not None) and ends is None
    _hide_manifests(shown_lines)
    return tuple(shown_lines)


def _hide_manifests(found: list[str]) -> None:
    """What a Secret has, where a log shows one as YAML: its kind stands after its data, or before it."""
    for at in [at for at, line in enumerate(found) if _IS_SECRET.match(line)]:
        for start in range(max(at - _NEAR, 0), min(at + _NEAR, len(found))):
            data = _DATA_BEGINS.match(found[start])
            below = start + 1
            while data and below < len(found) and found[below].startswith(f"{data[1]} "):
                found[below] = HIDDEN if found[below].strip() else found[below]
                below += 1


def _names_the_next(line: str) -> bool:
    if not _VALUE_MAY_FOLLOW.search(line, max(len(line) - _LAST, 0)):
        return False
    return "\n" not in line and bool(_VALUE_FOLLOWS.search(line[-_LAST:]))


def env_value(name: str, value: str) -> str:
    """A variable's value where it can't be a secret."""
    if not value:
        return value
    return cleaned(value) if name in public_variables.NAMES else HIDDEN


def env_list(value: Any) -> Any:
    """A container's ``env`` with values hidden; references stay, they name no value."""
    if not isinstance(value, list):
        return value
    return [
        {**row, "value": env_value(str(row.get("name") or ""), row["value"])}
        if isinstance(row, dict) and isinstance(row.get("value"), str)
        else row
        for row in value
    ]


def words(value: Any, program: Sequence[str] = ()) -> Any:
    """A container's ``args`` or ``command`` with what follows a flag that names a secret hidden.

    Each word is judged by itself, then all together, as a shell's line, after those of ``program``: a password's flag
    is known by who takes it, and a user's password by ``-u`` before it. Only together, the end of one word and the
    beginning of the next would be taken for a name and its value, and the value behind it would stay.
    """
    if not isinstance(value, list):
        return value
    own = [cleaned(word) for word in value if isinstance(word, str)]
    together = _together([cleaned(word) for word in program], own)
    shown_words: list[Any] = []
    before, cleaned_words = "", iter(together)
    for word in value:
        if not isinstance(word, str):
            shown_words.append(word)
            continue
        flag, equals, argument = word.partition("=")
        named = flag.startswith("-") and sounds_secret(flag)
        shown = next(cleaned_words)
        if before and not _STAYS.match(f"{before} {word}"):
            shown = HIDDEN
        elif named and equals and not _STAYS.match(f"{flag} {argument}"):
            # What stands before the first "=" may be a whole command with a credential of its own.
            name, still, _ = shown.partition("=")
            shown = f"{name}={HIDDEN}" if still else shown
        shown_words.append(shown)
        before = flag if named and not equals else ""
    return shown_words


def _together(before: Sequence[str], own: Sequence[str]) -> list[str]:
    """The ``own`` words without what has to be hidden in the line that they are with the words ``before`` them."""
    spans = _hidden(_APART.join([*before, *own]))
    starts, ends = [start for start, _ in spans], [end for _, end in spans]
    at, parts = sum(len(word) + 1 for word in before), []
    for word in own:
        end = at + len(word)
        within = spans[bisect.bisect_right(ends, at) : bisect.bisect_left(starts, end)]
        parts.append(_without(word, [(max(start, at) - at, min(stop, end) - at) for start, stop in within]))
        at = end + 1
    return parts


def headers(value: Any) -> Any:
    """Headers of requests without their values."""
    if not isinstance(value, list):
        return value
    return [{**row, "value": HIDDEN} if isinstance(row, dict) and "value" in row else row for row in value]


def under_key(key: Any, value: Any) -> Any:
    """A field's value, hidden where the field's name is that of a secret and not of a reference to one.

    Of an object its ``value`` is: all else there may name a Secret.
    """
    if not value or not isinstance(key, str):
        return value
    if isinstance(value, list):
        several = any(isinstance(item, str) for item in value) and _SEVERAL.search(key)
        return [HIDDEN if isinstance(item, str) and item else item for item in value] if several else value
    if isinstance(value, dict):
        plain = isinstance(value.get("value"), str) and value["value"] and _is_secret(key)
        return {**value, "value": HIDDEN} if plain else value
    return HIDDEN if isinstance(value, str) and _is_secret(key) else value


@functools.lru_cache(maxsize=8192)
def _is_secret(key: str) -> bool:
    return sounds_secret(key) and not _REFERENCE.fullmatch(key)


def labels(value: Mapping[str, Any]) -> dict[str, Any]:
    """Labels without what is named or looks like a credential; thousands of objects have the same keys."""
    return {
        key: (HIDDEN if _is_secret(str(key)) and one not in _PLAIN else cleaned(one)) if isinstance(one, str) else one
        for key, one in value.items()
    }


def data_of(kind: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """A ConfigMap's ``data`` without credentials; of a Secret only the keys."""
    if kind == "Secret":
        return dict.fromkeys(map(str, value), HIDDEN)
    return {
        str(key): HIDDEN if isinstance(text, str) and sounds_secret(str(key)) else scrubbed(text)
        for key, text in value.items()
    }


def scrubbed(value: Any, depth: int = 0) -> Any:
    """Any document with every text cleaned and environments hidden; what is nested too deep is left out."""
    if isinstance(value, str):
        return cleaned(value)
    if depth > MAX_DEPTH:
        return None
    if isinstance(value, dict):
        fields = {
            key: _KEYS[key](scrubbed(below, depth + 1)) if key in _KEYS else under_key(key, scrubbed(below, depth + 1))
            for key, below in value.items()
        }
        # A parameter, a header or a variable, whatever the list of them is called.
        named = isinstance(fields.get("value"), str) and isinstance(fields.get("name"), str)
        return fields | {"value": under_key(fields["name"], fields["value"])} if named else fields
    if isinstance(value, list | tuple):
        return [scrubbed(item, depth + 1) for item in value]
    return value


def messages(value: Any, depth: int = 0) -> Any:
    """A status with what is said for people cleaned: all else there are names, numbers and times."""
    if depth > MAX_DEPTH:
        return None
    if isinstance(value, dict):
        return {
            key: (cleaned(below) if key in _MESSAGES else below)
            if isinstance(below, str)
            else messages(below, depth + 1)
            for key, below in value.items()
        }
    if isinstance(value, list):
        return [messages(item, depth + 1) if isinstance(item, dict | list) else item for item in value]
    return value


_KEYS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "env": env_list, "args": words, "command": words, "httpHeaders": headers,
}  # fmt: skip
_MESSAGES: Final = frozenset({"message", "reason", "note"})
