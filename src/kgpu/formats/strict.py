"""Decoding untrusted trees by a table of keys, collecting every problem with its path and line.

A table says which keys a mapping may have and how each value is read. Unknown keys, wrong types and keys that are there
twice in different capitals become three-part errors with what was probably meant, also when it belongs elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean
from kgpu.formats.yaml import Document, Path

Reader: TypeAlias = "Callable[[Problems, Path, Any], Any]"
Table: TypeAlias = "Mapping[str, Reader | Table]"
"""A key's reader, or the table of the mapping below it."""
_SHOWN: Final = 5
_NAMED: Final = 30


def spelled(path: Path) -> str:
    """``sharing.timeSlicing.resources[0].replicas``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


class FileKeyError(ConfigError):
    """One key of a file is wrong. ``said`` names its line and path, ``complaint`` does not; ``is_unknown``: there is no
    such key.
    """

    def __init__(
        self, source: str, complaint: str, expected: str, remedy: str, *, line: int, place: str, is_unknown: bool
    ) -> None:
        self.said = f"line {line}: {place + ': ' if place else ''}{complaint}"
        self.complaint = complaint
        self.is_unknown = is_unknown
        super().__init__(f"unable to parse config file: {source}, {self.said}", expected, remedy)


@dataclass(slots=True)
class Problems:
    """Collects errors; ``known`` is the whole format's table, for finding where a misplaced key belongs."""

    source: str
    document: Document
    known: Table = field(default_factory=dict)
    found: list[FileKeyError] = field(default_factory=list)

    def add(self, path: Path, what: str, expected: str, remedy: str = "", *, is_unknown: bool = False) -> None:
        """Note one problem at ``path``."""
        place = spelled(path)
        remedy = remedy or f"correct {place or 'the file'}"
        line = self.document.line(path)
        self.found.append(
            FileKeyError(self.source, what, expected, remedy, line=line, place=place, is_unknown=is_unknown)
        )

    def unknown(self, path: Path, allowed: list[str]) -> None:
        """Note a key that is not allowed at ``path``."""
        key = str(path[-1])
        near = did_you_mean(key, allowed)
        elsewhere = [place for place in places(self.known, key) if place != spelled(path)]
        if near:
            remedy = near
        elif elsewhere:
            homes = [place.rpartition(".")[0] or "the top level" for place in elsewhere]
            remedy = f"move it: it belongs in {' or '.join(homes)}"
        else:
            remedy = "remove it"
        self.add(path, f'unknown key "{key}"', f"one of {', '.join(allowed)}", remedy, is_unknown=True)

    def raise_found(self) -> None:
        """Raise ConfigError for the first problem, with the next few; nothing without any."""
        found = self.found
        if found:
            more = f"; and {len(found) - _SHOWN} more problems" if len(found) > _SHOWN else ""
            words = [found[0].what, *(problem.said for problem in found[1:_SHOWN])]
            raise ConfigError("; ".join(words) + more, found[0].expected, found[0].remedy)


def some_of(names: Iterable[str]) -> str:
    """The first of a file's names, for people."""
    listed = [f"{name:.60}" for name in names]
    more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
    return ", ".join(listed[:_NAMED]) + more or "none"


def places(table: Table, key: str, above: str = "") -> Iterator[str]:
    """Every path of the format that ends in ``key``, capitals ignored."""
    for name, below in table.items():
        path = f"{above}.{name}" if above else name
        if name.lower() == key.lower():
            yield path
        if isinstance(below, Mapping):
            yield from places(below, key, path)


def read_table(problems: Problems, path: Path, value: Any, table: Table, *, exact: bool = False) -> dict[str, Any]:
    """The values that are there, by the table's spelling of their keys; nulls count as absent.

    Keys match in any capitals unless ``exact``.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        problems.add(path, f"{raw(value)} is not a mapping", "keys with values")
        return {}
    by_lower = {name.lower(): name for name in table}
    result: dict[str, Any] = {}
    spellings: dict[str, str] = {}
    for key, item in value.items():
        name = key if exact else by_lower.get(str(key).lower(), str(key))
        below = table.get(name)
        key_path = (*path, key)
        if below is None:
            problems.unknown(key_path, list(table))
            continue
        if name in spellings:
            problems.add(
                key_path, f'"{key}" and "{spellings[name]}" are the same key', "every key once", "remove one of the two"
            )
            continue
        spellings[name] = key
        if item is None:
            continue
        read = (
            read_table(problems, key_path, item, below)
            if isinstance(below, Mapping)
            else below(problems, key_path, item)
        )
        if read is not None:
            result[name] = read
    return result


def raw(value: Any) -> str:
    """A value for a message, as JSON, cut short."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:77] + "..."


def boolean(problems: Problems, path: Path, value: Any) -> bool | None:
    """True or false."""
    if isinstance(value, bool):
        return value
    problems.add(path, f"{raw(value)} is not a boolean", "true or false without quotes")
    return None


def text(problems: Problems, path: Path, value: Any) -> str | None:
    """A text."""
    if isinstance(value, str):
        return value
    problems.add(path, f"{raw(value)} is not a text", "a text", "put it in quotes if it is meant as text")
    return None


def whole(value: Any) -> int | None:
    """The integer that a value stands for: Go reads ``2.0`` as 2 too. None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, float) and value.is_integer() else None


def choice(known: str, *options: str) -> Reader:
    """One of ``options``; ``known`` is the text before a value that is none of them."""

    def read(problems: Problems, path: Path, value: Any) -> str | None:
        chosen = text(problems, path, value)
        if chosen is not None and chosen not in options:
            problems.add(path, f"{known}{chosen}", f"one of {', '.join(options)}", did_you_mean(chosen, options))
            return None
        return chosen

    return read
