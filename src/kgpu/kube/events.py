"""Advice as Kubernetes Events about objects; the same one again counts up the Event there is.

The Event's name follows from what it says, so that the count goes on over restarts and over two agents on one node.
Events are in the object's namespace, and in ``default`` about objects without one, as the API server wants them. About
a Node they have its name as uid, as the kubelet writes them, so that ``kubectl describe node`` shows them. What is
worth an Event, and how many, is the caller's decision.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from typing import Final

from kgpu.base.advice import Advice, Severity
from kgpu.base.times import stamp_of
from kgpu.kube.port import EVENTS, KubeApi, KubeRefusedError, Object

NAMESPACE: Final = "default"
# The API server's limits, in characters and bytes.
_MAX_REASON: Final = 128
_MAX_MESSAGE: Final = 1024
_MAX_NAME: Final = 253
# Another writer may count up the same Event at the same moment.
_ATTEMPTS: Final = 3


class ClusterEvents:
    """Writes Events in the name of one component; ``host`` is where it runs."""

    def __init__(self, api: KubeApi, *, component: str, host: str = "", now: Callable[[], float] = time.time) -> None:
        self._api = api
        self._component = component
        self._host = host
        self._now = now

    async def publish(self, advice: Advice, about: Object) -> None:
        """Write the Event, or count up the one that says the same. Raises KubeError.

        ``about`` has apiVersion, kind, name, uid, and the namespace of an object that has one.
        """
        stamp = stamp_of(self._now())
        event = self.event(advice, about, stamp)
        name = event["metadata"]["name"]
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                await self._api.create(EVENTS, event)
            except KubeRefusedError as refused:
                if refused.code != 409:
                    raise
            else:
                return
            known = await self._known(name, event["metadata"]["namespace"])
            if known is None:
                continue  # it expired between the two calls
            change = {
                "metadata": {"resourceVersion": known["metadata"]["resourceVersion"]},
                "count": int(known.get("count") or 1) + 1,
                "lastTimestamp": stamp,
            }
            try:
                await self._api.patch(EVENTS, name, change, namespace=event["metadata"]["namespace"])
            except KubeRefusedError as refused:
                if refused.code not in (404, 409) or attempt == _ATTEMPTS:
                    raise
            else:
                return

    async def _known(self, name: str, namespace: str) -> Object | None:
        """The Event of that name, None if there is none. Raises KubeError.

        It is the answer to a patch that changes nothing. An admission policy can refuse a patch of another node's
        Event; it can't refuse a read, and the right to read one Event is the right to read all of the namespace.
        """
        try:
            return await self._api.patch(EVENTS, name, {}, namespace=namespace)
        except KubeRefusedError as refused:
            if refused.code != 404:
                raise
            return None

    def event(self, advice: Advice, about: Object, stamp: str) -> Object:
        """The Event object for advice, as of ``stamp`` (RFC 3339)."""
        source = {"component": self._component, **({"host": self._host} if self._host else {})}
        kind = "Normal" if advice.severity is Severity.INFO else "Warning"
        message = _cut(advice.one_line())
        identity = json.dumps([self._component, kind, advice.reason, message])
        digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
        return {
            "metadata": {
                "name": f"{about['name'][: _MAX_NAME - 17]}.{digest}",
                "namespace": about.get("namespace") or NAMESPACE,
            },
            "involvedObject": about,
            "type": kind,
            "reason": advice.reason[:_MAX_REASON],
            "message": message,
            "count": 1,
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "source": source,
            "reportingComponent": self._component,
            "reportingInstance": self._host or self._component,
        }


class NodeEvents:
    """Writes Events about one Node, in the name of one component."""

    def __init__(
        self, api: KubeApi, *, node: str, component: str = "kgpu-agent", now: Callable[[], float] = time.time
    ) -> None:
        self._events = ClusterEvents(api, component=component, host=node, now=now)
        self._about = about_node(node)

    async def publish(self, advice: Advice) -> None:
        """Write the Event, or count up the one that says the same. Raises KubeError."""
        await self._events.publish(advice, self._about)

    def event(self, advice: Advice, stamp: str) -> Object:
        """The Event object for advice, as of ``stamp`` (RFC 3339)."""
        return self._events.event(advice, self._about, stamp)


def about_node(name: str) -> Object:
    """What an Event about a Node is about."""
    return {"apiVersion": "v1", "kind": "Node", "name": name, "uid": name}


def _cut(message: str) -> str:
    raw = message.encode()
    if len(raw) <= _MAX_MESSAGE:
        return message
    return raw[: _MAX_MESSAGE - 3].decode(errors="ignore") + "..."
