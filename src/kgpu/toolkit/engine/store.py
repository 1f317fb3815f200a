"""What kgpu remembers of an engine's config: each file as it was, and as kgpu wrote it. It outlasts restarts and kills.

The memory is written before the first file is touched and says whether the work was finished, so that a run that was
killed anywhere is finished or undone by the next one. It may hold a registry's passwords, so only root can read it. A
plain copy of each original lies beside it for people.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from kgpu.base.errors import HostError
from kgpu.base.files import write_atomic
from kgpu.base.typed import decode
from kgpu.host.engines.model import EnginePlace
from kgpu.host.engines.undo import ChangedFile, FileSyntax, kind_of

FOLDER: Final = "engines"
RECORD: Final = "record.json"
ORIGINALS: Final = "originals"
LOCK: Final = "lock"


class _StoredFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    path: str
    kind: FileSyntax
    original: str | None
    written: str | None


class _StoredMemory(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    settled: bool
    records: tuple[_StoredFile, ...]
    previous: tuple[_StoredFile, ...] = ()
    folders: tuple[str, ...] = ()
    format: int = 1


@dataclass(frozen=True, slots=True)
class EngineChanges:
    """``records``: the files as they are meant to be now; ``previous``: as they were before an unfinished run.

    ``settled``: every file is as recorded, and the engine has been told. ``folders``: those that kgpu made.
    """

    records: tuple[ChangedFile, ...] = ()
    previous: tuple[ChangedFile, ...] = ()
    settled: bool = True
    folders: tuple[str, ...] = field(default=())


class EngineStore:
    """The memory of one engine, in a folder of kgpu's own."""

    def __init__(self, state_dir: Path, place: EnginePlace) -> None:
        digest = hashlib.sha256(place.config.encode()).hexdigest()[:12]
        self.folder = state_dir / FOLDER / f"{place.engine.value}-{digest}"

    def load(self) -> EngineChanges:
        """What is remembered; nothing when there is no memory. Raises HostError for one that can't be read."""
        path = self.folder / RECORD
        try:
            stored = decode(path.read_bytes(), _StoredMemory)
            return EngineChanges(
                tuple(map(_record, stored.records)),
                tuple(map(_record, stored.previous)),
                stored.settled,
                stored.folders,
            )
        except FileNotFoundError:
            return EngineChanges()
        except (OSError, ValueError, msgspec.DecodeError) as error:
            raise HostError(
                f"kgpu's memory of this engine's original config, {path}, can't be read: {error}",
                "the file as kgpu wrote it",
                f"compare the engine's config with the copies in {self.folder / ORIGINALS}, then move {path} away",
            ) from error

    def save(self, memory: EngineChanges) -> None:
        """Remember, on the disk before this returns; a settled memory of nothing is forgotten. Raises HostError."""
        try:
            if memory.settled and not memory.records:
                (self.folder / RECORD).unlink(missing_ok=True)
                shutil.rmtree(self.folder / ORIGINALS, ignore_errors=True)
                return
            for record in memory.records:
                if record.original is not None:
                    copy = self.folder / ORIGINALS / record.path.lstrip("/")
                    if not copy.is_file() or copy.read_bytes() != record.original:
                        write_atomic(copy, record.original, mode=0o600)
            stored = _StoredMemory(
                memory.settled, tuple(map(_row, memory.records)), tuple(map(_row, memory.previous)), memory.folders
            )
            write_atomic(self.folder / RECORD, msgspec.json.encode(stored), mode=0o600)
            fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise _unwritable(self.folder, error) from error

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold this engine's config alone. Raises HostError when another process does."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            fd = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unwritable(self.folder, error) from error
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise HostError(
                    "another kgpu is changing this engine's config", "one at a time", "wait for it, then try again"
                ) from error
            yield
        finally:
            os.close(fd)


def remembered(state_dir: Path) -> dict[Path, tuple[str, ...]]:
    """The files of each engine that kgpu has changed, by the folder of its memory; one that can't be read has none."""
    files: dict[Path, tuple[str, ...]] = {}
    for path in sorted((state_dir / FOLDER).glob(f"*/{RECORD}")):
        try:
            stored = decode(path.read_bytes(), _StoredMemory)
        except (OSError, ValueError, msgspec.DecodeError):
            files[path.parent] = ()
            continue
        rows = (*stored.records, *stored.previous)
        if rows:
            files[path.parent] = tuple(dict.fromkeys(row.path for row in rows))
    return files


def _unwritable(folder: Path, error: OSError) -> HostError:
    return HostError(
        f"kgpu can't keep the original config in {folder}: {error.strerror}",
        "a folder on this node's disk that may be written",
        "choose another --state-dir, or mount it",
    )


def _row(record: ChangedFile) -> _StoredFile:
    return _StoredFile(record.path, record.kind, _text(record.original), _text(record.written))


def _record(row: _StoredFile) -> ChangedFile:
    return ChangedFile(row.path, row.kind, _bytes(row.original), _bytes(row.written))


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)


def records_of(
    place: EnginePlace, before: dict[str, bytes | None], after: dict[str, bytes | None]
) -> tuple[ChangedFile, ...]:
    """A record for each file that differs; the drop-in before the main file that imports it."""
    paths: Sequence[str] = sorted(
        (path for path in after if before.get(path) != after[path]), key=lambda path: path != place.drop_in
    )
    return tuple(ChangedFile(path, kind_of(place, path), before.get(path), after[path]) for path in paths)
