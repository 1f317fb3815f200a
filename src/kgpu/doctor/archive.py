"""Writes a snapshot as the archive of ``kgpu collect``: objects by kind, logs, hosts, and what is missing.

Everything in a snapshot is free of secrets already; of ConfigMaps that no rule reads only the keys are written. The
file is written under a temporary name in the same folder and then renamed, so that an archive is never half written;
only its owner may read it. One that is bounded, or goes to stdout, is made in memory.
"""

from __future__ import annotations

import datetime as dt
import io
import os
import re
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any, Final

import msgspec

from kgpu import __version__
from kgpu.base.errors import HostError
from kgpu.doctor import config_maps, host_facts
from kgpu.doctor.kinds import Log
from kgpu.doctor.model import Missing
from kgpu.doctor.packing import LEVEL, ArchiveFile, fitting, tarred
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.sources.files import META
from kgpu.formats import names

TOP: Final = "kgpu-collect"
_INSTALLERS: Final = frozenset({"Application", "HelmChart", "HelmRelease"})
# Which files of an archive that has to be small matter most; those without a rank always are in it.
_RANKS: Final = {"Node": 0, "NodeOperation": 1, "Event": 4, "Pod": 5}
_HOST: Final = 2
_AGENTS: Final = 3
_OTHER_KIND: Final = 6
_OTHER_LOG: Final = 7
_SAFE: Final = re.compile(r"[^A-Za-z0-9._-]")


def write(snapshot: Snapshot, path: str) -> int:
    """Write the archive and return its size in bytes. Raises HostError when it can't be written."""

    def content(file: IO[bytes]) -> None:
        with tarfile.open(fileobj=file, mode="w:gz", compresslevel=LEVEL) as archive:
            for member in _members(snapshot):
                info = tarfile.TarInfo(f"{TOP}/{member.name}")
                info.size, info.mtime, info.mode = len(member.data), int(snapshot.taken), 0o600
                archive.addfile(info, io.BytesIO(member.data))

    return _saved(path, content)


def save(data: bytes, path: str) -> int:
    """Write an archive that was made in memory, as ``write`` does. Raises HostError."""

    def content(file: IO[bytes]) -> None:
        file.write(data)

    return _saved(path, content)


def pack(snapshot: Snapshot, most: int = 0) -> tuple[bytes, tuple[str, ...]]:
    """The archive of at most ``most`` bytes (0: of any size), and what was left out for that. Raises ConfigError if
    ``most`` is too little for anything.
    """
    members = list(_members(snapshot))
    if not most:
        return tarred(members, taken=snapshot.taken, top=TOP), ()

    def build(kept: Sequence[ArchiveFile], left_out: Sequence[str]) -> bytes:
        gaps = [Missing(name, f"the archive was to have at most {most} bytes", "kgpu collect") for name in left_out]
        rest = [member for member in kept if member.name != META]
        return tarred([_meta_file(snapshot, gaps), *rest], taken=snapshot.taken, top=TOP)

    return fitting(members, most, build)


def _saved(path: str, content: Callable[[IO[bytes]], None]) -> int:
    folder = os.path.dirname(os.path.abspath(path))
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".kgpu-collect-", delete=False) as file:
            try:
                content(file)
                file.flush()
                os.fsync(file.fileno())
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
        return os.path.getsize(path)
    except OSError as error:
        raise HostError(
            f"can't write {path}: {error.strerror}",
            "a folder that can be written to, with room",
            "give another FILE to -o",
        ) from error


def _meta_file(snapshot: Snapshot, more_missing: Iterable[Missing] = ()) -> ArchiveFile:
    return ArchiveFile(META, msgspec.json.format(msgspec.json.encode(_meta(snapshot, more_missing)), indent=1))


def _members(snapshot: Snapshot) -> Iterable[ArchiveFile]:
    yield _meta_file(snapshot)
    kinds: dict[str, Iterable[Any]] = {
        "Node": snapshot.nodes.values(),
        "Pod": snapshot.pods.values(),
        "Event": snapshot.all_events(),
        **{kind: by_key.values() for kind, by_key in sorted(snapshot.kinds.items())},
    }
    for kind, objects in kinds.items():
        items = [config_maps.shown(snapshot, obj) if kind == "ConfigMap" else _shown(kind, obj) for obj in objects]
        if items:
            document = {"apiVersion": "v1", "kind": "List", "items": items}
            name = f"objects/{_SAFE.sub('_', kind)}.json"
            yield ArchiveFile(name, msgspec.json.encode(document), _RANKS.get(kind, _OTHER_KIND))
    for logs in snapshot.logs.values():
        for log in logs:
            parts = [_SAFE.sub("_", part or "container") for part in (log.namespace, log.pod, log.container)]
            name = f"logs/{'/'.join(parts)}{'.previous' if log.previous else ''}.log"
            rank = _AGENTS if _is_of_agent(log) else _OTHER_LOG
            yield ArchiveFile(name, ("\n".join(log.lines) + "\n").encode(), rank, shortens=True)
    for host in snapshot.hosts.values():
        name = f"hosts/{_SAFE.sub('_', host.node) or 'host'}.json"
        yield ArchiveFile(name, msgspec.json.encode(host_facts.encode(host)), _HOST)


def _is_of_agent(log: Log) -> bool:
    return log.pod.startswith(f"{names.AGENT_DAEMON_SET}-")


def _shown(kind: str, obj: Any) -> Any:
    """An object as rules need it: of objects that install charts only the conditions, not the chart values."""
    if kind not in _INSTALLERS:
        return obj.data
    known = {key: obj.data[key] for key in ("apiVersion", "kind", "metadata") if key in obj.data}
    return {**known, "status": {"conditions": obj.at("status.conditions") or []}}


def _meta(snapshot: Snapshot, more_missing: Iterable[Missing]) -> dict[str, Any]:
    when = dt.datetime.fromtimestamp(snapshot.taken, dt.UTC).isoformat().replace("+00:00", "Z")
    return {
        "program": f"kgpu {__version__}",
        "taken": when,
        "version": list(snapshot.version) if snapshot.version else None,
        "listed": sorted(snapshot.listed),
        "missing": [gap.data() for gap in (*snapshot.missing, *more_missing)],
        "looked": snapshot.counts(),
        "leftOut": {"data of ConfigMaps": config_maps.left_out(snapshot)},
    }
