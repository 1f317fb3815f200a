"""``--from PATH``: an archive of ``kgpu collect``, a must-gather, a dump, a node's ``/var/log``, any text.

Files are hostile: nothing is ever unpacked to disk, links are not followed, sizes and counts are bounded, and an object
or file that can't be read is told as missing evidence while everything else counts. A file is a container's log by its
place, objects by its name or its beginning, or else what it says it is (``loose.py``). Where others are beside it, a
container may have printed what only says so: that takes the place of nothing, and counts less (``hearsay.py``).
"""

from __future__ import annotations

import gzip
import io
import os
import re
import stat
import sys
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from kgpu.base.errors import ConfigError
from kgpu.base.printable import one_line
from kgpu.doctor import host_facts
from kgpu.doctor.model import Missing
from kgpu.doctor.objects import Key, lean, seconds
from kgpu.doctor.snapshot import LOG_KIND, Snapshot
from kgpu.doctor.sources import engine_lines, probed, tailed, texts
from kgpu.doctor.sources.container_logs import ContainerLogs, is_written, lines
from kgpu.doctor.sources.documents import MAX_OBJECT, MAX_PROBLEMS, of_json, of_yaml
from kgpu.doctor.sources.logs import take_facts
from kgpu.doctor.sources.loose import Loose
from kgpu.doctor.sources.tarred import Archive, Bounded, Member

MAX_FILE: Final = 512 * 1024 * 1024
MAX_TOTAL: Final = 2 * 1024 * 1024 * 1024
MAX_FILES: Final = 50_000
MAX_MEMBERS: Final = 4 * MAX_FILES
"""The most entries of an archive, folders and links included."""
META: Final = "kgpu-collect.json"
_LOG: Final = re.compile(r"\.log$")
_HOST: Final = re.compile(r"(?:^|/)(?:nvidia-bug-report|dmesg)[^/]*$|\.dmesg$")
"""Logs that are a node's own, whatever they say."""
_OWN_KINDS: Final = frozenset({host_facts.KIND, LOG_KIND})
"""Documents of kgpu itself that no API server has."""
_SHOWN: Final = 5
_LONG: Final = 50
_GZIP: Final = b"\x1f\x8b"
_HEAD: Final = 4096


class PathReading:
    """One reading of a path into a snapshot."""

    def __init__(self) -> None:
        self.snapshot = Snapshot()
        self.left = MAX_TOTAL
        self.files = 0
        self.own = False
        """Whether ``kgpu collect`` has written it, which says itself what is missing."""
        self.alone = False
        """Whether it is one file, which the user has named."""
        self._problems = 0
        self._facts: list[tuple[Key, dict[str, Any], str]] = []
        self._logs = ContainerLogs(self.facts)
        self._loose = Loose()
        self._unread: list[str] = []
        self._anybodys = ""
        """The file that is being read, where its name does not say what it is: a container may have printed it."""
        self._sniffed: list[tuple[str, dict[str, Any]]] = []

    def problem(self, where: str, why: str, how: str = "write it again") -> None:
        """Something could not be read."""
        self._problems += 1
        if self._problems <= MAX_PROBLEMS:
            self.snapshot.missing.append(Missing(where, one_line(why, 300), how))

    def file(self, name: str, data: bytes, *, sniff: bool = False) -> None:
        """One file's content."""
        self.files += 1
        self.alone = sniff
        if self.files > MAX_FILES:
            return
        if data[:2] == _GZIP:
            name, data = name.removesuffix(".gz"), self._unpacked(name, data)
        data = texts.utf8(data)
        if not data.strip():
            return
        if not self._objects(name, data, sniff=sniff) and not self._text(name, data, alone=sniff):
            self._unread.append(name)

    def _objects(self, name: str, data: bytes, *, sniff: bool) -> bool:
        """Whether it is a log by its place, or objects by its name or its beginning."""
        if self._logs.by_place(name, data):
            return True
        for pattern, reader in READERS:
            if pattern.search(name):
                reader(self, name, data)
                return True
        if is_written(name):
            return False
        if _LOG.search(name) and not sniff:
            return False
        remainder, logs = tailed.sections(data)
        self._logs.take(name, logs)
        if texts.like_objects(remainder):
            self._anybodys = "" if sniff else name
            (of_json if remainder.lstrip()[:1] in (b"{", b"[") else of_yaml)(self, name, remainder)
            self._anybodys = ""
            return True
        return bool(logs) or (sniff and self.facts(("", ""), data, name))

    def _text(self, name: str, data: bytes, *, alone: bool) -> bool:
        """Whether it is a text that tells something."""
        if b"\x00" in data[:_HEAD] or is_written(name):
            return False
        if self._logs.by_lines(name, data):
            return True
        if _LOG.search(name) and not _HOST.search(name):
            self._logs.by_name(name, data)
            return True
        return self._loose.add(name, engine_lines.unwrapped(data), alone=alone)

    def _unpacked(self, name: str, data: bytes) -> bytes:
        """A packed file inside a folder or archive, where it is a text; what it takes is counted."""
        limit = min(MAX_FILE, self.left)
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
                if b"\x00" in texts.utf8(file.peek(1)[:_HEAD]):
                    return data
                unpacked = file.read(limit + 1)
        except (OSError, EOFError, zlib.error, ValueError) as error:
            self.problem(name, str(error))
            return b""
        if len(unpacked) > limit:
            self.problem(name, "too large")
            return b""
        self.left -= len(unpacked)
        return unpacked

    def facts(self, key: Key, data: bytes, name: str, doubt: bool = False) -> bool:
        """What a node says of itself in a log, if anything; "" for a pod or namespace that is not known, both
        where it is the only log of its file. ``doubt``: another container may have said it.
        """
        fields = probed.found_in(data)
        if fields is not None and doubt:
            how = "kubectl logs of the agent's pod, into a file with its name and .log"
            self.problem(f"a node's facts in {name}", "a container may have printed that text", how)
        elif fields is not None:
            self._facts.append((key, fields, name))
        return fields is not None

    def take(self, obj: dict[str, Any]) -> None:
        """An object; of a file that is anybody's when all others are known."""
        if not self._anybodys:
            self.snapshot.add(obj, "")
            return
        self._sniffed.append((self._anybodys, obj if str(obj.get("kind")) in _OWN_KINDS else lean(obj)))

    def _take_sniffed(self) -> bool:
        """Objects of anybody's files, of which a forged one takes the place of none. Whether there are only such files,
        all of which somebody has gathered.
        """
        only = self.alone or not (self._logs.placed or any(self.snapshot.counts().values()))
        self.snapshot.texts |= set() if only else {name for name, _ in self._sniffed}
        for name, obj in self._sniffed:
            own = str(obj.get("kind")) in _OWN_KINDS
            if own and not only:
                how = "if you have collected it yourself, give the file a name that ends with .json"
                self.problem(f"the {obj['kind']} in {name}", "a container may have printed that text", how)
            else:
                self.snapshot.add(obj, "" if only else name, leaned=not own)
        return only

    def finish(self) -> Snapshot:
        """The snapshot, with logs put to the pods that they are of."""
        trusted = self._take_sniffed()
        for name, data in self._logs.finish(self.snapshot, trusted=trusted):
            if not self.facts(("", ""), data, name):
                self._loose.add(name, data, alone=self.alone, log=True)
        left, doubted = self._loose.finish(self.snapshot, trusted=trusted)
        for name in doubted:
            how = "if it is the node's own, name it dmesg_NODE.txt or nvidia-smi_NODE.txt"
            self.problem(
                f"what {name} says of a node", "a container may have printed it, and other files tell of it", how
            )
        for name in left:
            how = "name it as its pod, with .log at the end, or write it anew: kubectl logs --prefix"
            self.problem(f"whose log {name} is", "no pod has that name", how)
        if self._logs.strangers:
            pods = ", ".join(self._logs.strangers[:_SHOWN]) + (" ..." if len(self._logs.strangers) > _SHOWN else "")
            why = "the pods are not in what was given"
            self.snapshot.missing.append(Missing(f"logs of {pods}", why, "kubectl get pods -A -o yaml", slight=True))
        for log in self._logs.forged:
            self.problem(
                log, "it has marks of other containers' logs, which it may have written", "kubectl logs of each"
            )
        self.snapshot.sort()
        latest = self.snapshot.taken if self.own else time.time()
        for key, facts, name in self._facts:
            whose = self.snapshot.pods.get(key)
            if whose is not None or (self.alone and key == ("", "")):
                take_facts(self.snapshot, facts, whose, name, latest=latest)
            else:  # anybody's
                why, how = (
                    "its pod is not in what was given",
                    "kubectl get pods -A -o yaml, into a file of the same folder",
                )
                self.problem(f"whose log {name} is, which has a node's facts", why, how)
        if self._problems > MAX_PROBLEMS:
            self.snapshot.missing.append(
                Missing(f"{self._problems - MAX_PROBLEMS} more files or objects", "unreadable")
            )
        self._say_unread()
        return self.snapshot

    def _say_unread(self) -> None:
        """Files of which nothing is known, in one sentence."""
        if self._unread:
            names = (name if len(name) <= _LONG else f".../{os.path.basename(name)}" for name in self._unread[:_SHOWN])
            shown = ", ".join(one_line(name, 2 * _LONG) for name in names)
            more = f" and {len(self._unread) - _SHOWN} more" if len(self._unread) > _SHOWN else ""
            files = "a file" if len(self._unread) == 1 else f"{len(self._unread)} files"
            why = f"nothing in {'it' if len(self._unread) == 1 else 'them'} has a form that is known"
            self.snapshot.missing.append(Missing(f"{files}: {shown}{more}", why, slight=True))


def read(path: str) -> Snapshot:
    """Everything at a path ("-" for standard input). Raises ConfigError when there is nothing that can be read."""
    reading = PathReading()
    if path == "-":
        _stream("standard input", io.BufferedReader(io.BytesIO(sys.stdin.buffer.read(MAX_FILE))), reading)
    elif os.path.isdir(path):
        for name, data in _folder(path, reading):
            reading.file(name, data)
    else:
        with _opened(path) as file:
            _stream(os.path.basename(path), file, reading)
    snapshot = reading.finish()
    if not any(snapshot.counts().values()) and not snapshot.hosts:
        why = f" ({snapshot.missing[0].what}: {snapshot.missing[0].why})" if snapshot.missing else ""
        raise ConfigError(
            f"there is no object of Kubernetes in {path}{why}",
            "an archive of kgpu collect, a must-gather folder, what kubectl get -o yaml or describe prints, or a log",
            "kgpu collect -o FILE.tar.gz, or kubectl get nodes,pods,events -A -o yaml > FILE.yaml",
        )
    if not reading.own:
        from kgpu.doctor.sources.gaps import gaps

        snapshot.missing += gaps(snapshot)
    return snapshot


def _stream(name: str, file: io.BufferedReader, reading: PathReading) -> None:
    """One file that the user has named: an archive, or all that there is."""
    head = file.read(262)
    file.seek(0)
    if head[:2] == _GZIP or head[257:262] == b"ustar":
        _archive(name, file, reading)
        return
    data = file.read(MAX_FILE + 1)
    if len(data) > MAX_FILE:
        raise ConfigError(f"{name} is larger than {MAX_FILE} bytes", "a smaller file", "make it a .tar.gz")
    reading.file(name, data, sniff=True)


def _opened(path: str) -> io.BufferedReader:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"can't read {path}: {why}", "a file or folder", "give the path of one") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ConfigError(f"{path} is neither a file nor a folder", "a file or folder", "give the path of one")
    return os.fdopen(descriptor, "rb")


def _folder(path: str, reading: PathReading) -> Iterator[tuple[str, bytes]]:
    for folder, folders, files in os.walk(path):
        folders.sort()
        for name in sorted(files):
            full = os.path.join(folder, name)
            try:
                data = _plain_file(full, min(MAX_FILE, reading.left))
            except OSError as error:
                reading.problem(os.path.relpath(full, path), str(error.strerror), "make it readable")
                continue
            except ValueError as error:
                reading.problem(os.path.relpath(full, path), str(error))
                continue
            if data is None:
                continue
            reading.left -= len(data)
            yield os.path.relpath(full, path), data
            if reading.files >= MAX_FILES:
                return


def _plain_file(path: str, most: int) -> bytes | None:
    """A file's content, None for a link, a pipe and whatever else is no plain file.

    It is looked at again once it is open: whoever owns a folder may put another thing in a file's place at any moment.
    Raises OSError, and ValueError for one of more than ``most`` bytes.
    """
    if not stat.S_ISREG(os.lstat(path).st_mode):
        return None
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb") as file:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            return None
        if info.st_size > most:
            raise ValueError("too large")
        return file.read(most)


def _archive(path: str, file: io.BufferedReader, reading: PathReading) -> None:
    packed = file.peek(2)[:2] == b"\x1f\x8b"
    stream: Any = gzip.GzipFile(fileobj=file) if packed else file
    try:
        bounded = io.BufferedReader(Bounded(stream, MAX_TOTAL), 1 << 16)
        if packed and not _is_tar(bounded):
            reading.file(os.path.basename(path).removesuffix(".gz"), bounded.read(MAX_FILE), sniff=True)
            return
        with Archive.open(fileobj=bounded, mode="r|", tarinfo=Member) as archive:
            for number, member in enumerate(archive):
                if number >= MAX_MEMBERS:
                    raise tarfile.ReadError(f"more than {MAX_MEMBERS} members")
                if not member.isfile() or reading.files >= MAX_FILES:
                    continue
                if member.size > MAX_FILE:
                    reading.problem(member.name, "too large")
                    continue
                content = archive.extractfile(member)
                if content is not None:
                    reading.file(one_line(member.name, 500), content.read())
    except (tarfile.TarError, OSError, EOFError, zlib.error, ValueError) as error:
        if not reading.files:
            raise ConfigError(
                f"can't read the archive {path}: {one_line(str(error), 200)}",
                "a .tar.gz that kgpu collect has written, or one of its kind",
                "collect it again, or unpack it and give the folder",
            ) from error
        reading.problem(f"the rest of {os.path.basename(path)}", str(error), "collect it again")


def _is_tar(stream: Any) -> bool:
    return bool(stream.peek(512)[257:262] == b"ustar")


def _meta(reading: PathReading, name: str, data: bytes) -> None:
    try:
        if len(data) > MAX_OBJECT:
            raise ValueError("too large")
        meta = msgspec.json.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        reading.problem(name, str(error), "collect it again")
        return
    if not isinstance(meta, dict):
        return
    reading.own = True
    snapshot = reading.snapshot
    taken = seconds(meta.get("taken"))
    snapshot.taken, snapshot.timed = taken or snapshot.taken, taken is not None
    snapshot.listed |= {kind for kind in meta.get("listed") or () if isinstance(kind, str)}
    version = meta.get("version")
    if isinstance(version, list) and len(version) == 2 and all(isinstance(part, int) for part in version):
        snapshot.version = (version[0], version[1])
    for row in meta.get("missing") or ():
        if isinstance(row, dict):
            what, why, how = (str(row.get(key) or "") for key in ("what", "why", "how"))
            # Quoted, not taken over: it would be an order of whoever wrote the archive.
            how = f'collect it again; the archive says how: "{how}"' if how else ""
            snapshot.missing.append(Missing(what, why, how, slight=row.get("slight") is True))


READERS: Final[tuple[tuple[re.Pattern[str], Callable[[PathReading, str, bytes], None]], ...]] = (
    (re.compile(rf"(?:^|/){re.escape(META)}$"), _meta),
    (re.compile(r"\.json$"), of_json),
    (re.compile(r"\.ya?ml$"), of_yaml),
)
"""The first row whose pattern is in a file's name reads it."""

__all__ = ["META", "PathReading", "lines", "read"]
