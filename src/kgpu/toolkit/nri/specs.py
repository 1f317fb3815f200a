"""The CDI specs on this node as an index, read again only where a file has changed.

A file that can't be read or is no spec is left out, as the runtime leaves it out, and said once.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from kgpu.base.errors import UserError
from kgpu.formats.cdi import Spec, parse_spec
from kgpu.toolkit.nri.devices import DeviceIndex, index_of

log = logging.getLogger(__name__)

MAX_BYTES: Final = 16 << 20
SUFFIXES: Final = (".yaml", ".json")
_Mark: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class _SpecsLook:
    """What was there at one look: each file's mark and spec, and the index of them all."""

    files: Mapping[Path, tuple[_Mark, Spec | None]] = field(default_factory=dict)
    index: DeviceIndex = field(default_factory=DeviceIndex)


class SpecFolders:
    """Folders of specs; later ones win."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = tuple(folders)
        self._seen = _SpecsLook()

    def index(self) -> DeviceIndex:
        """As the folders are now. Blocks for as long as the disk does; a second call meanwhile does no harm."""
        before = self._seen
        marks = {path: mark for folder in self._folders for path, mark in _entries(folder)}
        if marks != {path: mark for path, (mark, _) in before.files.items()}:
            files = {path: _spec(path, mark, before) for path, mark in marks.items()}
            order = {folder: place for place, folder in enumerate(self._folders)}
            index = index_of((order[path.parent], spec) for path, (_, spec) in files.items() if spec is not None)
            before = self._seen = _SpecsLook(files, index)
        return before.index


def _spec(path: Path, mark: _Mark, before: _SpecsLook) -> tuple[_Mark, Spec | None]:
    known = before.files.get(path)
    if known is not None and known[0] == mark:
        return known
    try:
        if mark[2] > MAX_BYTES:
            log.warning("%s is left out: %d bytes, %d at most", path, mark[2], MAX_BYTES)
            return mark, None
        return mark, parse_spec(path.read_bytes(), source=str(path))
    except UserError as problem:
        log.warning("%s", problem.one_line())
    except OSError as problem:
        log.warning("%s can't be read: %s", path, problem.strerror)
    return mark, None


def _entries(folder: Path) -> list[tuple[Path, _Mark]]:
    marks = []
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    for name in names:
        path = folder / name
        if path.suffix in SUFFIXES:
            try:
                status = os.stat(path)
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode):
                marks.append((path, (status.st_ino, status.st_mtime_ns, status.st_size)))
    return marks
