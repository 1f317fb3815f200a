"""Writes a snapshot as the archive of ``kgpu collect``: objects by kind, logs, hosts, and what is missing.

Everything in a snapshot is free of secrets already; of ConfigMaps that no rule reads only the keys are written. The
file is written under a temporary name in the same folder and then renamed, so that an archive is never half written;
only its owner may read it.
"""

from __future__ import annotations

import datetime as dt
import io
import os
import re
import tarfile
import tempfile
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from kgpu import __version__
from kgpu.base.errors import HostError
from kgpu.doctor import config_maps, host_facts
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.sources.files import META

TOP: Final = "kgpu-collect"
_INSTALLERS: Final = frozenset({"Application", "HelmChart", "HelmRelease"})
_SAFE: Final = re.compile(r"[^A-Za-z0-9._-]")


def write(snapshot: Snapshot, path: str) -> int:
    """Write the archive and return its size in bytes. Raises HostError when it can't be written."""
    folder = os.path.dirname(os.path.abspath(path))
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".kgpu-collect-", delete=False) as file:
            try:
                with tarfile.open(fileobj=file, mode="w:gz", compresslevel=6) as archive:
                    for name, data in _members(snapshot):
                        info = tarfile.TarInfo(f"{TOP}/{name}")
                        info.size, info.mtime, info.mode = len(data), int(snapshot.taken), 0o600
                        archive.addfile(info, io.BytesIO(data))
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


def _members(snapshot: Snapshot) -> Iterable[tuple[str, bytes]]:
    yield META, msgspec.json.format(msgspec.json.encode(_meta(snapshot)), indent=1)
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
            yield f"objects/{_SAFE.sub('_', kind)}.json", msgspec.json.encode(document)
    for logs in snapshot.logs.values():
        for log in logs:
            parts = [_SAFE.sub("_", part or "container") for part in (log.namespace, log.pod, log.container)]
            name = f"logs/{'/'.join(parts)}{'.previous' if log.previous else ''}.log"
            yield name, ("\n".join(log.lines) + "\n").encode()
    for host in snapshot.hosts.values():
        yield f"hosts/{_SAFE.sub('_', host.node) or 'host'}.json", msgspec.json.encode(host_facts.encode(host))


def _shown(kind: str, obj: Any) -> Any:
    """An object as rules need it: of objects that install charts only the conditions, not the chart values."""
    if kind not in _INSTALLERS:
        return obj.data
    known = {key: obj.data[key] for key in ("apiVersion", "kind", "metadata") if key in obj.data}
    return {**known, "status": {"conditions": obj.at("status.conditions") or []}}


def _meta(snapshot: Snapshot) -> dict[str, Any]:
    when = dt.datetime.fromtimestamp(snapshot.taken, dt.UTC).isoformat().replace("+00:00", "Z")
    return {
        "program": f"kgpu {__version__}",
        "taken": when,
        "version": list(snapshot.version) if snapshot.version else None,
        "listed": sorted(snapshot.listed),
        "missing": [gap.data() for gap in snapshot.missing],
        "looked": snapshot.counts(),
        "leftOut": {"data of ConfigMaps": config_maps.left_out(snapshot)},
    }
