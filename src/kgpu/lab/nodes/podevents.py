"""Events about pods and nodes as the kubelet writes them; the same one again counts up. Never in the way of work.

Writing is queued and limited: what the API server does not take in time is dropped, as client-go's recorder does it.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kgpu.base.errors import KubeError
from kgpu.kube.port import EVENTS, KubeApi, KubeRefusedError, Object
from kgpu.lab.nodes.objects import stamp

QUEUE: Final = 5000
KNOWN: Final = 4096
_MAX_MESSAGE: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletEvent:
    """One thing to tell about an object; ``field`` is the container's path, such as ``spec.containers{cuda}``."""

    node: str
    about: Object
    kind: str
    reason: str
    message: str
    field: str = ""


class KubeletRecorder:
    """Writes Events for all nodes of a host; ``run`` does the writing."""

    def __init__(self, api: KubeApi, *, now: Callable[[], float] = time.time) -> None:
        self._api = api
        self._now = now
        self._queue: asyncio.Queue[KubeletEvent] = asyncio.Queue(QUEUE)
        self._known: OrderedDict[str, tuple[str, int, str]] = OrderedDict()

    def note(self, note: KubeletEvent) -> None:
        """Queue one; dropped when too many wait."""
        if not self._queue.full():
            self._queue.put_nowait(note)

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            note = await self._queue.get()
            try:
                await self._write(note)
            except KubeError:
                continue

    async def _write(self, note: KubeletEvent) -> None:
        about = reference(note)
        key = hashlib.sha256(
            repr((_identity(about), note.kind, note.reason, note.message, note.node)).encode()
        ).hexdigest()
        now = stamp(self._now())
        namespace = about.get("namespace") or "default"
        known = self._known.get(key)
        if known is not None:
            name, count, _ = known
            try:
                await self._api.patch(EVENTS, name, {"count": count + 1, "lastTimestamp": now}, namespace=namespace)
            except KubeRefusedError as refused:
                if refused.code != 404:
                    raise
            else:
                self._known[key] = (name, count + 1, now)
                return
        name = f"{about['name'][:200]}.{int(self._now() * 1e9):x}{key[:4]}"
        await self._api.create(EVENTS, event(note, about, name=name, namespace=namespace, now=now))
        self._known[key] = (name, 1, now)
        while len(self._known) > KNOWN:
            self._known.popitem(last=False)


def reference(note: KubeletEvent) -> Object:
    """The ``involvedObject``."""
    metadata = note.about["metadata"]
    if note.about["kind"] == "Node":
        return {"apiVersion": "v1", "kind": "Node", "name": metadata["name"], "uid": metadata["name"]}
    involved = {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        "uid": metadata["uid"],
        "resourceVersion": metadata.get("resourceVersion", ""),
    }
    return {**involved, "fieldPath": note.field} if note.field else involved


def event(note: KubeletEvent, about: Object, *, name: str, namespace: str, now: str) -> Object:
    """The Event object."""
    return {
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": about,
        "type": note.kind,
        "reason": note.reason,
        "message": note.message[:_MAX_MESSAGE],
        "count": 1,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "source": {"component": "kubelet", "host": note.node},
        "reportingComponent": "kubelet",
        "reportingInstance": note.node,
    }


def _identity(about: Object) -> list[tuple[str, object]]:
    """The object and field, whatever its version."""
    return sorted((key, value) for key, value in about.items() if key != "resourceVersion")
