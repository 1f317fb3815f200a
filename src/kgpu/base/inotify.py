"""Being told by the kernel when something in a folder changes, on the asyncio loop, without a dependency.

``Inotify`` coalesces: ``wait`` says that something happened in a watched folder since the last ``wait``, and the
caller looks for itself what is true now. That survives queue overflows, renamed folders and everything else that makes
single events unreliable. Where inotify can't be had (no instances left), waiting falls back to the timeout alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Self

IN_MODIFY: Final = 0x2
IN_ATTRIB: Final = 0x4
IN_CLOSE_WRITE: Final = 0x8
IN_MOVED_FROM: Final = 0x40
IN_MOVED_TO: Final = 0x80
IN_CREATE: Final = 0x100
IN_DELETE: Final = 0x200
IN_DELETE_SELF: Final = 0x400
IN_MOVE_SELF: Final = 0x800
IN_ONLYDIR: Final = 0x01000000

ENTRIES: Final = IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR
"""Names that come and go in a folder."""
CONTENT: Final = ENTRIES | IN_CLOSE_WRITE
"""The same, and files that were written."""


class Inotify:
    """Watches folders. Make it inside a running loop; close it when done."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._watched: dict[Path, int] = {}
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd >= 0:
            self._loop.add_reader(self.fd, self._drain)

    @property
    def available(self) -> bool:
        """False when the kernel gave no instance: ``wait`` then only ever times out."""
        return self.fd >= 0

    def watch(self, folders: Iterable[Path], mask: int = ENTRIES) -> None:
        """Watch exactly these folders from now on; those that don't exist are left out."""
        wanted = set(folders)
        if not self.available:
            return
        for gone in set(self._watched) - wanted:
            self._libc.inotify_rm_watch(self.fd, self._watched.pop(gone))
        for folder in wanted:
            # Asking again for a watched folder is cheap, and finds the new one when it was removed and made again.
            descriptor = self._libc.inotify_add_watch(self.fd, os.fsencode(folder), ctypes.c_uint32(mask))
            if descriptor >= 0:
                self._watched[folder] = descriptor
            else:
                self._watched.pop(folder, None)

    async def wait(self, seconds: float) -> bool:
        """True as soon as something happened since the last ``wait``, False after ``seconds``."""
        # Not wait_for: on Python 3.11 it swallows a cancellation that comes together with the event.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        happened = self._event.is_set()
        self._event.clear()
        return happened

    def _drain(self) -> None:
        try:
            while os.read(self.fd, 65536):
                self._event.set()
        except BlockingIOError:
            return
        except OSError:
            self.close()

    def close(self) -> None:
        """Stop watching."""
        if self.fd >= 0:
            self._loop.remove_reader(self.fd)
            os.close(self.fd)
            self.fd = -1
        self._watched.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


def nearest_existing(folder: Path) -> Path:
    """``folder`` itself, or the closest ancestor that exists: what to watch while it is missing."""
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    return folder


def homes(*files: Path) -> set[Path]:
    """The folders to watch for files that may be links: of the link and of what it leads to.

    A ConfigMap volume swaps the link ``..data`` beside the file; a linked file changes in its own folder.
    """
    return {nearest_existing(folder) for file in files for folder in (file.parent, file.resolve().parent)}
