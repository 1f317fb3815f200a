"""What an agent, or the history of a cluster, remembers of usage, in one SQLite file.

Promises: what belongs together is written together, so that a kill at any moment neither loses nor repeats anything;
the file has a largest size and lines a largest age, the oldest go first; a broken file is set aside and told. Lines
have numbers that only grow, and the store a name: a reader's cursor is both, so that a store that began anew is read
from its beginning. Calls block: whoever uses it from a loop does so beside it, one call at a time.
"""

from __future__ import annotations

import sqlite3
import threading
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from kgpu.base.advice import Advice, Severity
from kgpu.base.sqlite_file import SqliteFile, is_broken
from kgpu.base.typed import read
from kgpu.formats.usage import RecordedGpu, RecordedNode, decode, encode
from kgpu.formats.usage_now import DAY_US, UsageBucket
from kgpu.usage.gathering import Gathered, UnitKey
from kgpu.usage.rollup import HOUR, rolled_up

DAY_SECONDS: Final = 86_400
PAGE_BYTES: Final = 2 << 20
"""Of lines in one answer."""
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS kept (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS line (
  id INTEGER PRIMARY KEY AUTOINCREMENT, node TEXT NOT NULL, device TEXT NOT NULL, at INTEGER NOT NULL,
  body BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS line_at ON line (at);
CREATE TABLE IF NOT EXISTS bucket (
  boot TEXT NOT NULL, end_us INTEGER NOT NULL, device TEXT NOT NULL, part TEXT NOT NULL, holder TEXT NOT NULL,
  body BLOB NOT NULL, PRIMARY KEY (end_us, device, part, holder)) WITHOUT ROWID;
"""
_REMEDY: Final = "look at the disk and the rights of the folder; usage is counted all the same, until the process ends"
_GATHERED: Final = "gathered"
_NAME: Final = "name"
_ROLLED: Final = "rolled"
_FEWER: Final = 0.9
"""What is left of a full file's lines after the oldest have gone,"""
SHORTENED: Final = 20
"""and how often they go for what has to be written."""


class StoredPage(NamedTuple):
    """Lines after a cursor, each with its end, and the cursor after them; ``more`` are there."""

    cursor: str
    lines: tuple[bytes, ...]
    more: bool


class UsageStore:
    """The file at ``path``; ``days`` is how long lines are kept, ``cache_kib`` what SQLite holds of it in memory.

    Every method raises HostError when the disk fails.
    """

    def __init__(self, path: Path, *, days: float, max_bytes: int, cache_kib: int = 256) -> None:
        self.path = path
        self._file = SqliteFile(path, _SCHEMA, max_bytes=max_bytes, remedy=_REMEDY)
        self._cache_kib = cache_kib
        self._seconds = int(days * DAY_SECONDS)
        self._db: sqlite3.Connection | None = None
        self._lock = threading.Lock()
        self._cleaned_at = 0
        self.name = ""

    def open(self) -> list[Advice]:
        """Open it, and return what there is to tell. A broken file is set aside."""
        advice: list[Advice] = []
        with self._lock, self._file.translated():
            try:
                self._connect()
            except sqlite3.DatabaseError as error:
                if not is_broken(error):
                    raise
                advice.append(_lost(self._file.set_aside(), str(error)))
                self._connect()
        return advice

    def _connect(self) -> sqlite3.Connection:
        self._close()
        db = self._db = self._file.connect()
        db.execute(f"PRAGMA cache_size = -{self._cache_kib}")
        db.execute("PRAGMA wal_autocheckpoint = 128")
        db.execute("INSERT OR IGNORE INTO kept VALUES (?, ?)", (_NAME, uuid.uuid4().hex))
        self.name = str(db.execute("SELECT value FROM kept WHERE key = ?", (_NAME,)).fetchone()[0])
        return db

    def close(self) -> None:
        """Close it; what was written stays."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._db is not None:
            db, self._db = self._db, None
            with suppress(sqlite3.Error):
                db.close()

    def save(
        self, lines: Sequence[RecordedGpu | RecordedNode], *, gathered: Gathered | None = None,
        buckets: Iterable[tuple[UnitKey, UsageBucket]] = (), kept: Iterable[tuple[str, bytes]] = (),
    ) -> None:  # fmt: skip
        """Write all of it, or nothing. Where there is no room the oldest lines go."""
        with self._lock, self._file.translated():
            for left in reversed(range(SHORTENED)):
                try:
                    self._save(lines, gathered, list(buckets), list(kept))
                    return
                except sqlite3.OperationalError as error:
                    if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_FULL or not left:
                        raise
                    self._shorten()

    def _save(
        self, lines: Sequence[RecordedGpu | RecordedNode], gathered: Gathered | None,
        buckets: Sequence[tuple[UnitKey, UsageBucket]], kept: Sequence[tuple[str, bytes]],
    ) -> None:  # fmt: skip
        db = self._db or self._connect()
        db.execute("BEGIN IMMEDIATE")
        try:
            db.executemany(
                "INSERT INTO line (node, device, at, body) VALUES (?, ?, ?, ?)",
                [
                    (one.node, one.device if isinstance(one, RecordedGpu) else "", int(one.at.timestamp()), encode(one))
                    for one in lines
                ],
            )
            if gathered is not None:
                kept = [*kept, (_GATHERED, msgspec.json.encode(gathered))]
                db.executemany(
                    "INSERT OR REPLACE INTO bucket VALUES (?, ?, ?, ?, ?, ?)",
                    [(gathered.boot, one.end_us, *key, msgspec.json.encode(one)) for key, one in buckets],
                )
                db.execute(
                    "DELETE FROM bucket WHERE end_us < ? OR boot != ?", (gathered.uptime_us - DAY_US, gathered.boot)
                )
            db.executemany("INSERT OR REPLACE INTO kept VALUES (?, ?)", kept)
            self._clean(db, lines)
            db.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                db.execute("ROLLBACK")
            raise

    def _clean(self, db: sqlite3.Connection, lines: Sequence[RecordedGpu | RecordedNode]) -> None:
        """Delete lines that are too old, by the newest one's time; once an hour of those."""
        newest = max((int(one.at.timestamp()) for one in lines), default=0)
        if abs(newest - self._cleaned_at) < 3600 or not newest:
            return
        self._cleaned_at = newest
        # Not by one line alone: a clock that is wrong for a moment must not empty the history.
        recent = db.execute("SELECT at FROM line ORDER BY at DESC LIMIT 1 OFFSET 50").fetchone()
        if recent is not None:
            db.execute("DELETE FROM line WHERE at < ?", (recent[0] - self._seconds,))

    def _shorten(self) -> None:
        db = self._db or self._connect()
        first, last = db.execute("SELECT min(id), max(id) FROM line").fetchone()
        if first is not None:
            db.execute("DELETE FROM line WHERE id <= ?", (last - int((last - first) * _FEWER),))

    def roll_up(self, until: int) -> int:
        """Make one of the lines of each device and hour before ``until`` (seconds since 1970), a day at a time. Returns
        how many lines went.
        """
        with self._lock, self._file.translated():
            db = self._db or self._connect()
            row = db.execute("SELECT value FROM kept WHERE key = ?", (_ROLLED,)).fetchone()
            first = db.execute("SELECT min(at) FROM line").fetchone()[0]
            if first is None:
                return 0
            begin = max(int(row[0]) if row is not None else 0, first // HOUR * HOUR)
            end = min(until // HOUR * HOUR, begin + DAY_SECONDS)
            if begin >= end:
                return 0
            db.execute("BEGIN IMMEDIATE")
            try:
                gone = sum(self._roll_hour(db, hour) for hour in range(begin, end, HOUR))
                db.execute("INSERT OR REPLACE INTO kept VALUES (?, ?)", (_ROLLED, str(end)))
                db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    db.execute("ROLLBACK")
                raise
            return gone

    def _roll_hour(self, db: sqlite3.Connection, hour: int) -> int:
        by_device: dict[tuple[str, str], list[tuple[int, RecordedGpu]]] = {}
        query = "SELECT id, body FROM line WHERE at >= ? AND at < ? AND device != '' ORDER BY id"
        for number, body in db.execute(query, (hour, hour + HOUR)).fetchall():
            line = decode(bytes(body).rstrip(b"\n"), place=str(self.path))
            if isinstance(line, RecordedGpu):
                by_device.setdefault((line.node, line.device), []).append((number, line))
        gone = 0
        for placed in by_device.values():
            left = rolled_up([line for _, line in placed])
            if len(left) == len(placed):
                continue
            # The last numbers stay, so that cursors go on.
            numbers = [number for number, _ in placed]
            dropped, kept = numbers[: -len(left)], numbers[-len(left) :]
            db.executemany("DELETE FROM line WHERE id = ?", [(number,) for number in dropped])
            db.executemany(
                "UPDATE line SET body = ?, at = ? WHERE id = ?",
                [(encode(line), int(line.at.timestamp()), number) for number, line in zip(kept, left, strict=True)],
            )
            gone += len(dropped)
        return gone

    def load(self) -> tuple[Gathered | None, dict[UnitKey, list[UsageBucket]]]:
        """The counters to go on from, and the stretches of their boot, the oldest first."""
        with self._lock, self._file.translated():
            db = self._db or self._connect()
            row = db.execute("SELECT value FROM kept WHERE key = ?", (_GATHERED,)).fetchone()
            gathered = read(bytes(row[0]).decode("utf-8", "replace"), Gathered) if row is not None else None
            return gathered, self._buckets(db, gathered.boot, 0) if gathered is not None else {}

    def buckets(self, boot: str, since_us: int) -> dict[UnitKey, list[UsageBucket]]:
        """The stretches of a boot that ended since then."""
        with self._lock, self._file.translated():
            return self._buckets(self._db or self._connect(), boot, since_us)

    def _buckets(self, db: sqlite3.Connection, boot: str, since_us: int) -> dict[UnitKey, list[UsageBucket]]:
        query = "SELECT device, part, holder, body FROM bucket WHERE boot = ? AND end_us >= ? ORDER BY end_us"
        found: dict[UnitKey, list[UsageBucket]] = {}
        for device, part, holder, body in db.execute(query, (boot, since_us)):
            bucket = read(bytes(body).decode("utf-8", "replace"), UsageBucket)
            if bucket is not None:
                found.setdefault((device, part, holder), []).append(bucket)
        return found

    def kept(self, key: str) -> bytes | None:
        """What was kept under a key."""
        with self._lock, self._file.translated():
            row = (self._db or self._connect()).execute("SELECT value FROM kept WHERE key = ?", (key,)).fetchone()
            return None if row is None else bytes(row[0])

    def keep(self, key: str, value: bytes) -> None:
        """Keep a value under a key."""
        self.save((), kept=((key, value),))

    def page(self, cursor: str, *, until: int | None = None, since: int = 0, most: int = PAGE_BYTES) -> StoredPage:
        """The lines after the cursor, "" for all. ``since`` and ``until`` are seconds since 1970."""
        name, _, number = cursor.partition(":")
        after = int(number) if name == self.name and number.isascii() and number.isdecimal() and len(number) < 19 else 0
        query = "SELECT id, body FROM line WHERE id > ? AND at >= ? AND at <= ? ORDER BY id"
        lines: list[bytes] = []
        size, more = 0, False
        with self._lock, self._file.translated():
            db = self._db or self._connect()
            for found, body in db.execute(query, (after, since, 1 << 62 if until is None else until)):
                if size + len(body) > most and lines:
                    more = True
                    break
                lines.append(bytes(body))
                size, after = size + len(body), found
        return StoredPage(f"{self.name}:{after}", tuple(lines), more)


def _lost(what: str, why: str) -> Advice:
    return Advice(
        what=what, why=why, severity=Severity.WARNING, reason="UsageHistoryLost",
        remedy="nothing: counting goes on; what was used before is forgotten here",
    )  # fmt: skip
