"""Sets and removes keys of a JSON file and keeps every other byte and the order.

As with TOML, the result must parse to exactly the intended data. Duplicate keys are refused: an engine uses one of
them, and an edit of the other would have no effect.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kgpu.base.errors import ConfigError, HostError
from kgpu.host.engines.edited import MISSING, EditedFile, lookup, put, same
from kgpu.host.engines.toml_text import Path

_SPACE: Final = " \t\r\n"


@dataclass(frozen=True, slots=True)
class _Member:
    key: str
    start: int
    value_start: int
    value_end: int


class JsonFile(EditedFile):
    """A JSON object being edited. Raises ConfigError for other content; an empty file is an empty object."""

    def __init__(self, raw: bytes | None, source: str) -> None:
        super().__init__(raw, source)
        self.data = _load(self.text, source)
        if not self.text.strip("\ufeff" + _SPACE):
            self.text = "{}\n"

    def set(self, path: Path, value: Any) -> None:
        """Set a value, unless it is set already. Raises ConfigError and HostError."""
        if same(lookup(self.data, path, MISSING), value):
            return
        expected = copy.deepcopy(self.data)
        put(expected, path, copy.deepcopy(value), self.source)
        depth = len(path)
        while depth and lookup(self.data, path[:depth], MISSING) is MISSING:
            depth -= 1
        if depth == len(path):
            member = self._member(path)
            indent = self._indent_of(member.start)
            text = self.text[: member.value_start] + self._dump(value, indent) + self.text[member.value_end :]
        else:
            for part in reversed(path[depth + 1 :]):
                value = {part: value}
            text = self._inserted(path[:depth], path[depth], value)
        self._become(text, expected, path)

    def delete(self, path: Path) -> None:
        """Remove a key; objects that become empty stay. Raises HostError."""
        if lookup(self.data, path, MISSING) is MISSING:
            return
        expected = copy.deepcopy(self.data)
        del lookup(expected, path[:-1], expected)[path[-1]]
        members = list(self._members(self._object_start(path[:-1])))
        at = next(index for index, member in enumerate(members) if member.key == path[-1])
        if at:
            start, end = members[at - 1].value_end, members[at].value_end
        elif len(members) > 1:
            start, end = members[0].start, members[1].start
        else:
            start, end = self._object_start(path[:-1]) + 1, _skip(self.text, members[0].value_end)
        self._become(self.text[:start] + self.text[end:], expected, path)

    def _become(self, text: str, expected: dict[str, Any], path: Path) -> None:
        if not same(_load(text, self.source), expected):
            raise HostError(
                f"{self.source} can't be edited at {'.'.join(path)} without changing something else",
                "a JSON object",
                "set the keys by hand",
            )
        self.text, self.data = text, expected

    def _inserted(self, parent: Path, key: str, value: Any) -> str:
        start = self._object_start(parent)
        members = list(self._members(start))
        if members:
            last = members[-1]
            on_own_line = "\n" in self.text[start : members[0].start]
            indent = self._indent_of(members[0].start)
            lead = f",{self._newline}{indent}" if on_own_line else ", "
            added = f"{lead}{json.dumps(key)}: {self._dump(value, indent if on_own_line else None)}"
            return self.text[: last.value_end] + added + self.text[last.value_end :]
        outer = self._indent_of(start)
        indent = outer + self._step()
        end = _skip(self.text, start + 1)
        added = f"{self._newline}{indent}{json.dumps(key)}: {self._dump(value, indent)}{self._newline}{outer}"
        return self.text[: start + 1] + added + self.text[end:]

    def _dump(self, value: Any, indent: str | None) -> str:
        if indent is None:
            return json.dumps(value, ensure_ascii=False)
        text = json.dumps(value, ensure_ascii=False, indent=self._step())
        return text.replace("\n", self._newline + indent)

    def _step(self) -> str:
        """One level of the file's indentation."""
        first = next(self._members(self._object_start(())), None)
        return (self._indent_of(first.start) if first else "") or "    "

    def _indent_of(self, at: int) -> str:
        line = self.text.rfind("\n", 0, at) + 1
        end = line
        while self.text[end] in " \t":
            end += 1
        return self.text[line:end]

    def _object_start(self, path: Path) -> int:
        return self._member(path).value_start if path else _skip(self.text, 0)

    def _member(self, path: Path) -> _Member:
        start = _skip(self.text, 0)
        found: _Member | None = None
        for part in path:
            found = next(member for member in self._members(start) if member.key == part)
            start = found.value_start
        assert found is not None
        return found

    def _members(self, start: int) -> Iterator[_Member]:
        """The members of the object that begins at ``start``."""
        at = _skip(self.text, start + 1)
        while self.text[at] != "}":
            if self.text[at] == ",":
                at = _skip(self.text, at + 1)
            key, after = _scan(self.text, at)
            value_start = _skip(self.text, _skip(self.text, after) + 1)
            _, value_end = _scan(self.text, value_start)
            yield _Member(str(key), at, value_start, value_end)
            at = _skip(self.text, value_end)


_scan: Final = json.JSONDecoder().raw_decode


def _skip(text: str, at: int) -> int:
    while at < len(text) and (text[at] in _SPACE or text[at] == "\ufeff"):
        at += 1
    return at


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        names = [key for key, _ in pairs]
        raise ValueError(f'the key "{next(name for name in names if names.count(name) > 1)}" is there twice')
    return data


def _load(text: str, source: str) -> dict[str, Any]:
    stripped = text.removeprefix("\ufeff")
    if not stripped.strip(_SPACE):
        return {}
    expected, remedy = "a JSON object that the engine can load", "repair the file; it was left as it is"
    try:
        data = json.loads(stripped, object_pairs_hook=_unique)
    except ValueError as error:
        raise ConfigError(f"{source} isn't valid JSON: {error}", expected, remedy) from error
    except RecursionError as error:
        raise ConfigError(f"{source} nests values too deeply", expected, remedy) from error
    if not isinstance(data, Mapping):
        raise ConfigError(f"{source} holds a {type(data).__name__}", expected, remedy)
    return dict(data)
