"""Tells when the kubelet's socket comes, goes or is replaced, also while its whole folder is missing.

A restarted kubelet makes a new socket under the old name, so the identity is inode and change time, never the name.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kgpu.base.inotify import ENTRIES, folder_changes, nearest_existing

POLL_SECONDS: Final = 1.0
"""Looks anyway this often: the net under kernel events, and the only way where inotify can't be had."""


@dataclass(frozen=True, slots=True)
class SocketIdentity:
    """One incarnation of a socket file."""

    inode: int
    changed_ns: int


def socket_identity(path: Path) -> SocketIdentity | None:
    """The socket that is there now; None when nothing, or something else than a socket, is."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    if not stat.S_ISSOCK(status.st_mode):
        return None
    return SocketIdentity(status.st_ino, status.st_ctime_ns)


class SocketWatch:
    """Follows one socket and, with ``folder_changes``, everything beside it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def folder_changes(self, poll_seconds: float = POLL_SECONDS) -> AsyncGenerator[SocketIdentity | None, None]:
        """The socket's identity now, and again after every change in its folder or ``poll_seconds``."""
        changes = folder_changes(lambda: {nearest_existing(self.path.parent)}, seconds=poll_seconds, mask=ENTRIES)
        async with contextlib.aclosing(changes):
            async for _ in changes:
                yield socket_identity(self.path)

    async def changes(self, poll_seconds: float = POLL_SECONDS) -> AsyncGenerator[SocketIdentity | None, None]:
        """The socket's identity now, and again whenever it is another one."""
        last: SocketIdentity | None = None
        first = True
        async for identity in self.folder_changes(poll_seconds):
            if first or identity != last:
                first, last = False, identity
                yield identity
