"""JSON and YAML documents as objects, one by one: what is broken, or too large, spoils nothing else.

Memory follows what may be there, not what is written: a few bytes of JSON, such as ``{},``, are a hundred in memory. So
the values of a file are counted before they are read, and an object is no larger than an API server would take it.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import msgspec

from kgpu.base.errors import ConfigError
from kgpu.base.typed import decode
from kgpu.doctor.sources import texts
from kgpu.formats import yaml

MAX_LISTS: Final = 8  # within each other; kubectl prints one
MAX_OBJECT: Final = 8 * 1024 * 1024
"""Bytes of JSON. etcd takes 1.5 MiB, the API server a request of 3 MiB, and kubectl indents what it prints."""
MAX_VALUES: Final = 10_000_000
"""The most values in one JSON file: as many as 300 MB of pods have."""
MAX_PROBLEMS: Final = 50
_LIST_ENDS: Final = frozenset({"apiVersion", "kind", "metadata"})
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class DocumentSink(Protocol):
    """Where objects go, and what could not be read."""

    def take(self, one: dict[str, Any], /) -> None:
        """An object."""
        ...

    def problem(self, where: str, why: str, how: str = ..., /) -> None:
        """Something could not be read."""
        ...


class _RefusedError(ValueError):
    """JSON that is too much."""


class _List(msgspec.Struct):
    kind: Any = ""
    items: list[msgspec.Raw] | None = None


def of_json(reading: DocumentSink, name: str, data: bytes) -> None:
    """A List's items one by one, or any value; where it is no JSON as a whole, value after value."""
    if data.count(b",") + data.count(b"{") + data.count(b"[") > MAX_VALUES:
        reading.problem(name, f"it has more than {MAX_VALUES} values", "give it in smaller files")
        return
    try:
        _value(reading, name, data)
    except _RefusedError as error:
        reading.problem(name, str(error), "give the file without it")
    except _UNREADABLE as error:
        _values(reading, name, data, f"it is not JSON: {error}")


def _values(reading: DocumentSink, name: str, data: bytes, why: str) -> None:
    """Value after value; ``why`` it is not a single one."""
    problems: list[tuple[int, str]] = []
    read_any = False
    for line, value in texts.json_values(data):
        problem = value if isinstance(value, str) else _why(reading, name, value)
        read_any |= not problem
        if problem and len(problems) <= MAX_PROBLEMS:
            problems.append((line, problem))
    if not read_any:
        reading.problem(name, why)
        return
    for line, problem in problems:
        reading.problem(f"what begins at line {line + 1} of {name}", problem)


def _why(reading: DocumentSink, name: str, data: bytes) -> str:
    """Why a value can't be read, "" where it was."""
    try:
        _value(reading, name, data)
    except (_RefusedError, *_UNREADABLE) as error:
        return str(error)
    return ""


def _value(reading: DocumentSink, name: str, data: bytes | msgspec.Raw, depth: int = 0) -> None:
    """Raises _RefusedError, and one of _UNREADABLE for what is no JSON."""
    if depth > MAX_LISTS:
        raise _RefusedError(f"more than {MAX_LISTS} lists within each other")
    listed = _listed(data)
    if listed.items is None:
        _add(reading, _single(data), name)
        return
    of = listed.kind.removesuffix("List") if isinstance(listed.kind, str) else ""
    for position, raw in enumerate(listed.items):
        try:
            _item(reading, name, raw, of, depth + 1)
        except (_RefusedError, *_UNREADABLE) as error:
            reading.problem(f"item {position + 1} of {name}", str(error))


def _listed(data: bytes | msgspec.Raw) -> _List:
    """The items of a List, or of a plain array; without items for anything else."""
    try:
        if bytes(memoryview(data)[:64]).lstrip()[:1] == b"[":
            return _List(items=decode(data, list[msgspec.Raw]))
        return decode(data, _List)
    except _UNREADABLE:
        return _List()


def _item(reading: DocumentSink, name: str, raw: msgspec.Raw, of: str, depth: int) -> None:
    """One of a list of the kind ``of``."""
    if len(memoryview(raw)) > MAX_OBJECT:
        _value(reading, name, raw, depth)
        return
    one = msgspec.json.decode(raw)
    _add(reading, {"kind": of, **one} if of and isinstance(one, dict) else one, name, depth)


def _single(data: bytes | msgspec.Raw) -> Any:
    size = len(memoryview(data))
    if size > MAX_OBJECT:
        decode(data, msgspec.Raw)  # broken JSON is told as such, whatever its size
        raise _RefusedError(f"an object of {size} bytes, where no API server takes more than {MAX_OBJECT}")
    return msgspec.json.decode(data)


def _add(reading: DocumentSink, data: Any, name: str, depth: int = 0) -> None:
    if depth > MAX_LISTS:
        reading.problem(name, f"more than {MAX_LISTS} lists within each other")
    elif isinstance(data, list):
        for item in data:
            _add(reading, item, name, depth + 1)
    elif isinstance(data, dict) and isinstance(data.get("items"), list):
        of = str(data.get("kind") or "").removesuffix("List")
        for item in data["items"]:
            _add(reading, {"kind": of, **item} if of and isinstance(item, dict) else item, name, depth + 1)
    elif isinstance(data, dict):
        reading.take(data)


def of_yaml(reading: DocumentSink, name: str, data: bytes) -> None:
    """Document by document, and a List's items one by one: a broken one spoils no other, and memory stays small."""
    for line, chunk, loose in texts.yaml_chunks(data):
        where = f"what begins at line {line + 1} of {name}"
        try:
            document = yaml.load(chunk, source=name)
        except ConfigError as error:
            reading.problem(where, error.what, error.remedy)
            continue
        if loose and not _is_object(document):
            reading.problem(where, "it is neither an object nor the end of a list")
            continue
        _add(reading, document, name)


def _is_object(document: Any) -> bool:
    if not isinstance(document, dict):
        return document is None
    metadata = document.get("metadata")
    if isinstance(metadata, dict) and "name" in metadata:
        return "kind" in document
    return "items" in document or document.keys() <= _LIST_ENDS
