"""Flags and environment variables as Go programs read them, so that a user's manifests keep their meaning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from kgpu.base.errors import ConfigError

TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
FALSE: Final = frozenset({"", "0", "f", "F", "false", "FALSE", "False"})


def bool_of(text: str, *, any_case: bool = False) -> bool | None:
    """What one of Go's spellings of true and false says, the empty text being false; None for any other text.

    ``any_case``: capitals do not matter, where Go knows ``TRUE`` and ``True`` only.
    """
    if any_case:
        text = text.lower()
    return True if text in TRUE else False if text in FALSE else None


def read_bool(value: Any, where: str) -> bool:
    """Go's spellings of true and false; the empty text is false. ``where`` names the flag. Raises ConfigError."""
    if isinstance(value, bool):
        return value
    text = str(value)
    meant = bool_of(text)
    if meant is None:
        raise ConfigError(f"{where}: {text!r} is not a boolean", "true or false", f"correct {where}")
    return meant


def long_words(words: Iterable[str], known: Mapping[str, str], switches: Iterable[str] = ()) -> list[str]:
    """The words of a command line with flags as Go's parsers take them in one spelling: ``--flag=value``.

    There one dash or two are the same, and so are ``flag value`` and ``flag=value``. ``known`` has each flag's name or
    short form without dashes, and how it is to be spelled (``collectors`` and ``f`` -> ``--collectors``); ``switches``
    are the spellings of those that may stand alone and never take the next word. What is not known stays as it is, and
    so does all that follows ``--``.
    """
    alone, rest = frozenset(switches), iter(words)
    rewritten: list[str] = []
    for word in rest:
        if word == "--":
            return [*rewritten, word, *rest]
        name, equals, value = word.lstrip("-").partition("=")
        spelled = known.get(name) if word.startswith("-") else None
        if spelled is None:
            rewritten.append(word)
        elif equals:
            rewritten.append(f"{spelled}={value}")
        elif spelled in alone:
            rewritten.append(spelled)
        else:
            following = next(rest, None)
            rewritten.append(spelled if following is None else f"{spelled}={following}")
    return rewritten
