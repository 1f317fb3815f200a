"""Texts of any name that hold no objects: what kubectl prints, what a node says of itself, or a container's log alone.

What they are is known by what they say. They are put together last, when it is known which objects there are: an object
itself beats its description.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from typing import Any, Final

from kgpu.base.printable import one_line
from kgpu.base.times import stamp_of
from kgpu.doctor import matching
from kgpu.doctor.kinds import Log
from kgpu.doctor.model import Missing
from kgpu.doctor.objects import Key, seconds
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.sources import printed
from kgpu.doctor.sources.container_logs import NAMESPACE, app_by_name, app_by_words, lines, stand_in
from kgpu.doctor.sources.host_texts import HostTexts

_MAX_TEXT: Final = 16 * 1024 * 1024
"""What is longer is no text that a person has printed."""
_DESCRIBED: Final = re.compile(r"\.descr$")
"""Names under which the GPU operator's must-gather keeps what ``kubectl describe`` prints."""


class Loose:
    """All of them."""

    def __init__(self) -> None:
        self._printed: list[tuple[str, printed.Printed]] = []
        self._lone: list[tuple[str, bytes, bool]] = []
        self._hosts = HostTexts()

    def add(self, name: str, data: bytes, *, alone: bool, log: bool = False) -> bool:
        """Whether it is any of these. ``alone``: it is all that there is, so that it is somebody's log at least.
        ``log``: its name says that it is one.
        """
        if b"\x00" in data:
            return False
        text = data[:_MAX_TEXT].decode("utf-8", "replace")
        is_host, is_kernel = self._hosts.add(name, data)
        output = printed.read(text)
        if output:
            self._printed.append((name, output))
        elif (log or alone) and text.strip() and not (is_kernel and not app_by_words(text)):
            self._lone.append((name, data, is_host))
        else:
            return is_host
        return True

    def finish(self, snapshot: Snapshot, *, trusted: bool = True) -> tuple[list[str], list[str]]:
        """Everything into the snapshot. ``trusted``: nothing else is there, so that somebody has gathered them.

        Gives the logs of which nothing tells whose they are, and texts of nodes that do not count beside others'.
        """
        texts = {name for name, _ in self._printed if not _DESCRIBED.search(name)} | {name for name, *_ in self._lone}
        snapshot.texts |= set() if trusted else texts
        for name, output in self._printed:
            for document in [*output.objects, *map(_named, output.rows), *_befallen(output.told)]:
                _add_unknown(snapshot, document, name)
        if self._printed:
            snapshot.taken = snapshot.taken or time.time()
        printed_at = _moment(snapshot, [output for name, output in self._printed if name not in snapshot.texts])
        snapshot.taken = max(snapshot.taken, printed_at)
        for name, output in self._printed:
            moment = _moment(snapshot, [output]) if name in snapshot.texts else printed_at
            for row in output.told:
                snapshot.add(_dated(row, moment), name)
            if output.rows:
                why = "a list of pods does not say what they ask for or run"
                snapshot.missing.append(
                    Missing(f"the pods behind {one_line(name, 200)}", why, "kubectl get pods -A -o yaml")
                )
        doubted = self._hosts.finish(snapshot, trusted=trusted)
        known = bool(snapshot.pods)
        only = len(self._lone) == 1
        left = [
            name
            for name, data, is_host in self._lone
            if not _lone(snapshot, name, data, known=known, only=only) and not is_host
        ]
        return left, doubted


def _named(pod: dict[str, Any]) -> dict[str, Any]:
    """A pod of which no more is known than its name: under a usual name of a part it counts as that part."""
    app = app_by_name(pod["metadata"]["name"])
    return {**pod, "metadata": {**pod["metadata"], **({"labels": {"app": app}} if app else {})}}


def _befallen(rows: list[printed.PrintedEvent]) -> Iterator[dict[str, Any]]:
    """Pods of which warnings alone tell."""
    for row in rows:
        about = row.event["involvedObject"]
        if about["kind"] == "Pod" and row.event["type"] == "Warning":
            metadata = {"name": about["name"], "namespace": about["namespace"] or "default"}
            status = {"phase": "Pending", "conditions": [{"type": "Ready", "status": "False"}]}
            yield _named(
                {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": []}, "status": status}
            )


def _add_unknown(snapshot: Snapshot, obj: dict[str, Any], file: str) -> None:
    metadata = obj["metadata"]
    if obj["kind"] == "Node":
        known = metadata["name"] in snapshot.nodes
    else:
        known = (metadata["namespace"], metadata["name"]) in snapshot.pods
    if not known:
        snapshot.add(obj, _unsure(snapshot, file))


def _unsure(snapshot: Snapshot, file: str) -> str:
    """The file as the source of what it has, where a container may have printed that; else ""."""
    return file if file in snapshot.texts else ""


def _moment(snapshot: Snapshot, every: list[printed.Printed]) -> float:
    """When the texts were printed: a pod's start and the age of its first event tell it, else the latest time known."""
    moments = [snapshot.taken]
    for printout in every:
        began = {
            (obj["metadata"].get("namespace", ""), obj["metadata"]["name"]): seconds(obj["status"].get("startTime"))
            for obj in printout.objects
        }
        for row in printout.told:
            about = row.event["involvedObject"]
            start = began.get((about["namespace"], about["name"]))
            if start is not None and row.event["reason"] == "Scheduled":
                moments.append(start + row.first)
    return max(moments)


def _dated(row: printed.PrintedEvent, now: float) -> dict[str, Any]:
    times = {"firstTimestamp": _time(now - row.first), "lastTimestamp": _time(now - row.last)}
    return {**row.event, **times}


def _time(moment: float) -> str:
    return stamp_of(max(moment, 0.0))


def _lone(snapshot: Snapshot, name: str, data: bytes, *, known: bool, only: bool) -> bool:
    """A log by itself: of the pod of the part that it is by its words, or of the only pod that there is. Where no pod
    is ``known``, one stands for whoever has written it. Whether it could be told whose it is.
    """
    app = app_by_words(data[-_MAX_TEXT:].decode("utf-8", "replace"))
    if not known:
        pod = printed.POD if only else _stem(name)
        snapshot.add(stand_in(NAMESPACE, pod, app=app), _unsure(snapshot, name))
        key: Key | None = (NAMESPACE, pod)
    else:
        key = _of_part(snapshot, app) or (next(iter(snapshot.pods)) if len(snapshot.pods) == 1 else None)
    if key is None or key not in snapshot.pods:
        return False
    said_in = _unsure(snapshot, name)
    snapshot.add_log(Log(namespace=key[0], pod=key[1], lines=lines(data), file=name, said_in=said_in))
    return True


def _stem(name: str) -> str:
    """A file's name as the name of a pod."""
    base = os.path.basename(name).partition(".")[0].lower()
    return re.sub(r"[^a-z0-9]+", "-", base).strip("-")[:200] or printed.POD


def _of_part(snapshot: Snapshot, app: str) -> Key | None:
    """The only pod of a part, or the only one of it that is not well."""
    parts = {part.name for part in matching.PARTS if app in part.apps}
    pods = {pod.key: pod for part in parts for pod in matching.pods_of_part(snapshot, part)}
    ill = [key for key, pod in pods.items() if not pod.ready]
    found = list(pods) if len(pods) == 1 else ill
    return found[0] if len(found) == 1 else None
