"""Writes one condition of a Node, with annotations, by one server-side apply that owns exactly these fields."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from kgpu.base.times import stamp_of
from kgpu.kube.nodes import get_node
from kgpu.kube.port import NODES, KubeApi, Object

_NONE: Final[Mapping[str, str]] = {}


class NodeConditionWriter:
    """The condition ``kind`` of the Node ``node``, as ``manager`` writes it."""

    def __init__(
        self, api: KubeApi, *, node: str, kind: str, manager: str, now: Callable[[], float] = time.time
    ) -> None:
        self._api = api
        self._node = node
        self._kind = kind
        self._manager = manager
        self._now = now

    async def write(self, status: str, reason: str, message: str, *, annotations: Mapping[str, str] = _NONE) -> None:
        """``status`` is True, False or Unknown; while it stays so, ``lastTransitionTime`` is kept, whoever wrote it.
        ``annotations`` of the Node are replaced together with it.

        Raises KubeError.
        """
        known = self._known(await get_node(self._api, self._node))
        stamp = stamp_of(self._now())
        same = known.get("status") == status and isinstance(known.get("lastTransitionTime"), str)
        row = {
            "type": self._kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": stamp,
            "lastTransitionTime": known["lastTransitionTime"] if same else stamp,
        }
        await self._apply([row], annotations)

    async def withdraw(self) -> None:
        """Remove the condition and the annotations. Raises KubeError."""
        await self._apply([], _NONE)

    def _known(self, node: Object) -> Mapping[str, Any]:
        status = node.get("status")
        rows = status.get("conditions") if isinstance(status, dict) else None
        every = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        return next((row for row in every if row.get("type") == self._kind), {})

    async def _apply(self, conditions: list[Object], annotations: Mapping[str, str]) -> None:
        metadata: Object = {"name": self._node, **({"annotations": dict(annotations)} if annotations else {})}
        node: Object = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
        if conditions:  # a manager that names nothing at all is forgotten by the API server
            node["status"] = {"conditions": conditions}
        await self._api.apply(NODES, node, manager=self._manager, subresource="status")
