"""Fields that a body has more than once, in the words of the real server's strict decoders.

JSON: each is named by its path, where the decoder comes upon it again. YAML: the parser's one complaint, with lines.
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
"""Complaints of one decoding; the real decoder stops to note them."""
_YAML: Final = "yaml: unmarshal errors:\n"
_CONVERTING: Final = "error converting YAML to JSON: "


@dataclass(frozen=True, slots=True)
class Repeated:
    """A body with repeated fields: its members as written (JSON), or the lines of the YAML parser's complaint."""

    members: Any = None
    lines: tuple[str, ...] = ()

    def typed(self, node: SchemaNode, unknown: list[str]) -> list[str]:
        """Every complaint of a decoder of that type; ``unknown`` are those about fields that it does not have."""
        if self.lines:
            return [_of_lines(self.lines), *unknown]
        return _limited(strict.complaints(self.members, node))

    def merged(self, value: Any) -> Any:
        """``value``, in which the last of a field counts, as a type has it: objects and lists are decoded over those
        that were there before.
        """
        return value if self.members is None else _merged(self.members)

    def untyped(self) -> list[str]:
        """The complaints of a decoder that takes any field."""
        if self.lines:
            return [_of_lines(self.lines)]
        found: list[str] = []
        _walk(self.members, "", found)
        return _limited(found)

    def applied(self) -> str:
        """The complaint about a configuration that is applied."""
        return _CONVERTING + _of_lines(self.lines)


def yaml_lines(repeated: Iterable[tuple[int, Any]]) -> tuple[str, ...]:
    """What the YAML parser says of each key that was there already; rows of (line, key)."""
    return tuple(f"line {line}: key {_key(key)} already set in map" for line, key in repeated)


def _key(key: Any) -> str:
    if isinstance(key, str):
        return shown(key)
    return "<nil>" if key is None else str(key).lower()


def _of_lines(lines: tuple[str, ...]) -> str:
    return _YAML + "\n".join(f"  {line}" for line in lines)


def warnings(complaints: Iterable[str]) -> list[str]:
    """Each on its own, as Warning headers have them."""
    found: list[str] = []
    for one in complaints:
        inner = one.removeprefix(_CONVERTING)
        found += [line.strip() for line in inner.removeprefix(_YAML).split("\n")] if inner.startswith(_YAML) else [one]
    return found


def _merged(value: Any) -> Any:
    if isinstance(value, Members):
        found: dict[str, Any] = {}
        for key, one in value:
            found[key] = _onto(found.get(key), _merged(one))
        return found
    return [_merged(one) for one in value] if isinstance(value, list) else value


def _onto(old: Any, new: Any) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{key: _onto(old.get(key), one) for key, one in new.items()}}
    if isinstance(old, list) and isinstance(new, list):
        return [_onto(old[at] if at < len(old) else None, one) for at, one in enumerate(new)]
    return new


def _limited(complaints: list[str]) -> list[str]:
    return list(dict.fromkeys(complaints))[:MOST]


def _walk(value: Any, path: str, found: list[str]) -> None:
    if isinstance(value, Members):
        seen: set[str] = set()
        for key, one in value:
            inner = f"{path}.{key}" if path else key
            if key in seen:
                found.append(f"duplicate field {shown(inner)}")
            seen.add(key)
            _walk(one, inner, found)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _walk(item, f"{path}[{index}]", found)


class StrictError(ApiError):
    """400: an object that is refused for nothing but what strict decoding found, which is ``complaints``."""

    def __init__(self, message: str, complaints: list[str]) -> None:
        super().__init__(400, "BadRequest", message)
        self.complaints = complaints


def words(complaints: Iterable[str]) -> str:
    """All of them in one sentence."""
    return f"strict decoding error: {', '.join(complaints)}"


_OPERATION: Final = frozenset({"op", "path", "from", "value"})


def operations(patch: Any) -> list[str]:
    """What strict decoding says of a JSON patch; its objects may be ``Members``."""
    found: list[str] = []
    for index, operation in enumerate(patch):
        seen: set[str] = set()
        for key, value in operation if isinstance(operation, Members) else operation.items():
            inner = f"[{index}].{key}"
            if key not in _OPERATION:
                found.append(f"unknown field {shown(inner)}")
                continue
            if key in seen:
                found.append(f"duplicate field {shown(inner)}")
            seen.add(key)
            _walk(value, inner, found)
    return _limited(found)
