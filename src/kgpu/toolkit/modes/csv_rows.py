"""The CSV files of Tegra's board support package: lines ``type,path``, types dev, dir, lib and sym. Pure.

Total and bounded: whatever the bytes, there are rows and complaints. A bad line is left out with a complaint, as the
replaced program leaves it out.
"""

from __future__ import annotations

import enum
import fnmatch
import posixpath
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

MAX_BYTES: Final = 1 << 20
_MAX_COMPLAINTS: Final = 20


class CsvKind(enum.StrEnum):
    """What a row names: a device node, a folder, a library or other file, a symbolic link."""

    DEV = "dev"
    DIR = "dir"
    LIB = "lib"
    SYM = "sym"


@dataclass(frozen=True, slots=True)
class CsvRow:
    """One row; the path is inside the driver root."""

    kind: CsvKind
    path: str


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of files, each once, and what is wrong with other lines."""

    rows: tuple[CsvRow, ...]
    complaints: tuple[str, ...] = ()


def parse_rows(data: bytes, *, source: str) -> Rows:
    """The rows of one file; blank lines and those that begin with # say nothing."""
    rows: dict[CsvRow, None] = {}
    complaints: list[str] = []
    if len(data) > MAX_BYTES:
        return Rows((), (f"{source} is left out: {len(data)} bytes, more than {MAX_BYTES}",))
    for number, line in enumerate(data.decode("utf-8", errors="replace").splitlines(), start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        kind, comma, path = (part.strip() for part in text.partition(","))
        if not comma or kind not in CsvKind.__members__.values() or not _is_path(path):
            complaints.append(f"{source}, line {number} is left out: not dev, dir, lib or sym, a comma and a path")
        else:
            rows[CsvRow(CsvKind(kind), path)] = None
    if len(complaints) > _MAX_COMPLAINTS:
        more = len(complaints) - _MAX_COMPLAINTS
        complaints[_MAX_COMPLAINTS:] = [f"{source}: {more} more lines are left out"]
    return Rows(tuple(rows), tuple(complaints))


def without_links(rows: Iterable[CsvRow], patterns: Iterable[str]) -> tuple[CsvRow, ...]:
    """The rows less the links that a pattern matches; ``**/NAME`` matches by name, anything else by path."""
    by_name: list[str] = []
    by_path: list[str] = []
    for pattern in patterns:
        (by_name if pattern.startswith("**/") else by_path).append(pattern.removeprefix("**/"))

    def ignored(path: str) -> bool:
        name = posixpath.basename(path)
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in by_name) or any(
            fnmatch.fnmatchcase(path, pattern) for pattern in by_path
        )

    return tuple(row for row in rows if row.kind is not CsvKind.SYM or not ignored(row.path))


def _is_path(path: str) -> bool:
    return path.startswith("/") and path.isprintable() and ".." not in path.split("/")
