"""What a control daemon writes, told in the log of this process: ``control.log`` lies in a folder that few look into.

Lines are told once, as they come. A file that was begun anew is read from its start; of a flood the end is told.
"""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path
from typing import Final

from kgpu.base.clock import Clock
from kgpu.base.threads import beside

log = logging.getLogger(__name__)

FILE_NAME: Final = "control.log"
LOOK_SECONDS: Final = 1.0
_MOST_BYTES: Final = 1 << 14
_LONGEST: Final = 500


class ControlLog:
    """The log of one resource's daemon. ``behind`` leaves out what is there already: a daemon that is taken over."""

    def __init__(self, folder: str, resource: str, *, behind: bool = False) -> None:
        self._path = Path(folder, FILE_NAME)
        self._resource = resource
        self._read = 0
        self._rest = b""
        if behind:
            self.news()

    async def follow(self, clock: Clock) -> None:
        """Tell new lines until cancelled."""
        while True:
            await beside(self.tell)
            await clock.sleep(LOOK_SECONDS)

    def tell(self) -> None:
        """Tell what is new."""
        for line in self.news():
            log.info("%s: %s", self._resource, line)

    def news(self) -> list[str]:
        """The whole lines that were written since the last call; none where the file can't be read."""
        try:
            handle = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return []
        try:
            raw = self._new_bytes(handle)
        except OSError:
            return []
        finally:
            os.close(handle)
        self._read += len(raw)
        *whole, self._rest = (self._rest + raw).split(b"\n")
        self._rest = self._rest[-_LONGEST:]
        texts = (line[:_LONGEST].decode(errors="replace").strip() for line in whole)
        return ["".join(c if c.isprintable() else "?" for c in text) for text in texts if text]

    def _new_bytes(self, handle: int) -> bytes:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            return b""
        if about.st_size < self._read:
            self._read, self._rest = 0, b""
        if about.st_size - self._read > _MOST_BYTES:
            self._read, self._rest = about.st_size - _MOST_BYTES, b""
        return os.pread(handle, _MOST_BYTES, self._read)
