"""Removes kgpu's part from files: restores the original bytes if nobody has edited the file, else removes only kgpu's
keys.

kgpu's part is the difference between two versions of the file that are kept: the original, and what kgpu wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kgpu.host.engines.containerd import MARK
from kgpu.host.engines.edited import MISSING, decode, same
from kgpu.host.engines.json_edit import JsonFile
from kgpu.host.engines.model import EnginePlace
from kgpu.host.engines.template import without_block
from kgpu.host.engines.toml_edit import TomlFile
from kgpu.host.engines.toml_text import Path


class FileSyntax(StrEnum):
    """The syntax in which a file's keys are found."""

    TOML = "toml"
    JSON = "json"
    TEMPLATE = "template"


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """A file that kgpu has changed: the bytes before (None: there was no file) and the bytes that kgpu wrote."""

    path: str
    kind: FileSyntax
    original: bytes | None
    written: bytes | None


def kind_of(place: EnginePlace, path: str) -> FileSyntax:
    """The kind of one of this engine's files."""
    if path == place.template:
        return FileSyntax.TEMPLATE
    return FileSyntax.JSON if path.endswith(".json") else FileSyntax.TOML


def without(record: ChangedFile, current: bytes | None) -> bytes | None:
    """The file's content without kgpu's part. Raises ConfigError for a file that somebody has broken since."""
    if current == record.written:
        return record.original
    if current is None or current == record.original:
        return current
    if record.original is None and current.startswith(MARK.encode()):
        return None  # kgpu's own file, which says that edits of it are lost
    if record.kind is FileSyntax.TEMPLATE:
        rest = without_block(decode(current, record.path)).encode()
        left_over = record.original is None and rest == without_block((record.written or b"").decode()).encode()
        return None if left_over else rest
    file = _opened(record, current)
    original, written = _opened(record, record.original), _opened(record, record.written)
    _take_out(file, (), original.data, written.data)
    if record.original is None and not file.data:
        return None
    return file.encode()


def _opened(record: ChangedFile, raw: bytes | None) -> TomlFile | JsonFile:
    return JsonFile(raw, record.path) if record.kind is FileSyntax.JSON else TomlFile(raw, record.path)


def _take_out(file: TomlFile | JsonFile, path: Path, original: Mapping[str, Any], written: Mapping[str, Any]) -> None:
    """Restore each value that kgpu changed and that is still as kgpu wrote it."""
    for key in [*written, *(key for key in original if key not in written)]:
        place = (*path, key)
        before, ours = original.get(key, MISSING), written.get(key, MISSING)
        now = file.get(place, MISSING)
        if now is MISSING or (ours is not MISSING and before is not MISSING and same(before, ours)):
            continue
        if (
            isinstance(ours, Mapping)
            and isinstance(now, Mapping)
            and (before is MISSING or isinstance(before, Mapping))
        ):
            if before is MISSING and same(now, ours):
                file.delete(place)
            else:
                _take_out(file, place, before if isinstance(before, Mapping) else {}, ours)
                if before is MISSING and file.get(place) == {}:
                    file.delete(place)
        elif isinstance(ours, list) and isinstance(now, list) and (before is MISSING or isinstance(before, list)):
            _take_out_items(file, place, before if isinstance(before, list) else None, ours, now)
        elif ours is not MISSING and same(now, ours):
            if before is MISSING:
                file.delete(place)
            else:
                file.set(place, before)


def _take_out_items(
    file: TomlFile | JsonFile, path: Path, before: list[Any] | None, ours: list[Any], now: list[Any]
) -> None:
    if same(now, ours) and before is not None:
        file.set(path, before)
        return
    added = [item for item in ours if item not in (before or [])]
    rest = [item for item in now if item not in added]
    if before is None and not rest:
        file.delete(path)
    elif rest != now:
        file.set(path, rest)
