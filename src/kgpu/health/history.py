"""What health remembers, in one SQLite file: memories of the GPUs, where in the kernel log it is, what happened when.

Promises: what belongs together is written together, so that a kill at any moment neither loses nor repeats anything;
the file has a largest size and history a largest age; a file that is broken is set aside and told, and work goes on
with a new one. Calls block: whoever uses it from a loop does so beside it. Several processes may use it at once.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from kgpu.base.advice import Advice, Severity
from kgpu.base.errors import HostError
from kgpu.base.sqlite_file import SqliteFile, is_broken
from kgpu.base.typed import decode
from kgpu.health.model import RememberedGpu
from kgpu.health.node import HealthOrder, HistoryNote

VERSION: Final = 1
RETENTION: Final = 90 * 86400.0
MAX_NOTES: Final = 20_000
MAX_ORDERS: Final = 100
MAX_BYTES: Final = 32 << 20
BELL: Final = ".orders"
"""A file that grows by a byte with each order; the database file itself changes whenever it is read."""
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS state (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS memory (gpu TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS note (
  id INTEGER PRIMARY KEY, at REAL NOT NULL, gpu TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL,
  action TEXT NOT NULL, text TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS note_at ON note (at);
CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, value BLOB NOT NULL);
"""
_REMEDY: Final = "look at the disk and the rights of the folder; health goes on without remembering"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """What a run continues from. ``sequence`` is the last record of the kernel log of ``boot`` that counted.

    ``began`` is when that boot was, in the seconds since 1970 in which the memories have their times.
    """

    boot: str = ""
    began: float = 0.0
    sequence: int = -1
    memories: Mapping[str, RememberedGpu] = field(default_factory=dict)


class HealthHistory:
    """The file at ``path``. Every method raises HostError when the disk fails."""

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES, max_notes: int = MAX_NOTES) -> None:
        self.path = path
        self._file = SqliteFile(path, _SCHEMA, max_bytes=max_bytes, remedy=_REMEDY)
        self._max_notes = max_notes
        self._cleaned = float("-inf")
        self._bell = path.with_name(path.name + BELL)

    def load(self) -> tuple[Remembered, list[Advice]]:
        """Load what was saved, and return what there is to report about it. A broken file is set aside."""
        advice: list[Advice] = []
        try:
            with self._file.open() as db:
                return self._remembered(db, advice), advice
        except sqlite3.DatabaseError as error:
            if not is_broken(error):
                raise self._file.obstacle(error) from error
            advice.append(self._set_aside(error))
        with self._file.translated(), self._file.open() as db:
            return self._remembered(db, advice), advice

    def save(self, remembered: Remembered, notes: Sequence[HistoryNote] = (), done: Sequence[int] = ()) -> None:
        """Write everything in one transaction. ``done`` are the orders that have been carried out."""
        with self._file.translated(), self._file.open() as db:
            db.execute("BEGIN IMMEDIATE")
            db.executemany(
                "INSERT INTO state VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                [
                    ("boot", remembered.boot),
                    ("began", repr(remembered.began)),
                    ("sequence", str(remembered.sequence)),
                ],
            )
            db.executemany(
                "INSERT INTO memory VALUES (?, ?) ON CONFLICT (gpu) DO UPDATE SET value = excluded.value",
                [(gpu, msgspec.json.encode(memory)) for gpu, memory in remembered.memories.items()],
            )
            known = [row[0] for row in db.execute("SELECT gpu FROM memory")]
            gone = [(gpu,) for gpu in known if gpu not in remembered.memories]
            db.executemany("DELETE FROM memory WHERE gpu = ?", gone)
            for note in notes:
                _write_note(db, note)
            db.executemany("DELETE FROM orders WHERE id = ?", [(number,) for number in done])
            self._clean(db)
            db.execute("COMMIT")

    def notes(self, *, gpus: Sequence[str] = (), since: float = 0.0, limit: int = 200) -> list[HistoryNote]:
        """The notes about a GPU, the newest last; about all GPUs when none is named."""
        if not self.path.exists():
            return []
        where = f"AND gpu IN ({','.join('?' * len(gpus))})" if gpus else ""
        query = f"SELECT at, gpu, kind, name, action, text FROM note WHERE at >= ? {where} ORDER BY id DESC LIMIT ?"  # noqa: S608 - question marks
        with self._file.translated(), self._file.open() as db:
            rows = db.execute(query, (since, *gpus, limit)).fetchall()
        return [
            HistoryNote(at=at, gpu=gpu, kind=kind, name=name, action=action, text=text)
            for at, gpu, kind, name, action, text in reversed(rows)
        ]

    def put(self, *orders: HealthOrder) -> None:
        """Add a person's orders, all or none of them, for the process that keeps the memories.

        No number comes twice, though the orders before it are gone from the file: whoever has carried those out may
        not know yet that they are gone, and would take a new one with an old number for one that is done.
        """
        now = time.time_ns() // 1000
        with self._file.translated(), self._file.open() as db:
            db.execute("BEGIN IMMEDIATE")
            db.executemany(
                "INSERT INTO orders VALUES (max(?, (SELECT coalesce(max(id), 0) + 1 FROM orders)), ?)",
                [(now, msgspec.json.encode(order)) for order in orders],
            )
            db.execute("COMMIT")
        try:
            with open(self._bell, "ab") as bell:
                bell.write(b".")
        except OSError as error:
            raise HostError(f"{self._bell} can't be written: {error.strerror or error}", "a file", _REMEDY) from error

    def order_mark(self) -> int:
        """A value that changes with each new order; cheap enough to be asked all the time."""
        try:
            return self._bell.stat().st_size
        except OSError:
            return 0

    def orders(self) -> list[tuple[int, HealthOrder]]:
        """Orders that are not carried out yet, oldest first."""
        with self._file.translated(), self._file.open() as db:
            rows = db.execute("SELECT id, value FROM orders ORDER BY id LIMIT ?", (MAX_ORDERS,)).fetchall()
        found = []
        for number, value in rows:
            with contextlib.suppress(msgspec.DecodeError, TypeError):
                found.append((int(number), decode(value, HealthOrder)))
        return found

    # --- the rest ---

    def _remembered(self, db: sqlite3.Connection, advice: list[Advice]) -> Remembered:
        state = dict(db.execute("SELECT key, value FROM state").fetchall())
        memories: dict[str, RememberedGpu] = {}
        for gpu, value in db.execute("SELECT gpu, value FROM memory").fetchall():
            try:
                memories[gpu] = decode(value, RememberedGpu)
            except (msgspec.DecodeError, TypeError) as error:
                advice.append(_lost(f"what was remembered of GPU {gpu} can't be read", str(error)))
        sequence = state.get("sequence", "")
        return Remembered(
            boot=state.get("boot", ""),
            began=_seconds(state.get("began", "")),
            sequence=int(sequence) if sequence.isascii() and sequence.isdecimal() else -1,
            memories=memories,
        )

    def _set_aside(self, error: sqlite3.Error) -> Advice:
        return _lost(self._file.set_aside(), str(error))

    def _clean(self, db: sqlite3.Connection) -> None:
        """Delete notes that are too old or too many, once in a while."""
        now = time.monotonic()
        if now - self._cleaned < 600.0:
            return
        self._cleaned = now
        # Not the newest one's time: a clock that is wrong for a moment must not empty the history.
        recent = db.execute("SELECT at FROM note ORDER BY at DESC LIMIT 1 OFFSET 50").fetchone()
        if recent is not None:
            db.execute("DELETE FROM note WHERE at < ?", (recent[0] - RETENTION,))
        extra = db.execute("SELECT count(*) FROM note").fetchone()[0] - self._max_notes
        if extra > 0:
            db.execute("DELETE FROM note WHERE id IN (SELECT id FROM note ORDER BY id LIMIT ?)", (extra,))


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        return 0.0
    return found if math.isfinite(found) else 0.0


def _write_note(db: sqlite3.Connection, note: HistoryNote) -> None:
    if note.amends:
        last = db.execute(
            "SELECT id FROM note WHERE gpu = ? AND kind = ? AND name = ? ORDER BY id DESC LIMIT 1",
            (note.gpu, note.kind, note.name),
        ).fetchone()
        if last is not None:
            db.execute("UPDATE note SET text = ? WHERE id = ?", (note.text, last[0]))
            return
    db.execute(
        "INSERT INTO note (at, gpu, kind, name, action, text) VALUES (?, ?, ?, ?, ?, ?)",
        (note.at, note.gpu, note.kind, note.name, note.action, note.text),
    )


def _lost(what: str, why: str) -> Advice:
    return Advice(
        subject="",
        what=what,
        why=why,
        severity=Severity.WARNING,
        remedy="nothing: the GPUs are judged anew; how often a trouble came before is forgotten",
        reason="HealthHistoryLost",
    )
