"""The folder ``LAB/nodes/host`` of the process that hosts a lab's nodes: its lock, its record, its log, its sockets.

A host that was killed may have left a folder of links elsewhere; it is recorded here, and removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kgpu.base.errors import LabError
from kgpu.base.files import write_atomic
from kgpu.lab import processes
from kgpu.lab.log_rotation import rotate
from kgpu.lab.processes import ProcessRecord

RECORD: Final = "process.json"
LOCK: Final = "lock"
SOCKETS: Final = "sockets"
LOG: Final = "log"
LOG_LIMIT: Final = 8 << 20  # bytes, after which a log is put aside in the place of the one before
LOG_LOOK_S: Final = 2.0
SOCKET_ROOM: Final = 50  # bytes that names of sockets in a node's folder may take, those of MPS daemons the longest
SOCKET_LIMIT: Final = 107
_PREFIX: Final = "kgpu-nodes-"


def make_private(nodes: Path, *, parents: bool = False) -> None:
    """Make the folder of the nodes, for this user alone: pods' Secrets and tokens are in it. Raises OSError."""
    nodes.mkdir(mode=0o700, parents=parents, exist_ok=True)
    if stat.S_IMODE(nodes.stat().st_mode) != 0o700:
        nodes.chmod(0o700)


@contextlib.contextmanager
def only_one(own: Path) -> Iterator[None]:
    """Hold the host's lock, which records this process. Raises LabError when another process hosts the nodes."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(processes.holding(own / LOCK))
        except BlockingIOError:
            raise LabError(
                f"another process hosts the nodes in {own.parent}", "one at a time", "end the other one"
            ) from None
        yield


def recorded(own: Path) -> ProcessRecord | None:
    """The running host, else the last one recorded. The starter writes one record, and the host another in its lock."""
    records = [processes.holder(own / RECORD), processes.holder(own / LOCK)]
    known = [record for record in records if record is not None]
    return next((record for record in known if processes.alive(record)), known[0] if known else None)


class ShortPaths:
    """Short paths to nodes' folders, for names of sockets: links in one folder that only this user can look into."""

    def __init__(self, own: Path) -> None:
        self._own = own
        self._folder: Path | None = None

    def to(self, folder: Path) -> Path:
        """``folder`` itself where it is short enough, else a link to it. Raises OSError, LabError."""
        if _fits(folder):
            return folder
        if self._folder is None:
            remove_links(self._own)
            self._folder = _make_folder()
            write_atomic(self._own / SOCKETS, f"{self._folder}\n", mode=0o600)
        link = self._folder / format(folder.stat().st_ino, "x")
        if not _fits(link):
            raise LabError(f"{link} is too long for the names of sockets", "a shorter path", "set XDG_RUNTIME_DIR")
        link.unlink(missing_ok=True)
        link.symlink_to(folder)
        return link

    def close(self) -> None:
        """Remove the links."""
        self._folder = None
        remove_links(self._own)


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) + SOCKET_ROOM <= SOCKET_LIMIT


def _make_folder() -> Path:
    """A new folder, made by nobody else. Raises OSError."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    for place in filter(None, (runtime, tempfile.gettempdir())):
        with contextlib.suppress(OSError):
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
            if _fits(folder / "0123456789abcdef"):
                return folder
            folder.rmdir()
    return Path(tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp"))


def remove_links(own: Path) -> None:
    """Remove the folder of links that a host recorded; nothing but links is removed from it."""
    try:
        folder = Path((own / SOCKETS).read_text().strip())
        about = folder.lstat()
    except (OSError, ValueError):
        return
    if folder.name.startswith(_PREFIX) and stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid():
        with contextlib.suppress(OSError):
            for entry in list(os.scandir(folder)):
                if entry.is_symlink():
                    os.unlink(entry.path)
            folder.rmdir()
    (own / SOCKETS).unlink(missing_ok=True)


async def keep_log_short(log: Path) -> None:
    """Call ``rotate`` periodically until cancelled."""
    while True:
        rotate(log, most=LOG_LIMIT)
        await asyncio.sleep(LOG_LOOK_S)
