"""The store's commits on disk: sqlite in write-ahead mode, written by a thread of its own.

Commits are written in order, a few ms after they are made and all of them at ``close``. ``kept`` waits for that, so
that no write is acknowledged that a killed process would lose. Only the newest commits can be lost, never one in
between. A second process is refused. A damaged file is reported and left as it is. While the disk can't be written,
writes are refused instead of lost.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from kgpu.base.errors import LabError
from kgpu.lab.embedded.core.model import StoredObject, decode
from kgpu.lab.embedded.status import ApiError, Object
from kgpu.lab.embedded.store import Key

log = logging.getLogger(__name__)

FILE: Final = "cluster.db"
BATCH_SECONDS: Final = 0.003
RETRY_SECONDS: Final = 1.0
FORMAT: Final = 1
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS objects (
    api_group TEXT NOT NULL, plural TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (api_group, plural, namespace, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS state (revision INTEGER NOT NULL);
"""
_PUT: Final = "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?)"
_DROP: Final = "DELETE FROM objects WHERE api_group = ? AND plural = ? AND namespace = ? AND name = ?"

Row = tuple[Key, StoredObject, bool]


class Journal:
    """The ``CommitLog`` of an ``ObjectStore``, made by ``Journal.open(folder)``."""

    def __init__(self, path: Path, lock: int) -> None:
        self._path = path
        self._lock = lock
        self._pending: list[Row] = []
        self._change = threading.Condition()
        self._closing = False
        self._failure = ""
        self._thread: threading.Thread | None = None
        self._written = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None

    @classmethod
    def open(cls, folder: Path) -> Journal:
        """The journal in ``folder``, which is made if needed. Raises LabError: in use, not writable, damaged."""
        path = folder / FILE
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LabError(
                f"can't keep the cluster's data in {folder}: {error.strerror}",
                "a folder that can be written",
                "name another one with --data, or change its owner",
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise LabError(
                f"the data in {folder} is in use by another cluster",
                "one process for one data folder",
                "stop the other one (kgpu lab down), or name another folder with --data",
            ) from error
        journal = cls(path, lock)
        try:
            journal._check()
        except sqlite3.Error as error:
            os.close(lock)
            raise _damaged(path, error) from error
        except LabError:
            os.close(lock)
            raise
        return journal

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        # Only a power loss may lose the last commits; the file stays whole even then.
        connection.execute("PRAGMA synchronous = NORMAL")
        return connection

    def _check(self) -> None:
        new = not self._path.exists()
        connection = self._connect()
        try:
            if new:
                os.chmod(self._path, 0o600)
                connection.executescript(_TABLES)
                connection.execute(f"PRAGMA user_version = {FORMAT}")
            (check,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if check != "ok":
                raise _damaged(self._path, check)
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version != FORMAT:
                raise LabError(
                    f"{self._path} is not a cluster's data, or that of another version (format {version})",
                    f"format {FORMAT}",
                    "name another folder with --data; nothing was changed in this one",
                )
        finally:
            connection.close()

    def load(self) -> tuple[int, Iterable[tuple[Key, Object]]]:
        """Return the last revision and every object. Raises LabError when the data can't be read."""
        connection = self._connect()
        try:
            row = connection.execute("SELECT max(revision) FROM state").fetchone()
            objects = list(self._objects(connection))
        except sqlite3.Error as error:
            raise _damaged(self._path, error) from error
        finally:
            connection.close()
        newest = max((int(obj["metadata"]["resourceVersion"]) for _, obj in objects), default=0)
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()
        return max(int(row[0] or 0), newest), objects

    def _objects(self, connection: sqlite3.Connection) -> Iterator[tuple[Key, Object]]:
        for group, plural, namespace, name, body in connection.execute("SELECT * FROM objects"):
            try:
                obj = decode(body)
                metadata = obj["metadata"]
                int(metadata["resourceVersion"])
                same = (metadata.get("namespace", ""), metadata["name"]) == (namespace, name)
            except (msgspec.DecodeError, TypeError, KeyError, ValueError) as error:
                raise _damaged(self._path, f"{plural} {namespace}/{name} can't be read") from error
            if not same:
                raise _damaged(self._path, f"{plural} {namespace}/{name} is another object")
            yield (group, plural), obj

    def append(self, key: Key, stored: StoredObject, removed: bool) -> None:
        """Queue one commit for writing. Raises ApiError 500 while the disk can't be written, 503 after ``close``."""
        if self._failure:
            raise self._refusal()
        with self._change:
            if self._closing:
                raise ApiError(503, "ServiceUnavailable", "the server is shutting down")
            self._pending.append((key, stored, removed))
            if len(self._pending) == 1:
                self._change.notify()

    async def kept(self, revision: int) -> None:
        """Return when the commits up to ``revision`` are on disk. Raises ApiError 500 when they can't be written."""
        with self._change:
            if not self._pending or self._pending[0][1].revision > revision:
                return
            self._loop = asyncio.get_running_loop()
            waiter = self._loop.create_future()
            self._waiting.append((revision, waiter))
        await waiter
        if self._failure:
            raise self._refusal()

    def _refusal(self) -> ApiError:
        return ApiError(500, "InternalError", f"Internal error occurred: can't write {self._path}: {self._failure}")

    def _wake(self) -> None:
        """Release the waiters of commits that are written by now, or all after a failure."""
        if self._loop is None:
            return
        with self._change:
            ready = []
            while self._waiting and (self._failure or self._waiting[0][0] <= self._written):
                ready.append(self._waiting.popleft()[1])
        if ready and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_release, ready)

    def close(self) -> None:
        """Write pending commits and release the lock. Raises LabError when they can't be written."""
        with self._change:
            self._closing = True
            self._change.notify()
        if self._thread is not None:
            self._thread.join()
        left = len(self._pending)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        if left:
            raise LabError(
                f"the last {left} changes of the cluster could not be written to {self._path}: {self._failure}",
                "a disk with space that can be written",
                "make space; what was written before is whole",
            )

    def _run(self) -> None:
        connection = self._connect()
        try:
            while True:
                with self._change:
                    while not self._pending and not self._closing:
                        self._change.wait()
                    # Wait shortly, so that more commits share the transaction; not when closing.
                    if not self._closing:
                        self._change.wait_for(lambda: self._closing, BATCH_SECONDS)
                    batch, closing = list(self._pending), self._closing
                if not batch:
                    return
                done = self._write(connection, batch)
                if done:
                    with self._change:
                        del self._pending[: len(batch)]
                        self._written = batch[-1][1].revision
                self._wake()
                if done:
                    continue
                if closing:
                    return
                with self._change:
                    self._change.wait_for(lambda: self._closing, RETRY_SECONDS)
        finally:
            connection.close()

    def _write(self, connection: sqlite3.Connection, batch: list[Row]) -> bool:
        try:
            connection.execute("BEGIN IMMEDIATE")
            for (group, plural), stored, removed in batch:
                where = (group, plural, stored.namespace, stored.name)
                if removed:
                    connection.execute(_DROP, where)
                else:
                    connection.execute(_PUT, (*where, stored.encoded()))
            connection.execute("DELETE FROM state")
            connection.execute("INSERT INTO state VALUES (?)", (batch[-1][1].revision,))
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if not self._failure:
                log.warning(
                    "can't write the cluster's data to %s: %s; writes are refused until it works", self._path, error
                )
            self._failure = str(error)
            return False
        self._failure = ""
        return True


def _release(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)


def _damaged(path: Path, why: object) -> LabError:
    return LabError(
        f"the cluster's data in {path} can't be read: {why}",
        "a file that this program has written",
        f"move {path.parent} away to begin anew, or restore it from a copy; nothing was changed in it",
    )
