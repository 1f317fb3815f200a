"""Sets and removes keys of a TOML file and keeps every other byte, comments and the order.

The parser decides: a result that does not parse to exactly the intended data is refused, so that an unforeseen syntax
becomes an error and never a changed setting.
"""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Mapping
from typing import Any

from kgpu.base.errors import ConfigError, HostError
from kgpu.host.engines.edited import MISSING, EditedFile, lookup, put, same
from kgpu.host.engines.toml_text import Path, Statement, key_text, last_in_list, statements, table_text, value_text


class TomlFile(EditedFile):
    """A TOML file being edited. ``source`` names it in errors. Raises ConfigError if it isn't valid TOML."""

    def __init__(self, raw: bytes | None, source: str) -> None:
        super().__init__(raw, source)
        self.data = load(self.text, source)

    def set(self, path: Path, value: Any) -> None:
        """Set a value or a whole table, unless it is set already. Raises HostError."""
        if same(lookup(self.data, path, MISSING), value):
            return
        before = lookup(self.data, path, MISSING)
        if isinstance(value, Mapping) and isinstance(before, dict):
            for key in [key for key in before if key not in value]:
                self.delete((*path, key))
            for key, item in value.items():
                self.set((*path, key), item)
            if lookup(self.data, path, MISSING) is not MISSING:
                return
        if before is not MISSING and (isinstance(value, Mapping) or isinstance(before, dict)):
            self.delete(path)
        expected = copy.deepcopy(self.data)
        put(expected, path, copy.deepcopy(value), self.source)
        self._become(self._with(path, value), expected, path)

    def delete(self, path: Path) -> None:
        """Remove a key or a table, and parent tables that existed only because of it. Raises HostError."""
        if lookup(self.data, path, MISSING) is MISSING:
            return
        expected = copy.deepcopy(self.data)
        parent = lookup(expected, path[:-1], expected)
        del parent[path[-1]]
        text = self._without(path)
        # A table that existed only because of the removed key is removed, too.
        for depth in range(len(path) - 1, 0, -1):
            above = path[:depth]
            if lookup(expected, above) or lookup(load(text, self.source), above, MISSING) is not MISSING:
                break
            del lookup(expected, above[:-1], expected)[above[-1]]
        self._become(text, expected, path)

    def _become(self, text: str, expected: dict[str, Any], path: Path) -> None:
        try:
            data = load(text, self.source)
        except ConfigError:
            data = None
        if data is None or not same(data, expected):
            raise HostError(
                f"{self.source} can't be edited at {key_text(path)} without changing something else",
                "TOML of a usual shape: tables with headers of their own",
                "write that setting with a table header, or set the keys by hand",
            )
        self.text, self.data = text, data

    def _with(self, path: Path, value: Any) -> str:
        lines = statements(self.text)
        for statement in lines:
            if not statement.is_header and statement.path == path[: len(statement.path)]:
                return self._rewritten(statement, path[len(statement.path) :], value)
        parent = path[:-1]
        for depth in range(len(parent), -1, -1):
            above = parent[:depth]
            headers = [line for line in lines if line.is_header and line.table == above] if depth else []
            if headers and depth == len(parent) and not isinstance(value, Mapping):
                body = [line for line in lines if line.table == above]
                return self._after(
                    body[-1], path[-1:], value, indent=body[-1].indent if len(body) > 1 else "  " + headers[0].indent
                )
            dotted = [
                line for line in lines if not line.is_header and len(line.table) < depth and line.path[:depth] == above
            ]
            if dotted:
                return self._dotted_after(dotted[-1], path, value)
            if headers or any(line.is_header and line.table[:depth] == above for line in lines if depth):
                break
        if not parent and not isinstance(value, Mapping):
            return self._at_root(lines, path[-1], value)
        if isinstance(value, Mapping):
            return self._appended(table_text(path, value, self._newline))
        return self._appended(table_text(parent, {path[-1]: value}, self._newline))

    def _rewritten(self, statement: Statement, rest: Path, value: Any) -> str:
        """The text with the statement's value replaced, or its inline table changed."""
        if not rest and isinstance(value, list) and isinstance(self.get(statement.path), list):
            longer = self._extended(statement, self.get(statement.path), value)
            if longer:
                return longer
        if rest:
            table = copy.deepcopy(lookup(self.data, statement.path))
            put(table, rest, value, self.source)
            value = table
        return self.text[: statement.value_start] + value_text(value) + self.text[statement.value_end :]

    def _extended(self, statement: Statement, before: list[Any], after: list[Any]) -> str:
        """The text with items appended to the list and its comments and lines kept; "" if ``after`` does
        not begin with ``before``.
        """
        if not before or not same(after[: len(before)], before):
            return ""
        last = last_in_list(self.text, statement.value_start, statement.value_end)
        line = self.text.rfind("\n", statement.value_start, last) + 1
        lead = self._newline + self.text[line : _skip_space(self.text, line)] if line else " "
        comma = self.text[last - 1] == ","
        added = ",".join(lead + value_text(item) for item in after[len(before) :])
        return self.text[:last] + ("" if comma else ",") + added + ("," if comma else "") + self.text[last:]

    def _after(self, statement: Statement, key: Path, value: Any, *, indent: str) -> str:
        line = f"{indent}{key_text(key)} = {value_text(value)}{self._newline}"
        head = self.text[: statement.end]
        return head + ("" if head.endswith("\n") else self._newline) + line + self.text[statement.end :]

    def _dotted_after(self, statement: Statement, path: Path, value: Any) -> str:
        return self._after(statement, path[len(statement.table) :], value, indent=statement.indent)

    def _at_root(self, found: tuple[Statement, ...], key: str, value: Any) -> str:
        root = [one for one in found if not one.table]
        if root:
            return self._after(root[-1], (key,), value, indent=root[-1].indent)
        mark = "\ufeff" if self.text.startswith("\ufeff") else ""
        return f"{mark}{key_text((key,))} = {value_text(value)}{self._newline}{self.text.removeprefix(mark)}"

    def _appended(self, block: str) -> str:
        head = self.text
        if head and not head.endswith("\n"):
            head += self._newline
        return head + (self._newline if head.strip() else "") + block

    def _without(self, path: Path) -> str:
        lines = statements(self.text)
        for statement in lines:
            if (
                not statement.is_header
                and len(statement.path) < len(path)
                and statement.path == path[: len(statement.path)]
            ):
                table = copy.deepcopy(lookup(self.data, statement.path))
                rest = path[len(statement.path) :]
                del lookup(table, rest[:-1], table)[rest[-1]]
                return self.text[: statement.value_start] + value_text(table) + self.text[statement.value_end :]
        text = self.text
        for start, end in reversed(self._spans(lines, path)):
            text = text[:start] + text[end:]
        return text

    def _spans(self, lines: tuple[Statement, ...], path: Path) -> list[tuple[int, int]]:
        """The spans to remove: the key's own lines, or those of every section of the table, each up to its last key."""
        spans: list[tuple[int, int]] = []
        inside = False
        for statement in lines:
            if statement.is_header:
                inside = statement.table[: len(path)] == path
                if inside:
                    spans.append((self._blank_before(statement.start), statement.end))
            elif inside:
                spans[-1] = (spans[-1][0], statement.end)
            elif statement.path[: len(path)] == path:
                spans.append((statement.start, statement.end))
        return spans

    def _blank_before(self, start: int) -> int:
        """The start of the one blank line above, or ``start`` if there is none."""
        above = self.text.rfind("\n", 0, max(start - 1, 0)) + 1
        return above if start and not self.text[above:start].strip() else start


def _skip_space(text: str, at: int) -> int:
    while text[at] in " \t":
        at += 1
    return at


def load(text: str, source: str) -> dict[str, Any]:
    """Parse a TOML text. Raises ConfigError with the position."""
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{source} isn't valid TOML: {error}",
            "a config file that its engine can load",
            "repair the file; it was left as it is",
        ) from error
    except RecursionError as error:
        raise ConfigError(
            f"{source} nests values too deeply",
            "a config file that its engine can load",
            "repair the file; it was left as it is",
        ) from error
