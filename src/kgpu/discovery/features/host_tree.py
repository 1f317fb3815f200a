"""Bounded reading of /sys, /proc and small files below a root. What can't be read is empty; nothing here raises.

A container with only parts of the host's root has no ``/proc`` there, and uses its own, which is the same kernel's.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MAX_TEXT: Final = 1 << 20
MAX_FOLDERS: Final = 8192
_MAX_LINKS: Final = 8
_RANGE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class HostTree:
    """A node's files. ``root`` stands for the host's ``/``."""

    root: Path

    @property
    def proc(self) -> Path:
        """The folder of the kernel's files: below the root, or this process's own for one with sysfs but no /proc."""
        below = self.root / "proc"
        return below if below.exists() or not (self.root / "sys/devices").is_dir() else Path("/proc")

    def text(self, name: str) -> str:
        return text(self.root / name)

    def proc_text(self, name: str) -> str:
        return text(self.proc / name)

    def folders(self, name: str) -> list[Path]:
        return folders(self.root / name)

    def text_inside(self, name: str) -> str:
        """The text of a file below the root; an absolute link refers to the root's own tree."""
        path = self.root / name
        for _ in range(_MAX_LINKS):
            try:
                target = os.readlink(path)
            except OSError:
                return text(path)
            path = self.root / target.lstrip("/") if target.startswith("/") else path.parent / target
        return ""


def text(path: Path) -> str:
    """The file's text without surrounding white space, "" if it can't be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(MAX_TEXT).strip()
    except (OSError, ValueError):
        return ""


def folders(folder: Path) -> list[Path]:
    """What is in a folder, sorted; nothing if it can't be read."""
    try:
        return [folder / name for name in sorted(os.listdir(folder))[:MAX_FOLDERS]]
    except OSError:
        return []


def files(folder: Path, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The texts of these files of a folder that there are, by name."""
    for name in names:
        found = text(folder / name)
        if found:
            yield name, found


def pairs(lines: str, sign: str) -> Mapping[str, str]:
    """Lines ``key<sign>value``; of two for one key the first counts."""
    found: dict[str, str] = {}
    for line in lines.splitlines():
        key, cut, value = line.partition(sign)
        if cut:
            found.setdefault(key.strip(), value.strip())
    return found


def number(found: str) -> int:
    return int(found) if found.isascii() and found.isdecimal() and len(found) < 19 else 0


def count(ranges: str) -> int:
    """How many numbers a list such as ``0-3,8`` has; 0 for what is no such list."""
    total = 0
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if not _is_number(first) or (last and not _is_number(last)):
            return 0
        total += int(last or first) - int(first) + 1
    return min(total, _RANGE)


def _is_number(found: str) -> bool:
    return found.isascii() and found.isdecimal() and len(found) < 10
