"""Makes an archive of ``kgpu collect`` fit a size: what matters least is left out first, and what is left out is told.

Logs keep their last lines: what was said last is what failed. Sizes are estimated by compressing each file alone, which
is never better than compressing all together by more than the archive's own headers.
"""

from __future__ import annotations

import io
import tarfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kgpu.base.errors import ConfigError

LEVEL: Final = 6
_HEADER: Final = 160
"""Bytes that a file's name and header need, compressed, at most as a rule."""
_RESERVE: Final = 4096
"""For the file that tells what the archive is."""
_LEAST_LINES: Final = 20
"""Fewer lines of a log are not worth keeping."""


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """A file of the archive. Rank 0 is always in it, the highest rank is left out first. ``shortens``: its last lines
    are worth having without the first.
    """

    name: str
    data: bytes
    rank: int = 0
    shortens: bool = False

    @property
    def cost(self) -> int:
        """About how many bytes it adds to the archive."""
        return len(zlib.compress(self.data, LEVEL)) + _HEADER


def tarred(members: Sequence[ArchiveFile], *, taken: float, top: str) -> bytes:
    """The archive, a gzipped tar file. ``taken`` is its files' time, in seconds since 1970."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz", compresslevel=LEVEL) as archive:
        for member in members:
            info = tarfile.TarInfo(f"{top}/{member.name}")
            info.size, info.mtime, info.mode = len(member.data), int(taken), 0o600
            archive.addfile(info, io.BytesIO(member.data))
    return whole.getvalue()


def fitting(
    members: Sequence[ArchiveFile], most: int, build: Callable[[Sequence[ArchiveFile], Sequence[str]], bytes]
) -> tuple[bytes, tuple[str, ...]]:
    """The archive of at most ``most`` bytes, and what was left out, in words. ``build`` makes one from members and what
    is not among them. Raises ConfigError if not even what always is in it fits.
    """
    room = most - _RESERVE
    while True:
        kept, left_out = _chosen(members, room)
        data = build(kept, left_out)
        if len(data) <= most:
            return data, left_out
        if not any(member.rank for member in kept):
            raise ConfigError(
                f"--max-bytes {most} is too little: the least that makes sense needs {len(data)}",
                f"at least {len(data)}", "give more",
            )  # fmt: skip
        room -= max(len(data) - most, most // 50)


def _chosen(members: Sequence[ArchiveFile], room: int) -> tuple[list[ArchiveFile], tuple[str, ...]]:
    """What fits into ``room`` bytes; among members of one rank, small ones come first."""
    costs = {member.name: member.cost for member in members}
    kept: dict[str, ArchiveFile] = {}
    left_out = []
    for member in sorted(members, key=lambda member: (member.rank, costs[member.name], member.name)):
        fits = not member.rank or costs[member.name] <= room
        chosen = member if fits else _last_lines(member, room)
        if chosen is not None:
            kept[member.name] = chosen
            room -= chosen.cost
        if not fits:
            lines = 0 if chosen is None else chosen.data.count(b"\n")
            left_out.append(f"all but the last {lines} lines of {member.name}" if lines else member.name)
    return [kept[member.name] for member in members if member.name in kept], tuple(left_out)


def _last_lines(member: ArchiveFile, room: int) -> ArchiveFile | None:
    """The most of its last lines that fit, by halves; None if that is hardly anything, or it can't be shortened."""
    lines = member.data.splitlines(keepends=True) if member.shortens else []
    while len(lines) >= 2 * _LEAST_LINES:
        lines = lines[len(lines) // 2 :]
        shorter = ArchiveFile(member.name, b"".join(lines), member.rank)
        if shorter.cost <= room:
            return shorter
    return None
