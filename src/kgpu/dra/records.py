"""What this node has prepared, in files: one for each claim, so that a bad one costs no other claim.

A record is written before anything is changed: with ``done`` false where the hardware is changed for the claim, and
again when that is in force; then the claim's CDI spec follows, which is written anew where a kill has come between.
Files are replaced as a whole, with a checksum over the record as it stands there, so that one of a later version, which
may have more fields, is not taken for a corrupt one. What can't be read is set aside and told; it is never an obstacle
for other claims. Records hold against kills; none is of use after the machine has stopped, so nobody waits for a disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from kgpu.base.advice import Advice, AdviceSink, Severity
from kgpu.base.errors import HostError
from kgpu.base.files import write_atomic
from kgpu.base.typed import convert

VERSION: Final = 1
SET_ASIDE: Final = ".unreadable"
MAX_BYTES: Final = 1 << 20
_UID_CHARS: Final = frozenset("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_.")


class RecordedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device that a claim has. ``start`` and ``size`` are memory slices of ``gpu``; ``size`` 0 is the whole GPU."""

    request: str
    pool: str
    device: str
    gpu: str
    uuid: str = ""
    start: int = 0
    size: int = 0
    admin: bool = False
    share: str = ""
    cdi: tuple[str, ...] = ()

    def overlaps(self, other: RecordedDevice) -> bool:
        """Whether both have a part of the same GPU."""
        if self.gpu != other.gpu:
            return False
        if not (self.size and other.size):
            return True
        return self.start < other.start + other.size and other.start < self.start + self.size


class RecordedSlice(msgspec.Struct, frozen=True, kw_only=True):
    """A slice that is made for a claim and goes with it. ``profile`` is NVML's number."""

    gpu: str
    profile: int
    start: int


class RecordedSharing(msgspec.Struct, frozen=True, kw_only=True):
    """How a device is shared. ``interval`` is the time slice that is set, None for none; ``former_mode`` the compute
    mode to give back then, "" for the one it has. ``daemon`` is the number of the claim's MPS daemon that serves it,
    whose clients have ``threads`` percent and ``memory_mib`` of pinned memory, 0 for all of it.
    """

    uuid: str
    interval: int | None = None
    former_mode: str = ""
    daemon: int | None = None
    threads: int = 100
    memory_mib: int = 0


class ClaimRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One claim. ``made`` are the slices to make or made, ``shared`` what is set of devices for sharing."""

    uid: str
    namespace: str
    name: str
    boot: str
    done: bool = False
    devices: tuple[RecordedDevice, ...] = ()
    made: tuple[RecordedSlice, ...] = ()
    shared: tuple[RecordedSharing, ...] = ()

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def claimed_gpus(folder: Path, *, boot: str) -> dict[str, str]:
    """The GPUs of which a claim has a part, by UUID, and which one; who only looks after a GPU has none. A record that
    can't be read is for whoever prepares claims to tell.
    """
    found: dict[str, str] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            record, _ = _decoded(path.read_bytes() if path.stat().st_size <= MAX_BYTES else b"")
        except OSError:
            continue
        if record is not None and record.boot == boot:
            for device in record.devices:
                if not device.admin:
                    found.setdefault(device.gpu, f"claim {record} has it")
    return found


class ClaimRecords:
    """The records of one node, in a folder. Calls block; use it from one thread at a time. ``began`` is when ``boot``
    did, in seconds since the epoch.
    """

    def __init__(self, folder: Path, *, boot: str, report: AdviceSink, began: float = 0.0) -> None:
        self._folder = folder
        self.boot = boot
        self._began = began
        self._report = report
        self._records: dict[str, ClaimRecord] = {}
        self.former: list[str] = []
        """After ``load``: the claims of former boots, by uid."""

    def load(self) -> None:
        """Read what an earlier process has left. Raises HostError only if the folder can't be read at all."""
        try:
            paths = sorted(self._folder.glob("*.json")) if self._folder.is_dir() else []
        except OSError as error:
            raise self._trouble("read", error) from error
        for path in paths:
            record = self._read(path)
            if record is None:
                continue
            if record.boot != self.boot:  # slices and settings do not outlive the machine's boot
                self._forget(path)
                continue
            self._records[record.uid] = record

    @property
    def all(self) -> Mapping[str, ClaimRecord]:
        """By uid."""
        return self._records

    def put(self, record: ClaimRecord) -> None:
        """Write a record; a kill of this process can't undo it. Raises HostError, and the former one holds."""
        content = msgspec.to_builtins(record)
        document = {"version": VERSION, "checksum": _checksum(content), "claim": content}
        try:
            write_atomic(self._path(record.uid), json.dumps(document, indent=1), mode=0o600, flush=False)
        except OSError as error:
            raise self._trouble("written", error) from error
        self._records[record.uid] = record

    def drop(self, uid: str) -> None:
        """Forget a claim. Raises HostError, and it is remembered."""
        try:
            self._path(uid).unlink(missing_ok=True)
        except OSError as error:
            raise self._trouble("changed", error) from error
        self._records.pop(uid, None)

    def _path(self, uid: str) -> Path:
        if not uid or not set(uid) <= _UID_CHARS or uid.startswith("."):
            raise HostError(f"{uid!r} is not the uid of a claim", "what the API server gives", "look at the claim")
        return self._folder / f"{uid}.json"

    def _read(self, path: Path) -> ClaimRecord | None:
        try:
            about = path.stat()
            data = path.read_bytes() if about.st_size <= MAX_BYTES else b""
        except OSError as error:
            self._set_aside(path, error.strerror or str(error))
            return None
        record, why = _decoded(data)
        if record is None and about.st_mtime < self._began:  # the machine has stopped before it was on the disk
            self._forget(path)
            return None
        if record is None or path.name != f"{record.uid}.json":
            self._set_aside(path, why or "it is about another claim than its name says")
            return None
        return record

    def _forget(self, path: Path) -> None:
        """A record of a former boot."""
        self.former.append(path.stem)
        with contextlib.suppress(OSError):
            path.unlink()

    def _set_aside(self, path: Path, why: str) -> None:
        aside = path.with_name(path.name + SET_ASIDE)
        with contextlib.suppress(OSError):
            path.replace(aside)
        self._report(Advice(
            severity=Severity.WARNING, subject=str(path), reason="ClaimRecordUnreadable",
            what=f"the record of a prepared claim can't be read, and is set aside as {aside.name}", why=why,
            remedy="nothing: the claim is prepared anew when its pod starts again; delete the file when it has ended",
        ))  # fmt: skip

    def _trouble(self, what: str, error: OSError) -> HostError:
        return HostError(
            f"{self._folder} can't be {what}: {error.strerror or error}", "a folder that may be written",
            f"see that {self._folder} is mounted and has room",
        )  # fmt: skip


def _checksum(content: Any) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _decoded(data: bytes) -> tuple[ClaimRecord | None, str]:
    """The record, or why it is none."""
    try:
        document = json.loads(data)
        content = document["claim"]
        if document["version"] != VERSION:
            return None, f"it is of version {document['version']}, and this program knows {VERSION}"
        if document["checksum"] != _checksum(content):
            return None, "its checksum is wrong"
        return convert(content, ClaimRecord), ""
    except (ValueError, KeyError, TypeError, RecursionError, msgspec.ValidationError) as error:
        return None, f"it is damaged ({type(error).__name__})"
