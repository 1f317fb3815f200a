"""Waits for changes in folders, which the kernel reports by inotify; on the asyncio loop, without a dependency.

``Inotify`` coalesces: ``wait`` says that something happened in a watched folder since the last ``wait``, and the
caller looks for itself what is true now. That survives queue overflows, renamed folders and everything else that makes
single events unreliable. Where inotify can't be had (no instances left), waiting falls back to the timeout alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import struct
import weakref
from collections.abc import AsyncGenerator, Callable, Iterable
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
IN_UNMOUNT: Final = 0x2000
IN_Q_OVERFLOW: Final = 0x4000
IN_IGNORED: Final = 0x8000
IN_ONLYDIR: Final = 0x01000000
IN_MASK_ADD: Final = 0x20000000

ENTRIES: Final = IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR
"""Names that come and go in a folder."""
CONTENT: Final = ENTRIES | IN_CLOSE_WRITE
"""The same, and files that were written."""


_EVENT: Final = struct.Struct("iIII")  # which watch, what, a cookie, and how long the name behind it is
_BUFFER: Final = 65536


class _Kernel:
    """The inotify instance of one loop. All watchers share it: a user may have few instances, usually 128."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._watchers: dict[int, dict[Inotify, int]] = {}  # by watch: who asked for it, and for what
        self._views: set[Inotify] = set()
        self.fd: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd >= 0:
            loop.add_reader(self.fd, self._drain)

    def join(self, view: Inotify) -> None:
        """Add a view to report to."""
        self._views.add(view)

    def leave(self, view: Inotify) -> None:
        """Remove the view; the last one to leave closes the instance."""
        self._views.discard(view)
        if not self._views:
            self.close()

    def add(self, view: Inotify, folder: Path, mask: int) -> int:
        """Watch a folder for a view; returns the watch, -1 where there is no such folder."""
        # Of one folder there is one watch, whoever asks: what it tells only grows, and each view is told its own.
        watch: int = self._libc.inotify_add_watch(self.fd, os.fsencode(folder), ctypes.c_uint32(mask | IN_MASK_ADD))
        if watch >= 0:
            self._watchers.setdefault(watch, {})[view] = mask
        return watch

    def remove(self, view: Inotify, watch: int) -> None:
        """Report this watch to the view no longer."""
        watchers = self._watchers.get(watch, {})
        watchers.pop(view, None)
        if not watchers and self._watchers.pop(watch, None) is not None:
            self._libc.inotify_rm_watch(self.fd, watch)

    def _drain(self) -> None:
        try:
            while data := os.read(self.fd, _BUFFER):
                self._tell(data)
        except BlockingIOError:
            return
        except OSError:
            self.close()

    def _tell(self, data: bytes) -> None:
        start = 0
        while start < len(data):
            watch, what, _, name = _EVENT.unpack_from(data, start)
            start += _EVENT.size + name
            if what & IN_Q_OVERFLOW:  # something was lost, and nobody knows whose it was
                for view in self._views:
                    view.notify()
                continue
            for view, mask in self._watchers.get(watch, {}).items():
                if what & (mask | IN_IGNORED | IN_UNMOUNT):
                    view.notify()
            if what & IN_IGNORED:  # the folder has gone, and its watch with it
                self._watchers.pop(watch, None)

    def close(self) -> None:
        """Close the instance; nothing is reported any more."""
        if self.fd >= 0:
            self._loop.remove_reader(self.fd)
            os.close(self.fd)
            self.fd = -1
        self._watchers.clear()
        if _KERNELS.get(self._loop) is self:  # it holds the loop, which would stay for ever
            del _KERNELS[self._loop]
        for view in self._views:  # whoever waits looks again, and watches with another instance
            view.notify()


_KERNELS: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Kernel]] = weakref.WeakKeyDictionary()


def _kernel() -> _Kernel:
    """The running loop's instance; if the kernel refused one before, try again."""
    loop = asyncio.get_running_loop()
    kernel = _KERNELS.get(loop)
    if kernel is None or kernel.fd < 0:
        kernel = _KERNELS[loop] = _Kernel(loop)
    return kernel


class Inotify:
    """Watches folders. Make it inside a running loop; close it when done. All of a loop share one kernel instance."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._watched: dict[Path, int] = {}
        self._kernel = _kernel()
        self._kernel.join(self)
        self._closed = False

    @property
    def available(self) -> bool:
        """False when the kernel gave no instance: ``wait`` then only ever times out."""
        return not self._closed and self._kernel.fd >= 0

    def watch(self, folders: Iterable[Path], mask: int = ENTRIES) -> None:
        """Watch exactly these folders from now on; those that don't exist are left out."""
        wanted = set(folders)
        if not self._rejoined():
            return
        before = set(self._watched.values())
        for gone in set(self._watched) - wanted:
            del self._watched[gone]
        for folder in wanted:
            # Asking again for a watched folder is cheap, and finds the new one when it was removed and made again.
            watch = self._kernel.add(self, folder, mask)
            if watch >= 0:
                self._watched[folder] = watch
            else:
                self._watched.pop(folder, None)
        for watch in before - set(self._watched.values()):
            self._kernel.remove(self, watch)

    def _rejoined(self) -> bool:
        """Whether there is an instance; if the kernel has refused or closed it, try to get another."""
        if not self._closed and self._kernel.fd < 0:
            self._kernel = _kernel()
            self._kernel.join(self)
            self._watched.clear()
        return self.available

    async def wait(self, seconds: float) -> bool:
        """True as soon as something happened since the last ``wait``, False after ``seconds``."""
        # Not wait_for: on Python 3.11 it swallows a cancellation that comes together with the event.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        happened = self._event.is_set()
        self._event.clear()
        return happened

    def notify(self) -> None:
        """Something happened in a watched folder."""
        self._event.set()

    def close(self) -> None:
        """Stop watching."""
        if self._closed:
            return
        self._closed = True
        for watch in set(self._watched.values()):
            self._kernel.remove(self, watch)
        self._watched.clear()
        self._kernel.leave(self)

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
    """The folders to watch for files that may be symbolic links: the link's and its target's.

    A ConfigMap volume swaps the link ``..data`` beside the file; a linked file changes in its own folder.
    """
    return {nearest_existing(folder) for file in files for folder in (file.parent, file.resolve().parent)}


async def folder_changes(
    folders: Callable[[], Iterable[Path]], *, seconds: float, mask: int = CONTENT
) -> AsyncGenerator[bool, None]:
    """Yield now, after every change in the folders (True), and after ``seconds`` without one (False).

    The folders are watched before each yield: what happens in between ends the next wait at once.
    """
    async with Inotify() as inotify:
        happened = False
        while True:
            inotify.watch(folders(), mask)
            yield happened
            happened = await inotify.wait(seconds)


async def follow_folders(
    folders: Callable[[], Iterable[Path]], look: Callable[[], object], *, seconds: float, mask: int = CONTENT
) -> None:
    """Call ``look`` now, after every change in the folders, and every ``seconds``; until cancelled."""
    async with contextlib.aclosing(folder_changes(folders, seconds=seconds, mask=mask)) as changes:
        async for _ in changes:
            look()
