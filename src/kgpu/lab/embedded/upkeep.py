"""Upkeep of a server that runs for weeks: its own log is bounded, and it ends when its folder is gone.

Only the server's own log, ``logs/server.log`` in its folder, is ever rotated; output to anywhere else is left alone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from kgpu.lab.log_rotation import rotate

LOG: Final = Path("logs") / "server.log"
LOG_BYTES: Final = 10 * 2**20
"""A log larger than this becomes ``server.log.1``, which replaces the one before."""
LOG_PERIOD_S: Final = 2.0
FOLDER_PERIOD_S: Final = 3.0

log = logging.getLogger(__name__)


class FileIdentity(NamedTuple):
    """A file's identity, independent of its name."""

    device: int
    inode: int

    @classmethod
    def of(cls, stat: os.stat_result) -> FileIdentity:
        return cls(stat.st_dev, stat.st_ino)


async def until_gone(path: Path, held: FileIdentity, *, period: float = FOLDER_PERIOD_S) -> None:
    """Return once ``path`` is no longer the file ``held``: it was removed, moved or replaced."""
    while True:
        if not _is(path, held):
            return
        await asyncio.sleep(period)


def _is(path: Path, held: FileIdentity) -> bool:
    try:
        return FileIdentity.of(path.stat()) == held
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:  # such as a mount that does not answer: that is no removal
        log.debug("%s: %s", path, error)
        return True


async def bound_log(path: Path, *, most: int = LOG_BYTES, period: float = LOG_PERIOD_S) -> None:
    """Keep the log at ``path`` bounded, until cancelled."""
    while True:
        rotate(path, most=most)
        await asyncio.sleep(period)


class Sparing(logging.Filter):
    """Lets at most ``most`` records of the libraries' loggers pass in ``period`` seconds, and all of ours.

    Clients can cause such records: one for each connection that sends invalid data.
    """

    def __init__(
        self, names: tuple[str, ...] = ("asyncio", "uvicorn"), *, most: int = 20, period: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        super().__init__()
        self._names = names
        self._most = most
        self._period = period
        self._clock = clock
        self._begun = clock()
        self._count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.partition(".")[0] not in self._names:
            return True
        now = self._clock()
        if now - self._begun >= self._period:
            left_out = max(self._count - self._most, 0)
            self._begun, self._count = now, 0
            if left_out:
                record.msg = f"{record.getMessage()} ({left_out} records of libraries were left out before this one)"
                record.args = None
        self._count += 1
        return self._count <= self._most


def spare_log() -> None:
    """Add ``Sparing`` to the root logger's handlers."""
    sparing = Sparing()
    for handler in logging.getLogger().handlers:
        handler.addFilter(sparing)
