"""Duplicate fields of a body, reported as by the real server's strict decoders.

JSON: each is named by its path, in the decoder's order. YAML: one error of the parser, with lines.
Sources: sigs.k8s.io/json, go.yaml.in/yaml, apimachinery's serializer/json, apiserver's endpoints/handlers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from kgpu.lab.embedded import strict
from kgpu.lab.embedded.schema import SchemaNode
from kgpu.lab.embedded.status import ApiError, shown
from kgpu.lab.embedded.strict import Members

MOST: Final = 100
"""The most errors of one decoding; the real decoder drops further ones."""
_YAML: Final = "yaml: unmarshal errors:\n"
_CONVERTING: Final = "error converting YAML to JSON: "


@dataclass(frozen=True, slots=True)
class Repeated:
    """A body with duplicate fields: its members as written (JSON), or the lines of the YAML parser's error."""

    members: Any = None
    lines: tuple[str, ...] = ()

    def typed(self, node: SchemaNode, unknown: list[str]) -> list[str]:
        """All errors of a decoder of that type; ``unknown`` are those about unknown fields."""
        if self.lines:
            return [_of_lines(self.lines), *unknown]
        return _limited(strict.complaints(self.members, node))

    def merged(self, value: Any) -> Any:
        """``value`` as a typed decoder reads it: later objects and lists are decoded over earlier ones, where ``value``
        has only the last.
        """
        return value if self.members is None else _merged(self.members)

    def untyped(self) -> list[str]:
        """All errors of a decoder that accepts any field."""
        if self.lines:
            return [_of_lines(self.lines)]
        problems: list[str] = []
        _walk(self.members, "", problems)
        return _limited(problems)

    def applied(self) -> str:
        """The error about an applied configuration."""
        return _CONVERTING + _of_lines(self.lines)


def yaml_lines(repeated: Iterable[tuple[int, Any]]) -> tuple[str, ...]:
    """The YAML parser's error lines for duplicate keys; ``repeated`` are rows of (line, key)."""
    return tuple(f"line {line}: key {_key(key)} already set in map" for line, key in repeated)


def _key(key: Any) -> str:
    if isinstance(key, str):
        return shown(key)
    return "<nil>" if key is None else str(key).lower()


def _of_lines(lines: tuple[str, ...]) -> str:
    return _YAML + "\n".join(f"  {line}" for line in lines)


def warnings(complaints: Iterable[str]) -> list[str]:
    """The complaints as separate texts for Warning headers."""
    texts: list[str] = []
    for complaint in complaints:
        inner = complaint.removeprefix(_CONVERTING)
        texts += (
            [line.strip() for line in inner.removeprefix(_YAML).split("\n")] if inner.startswith(_YAML) else [complaint]
        )
    return texts


def _merged(value: Any) -> Any:
    if isinstance(value, Members):
        merged: dict[str, Any] = {}
        for key, inner in value:
            merged[key] = _onto(merged.get(key), _merged(inner))
        return merged
    return [_merged(inner) for inner in value] if isinstance(value, list) else value


def _onto(old: Any, new: Any) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{key: _onto(old.get(key), inner) for key, inner in new.items()}}
    if isinstance(old, list) and isinstance(new, list):
        return [_onto(old[at] if at < len(old) else None, inner) for at, inner in enumerate(new)]
    return new


def _limited(complaints: list[str]) -> list[str]:
    return list(dict.fromkeys(complaints))[:MOST]


def _walk(value: Any, path: str, problems: list[str]) -> None:
    if isinstance(value, Members):
        keys: set[str] = set()
        for key, inner_value in value:
            inner = f"{path}.{key}" if path else key
            if key in keys:
                problems.append(f"duplicate field {shown(inner)}")
            keys.add(key)
            _walk(inner_value, inner, problems)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _walk(item, f"{path}[{index}]", problems)


class StrictError(ApiError):
    """ApiError 400 for an object refused only by strict decoding, whose errors are ``complaints``."""

    def __init__(self, message: str, complaints: list[str]) -> None:
        super().__init__(400, "BadRequest", message)
        self.complaints = complaints


def words(complaints: Iterable[str]) -> str:
    """The message of a strict decoding error with all complaints."""
    return f"strict decoding error: {', '.join(complaints)}"


_OPERATION: Final = frozenset({"op", "path", "from", "value"})


def operations(patch: Any) -> list[str]:
    """The errors of strict decoding in a JSON patch, whose objects may be ``Members``."""
    problems: list[str] = []
    for index, operation in enumerate(patch):
        keys: set[str] = set()
        for key, value in operation if isinstance(operation, Members) else operation.items():
            inner = f"[{index}].{key}"
            if key not in _OPERATION:
                problems.append(f"unknown field {shown(inner)}")
                continue
            if key in keys:
                problems.append(f"duplicate field {shown(inner)}")
            keys.add(key)
            _walk(value, inner, problems)
    return _limited(problems)
