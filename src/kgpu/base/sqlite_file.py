"""A SQLite file that remembers something: bounded, whole after a kill at any moment, and set aside when it is broken.

Several processes may use it at once. Calls block: whoever uses it from a loop does so beside it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kgpu.base.errors import HostError

PAGE: Final = 4096
BUSY_SECONDS: Final = 2.0
BROKEN: Final = ".broken"


class SqliteFile:
    """The file at ``path`` with the tables of ``schema``, of at most ``max_bytes``. ``remedy`` is what to do about one
    that can't be used.
    """

    def __init__(self, path: Path, schema: str, *, max_bytes: int, remedy: str) -> None:
        self.path = path
        self._schema = schema
        self._max_bytes = max_bytes
        self._remedy = remedy

    def connect(self) -> sqlite3.Connection:
        """A connection that any thread may use, one at a time. Raises HostError, sqlite3.Error."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise HostError(
                f"{self.path.parent} can't be made: {error.strerror or error}",
                "a folder for what is remembered",
                self._remedy,
            ) from error
        db = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute(f"PRAGMA max_page_count = {self._max_bytes // PAGE}")
            db.execute("PRAGMA journal_size_limit = 1048576")
            db.executescript(self._schema)
        except BaseException:
            db.close()
            raise
        return db

    @contextlib.contextmanager
    def open(self) -> Iterator[sqlite3.Connection]:
        """A connection for as long as the block lasts."""
        db = self.connect()
        try:
            yield db
        finally:
            db.close()

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """SQLite's errors are HostErrors."""
        try:
            yield
        except sqlite3.Error as error:
            raise self.obstacle(error) from error

    def obstacle(self, error: sqlite3.Error) -> HostError:
        """The error for a person."""
        return HostError(f"{self.path} can't be used: {error}", "a file that may be written", self._remedy)

    def set_aside(self) -> str:
        """Put a broken file out of the way. Returns what has become of it."""
        aside = self.path.with_name(self.path.name + BROKEN)
        with contextlib.suppress(OSError):
            os.replace(self.path, aside)
        for ending in ("-wal", "-shm"):
            with contextlib.suppress(OSError):
                self.path.with_name(self.path.name + ending).unlink()
        return f"{self.path} is broken and was set aside as {aside.name}"


def is_broken(error: sqlite3.DatabaseError) -> bool:
    """Whether the file itself is broken; else the disk, its permissions or another process are to blame."""
    return getattr(error, "sqlite_errorcode", None) in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB} or (
        isinstance(error, sqlite3.OperationalError) and "no such column" in str(error)
    )
