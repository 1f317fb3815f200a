"""Makes the operations that nodes ask for by their label of MIG, and tells each node how its own is doing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import msgspec

from kgpu.base.printable import one_line
from kgpu.formats import names
from kgpu.formats.mig_request import encode
from kgpu.kube.kinds import NODE_OPERATIONS
from kgpu.kube.port import NODES, KubeApi, KubeRefusedError, Object
from kgpu.operations.config import MigPolicy
from kgpu.operations.mig_requests import MigWord, RequestedChange, mig_plan
from kgpu.operations.watching import OperationsWatching

log = logging.getLogger(__name__)

AT_ONCE: Final = 20
"""The most writes of each kind in one look, so that a thousand requests hold nothing else up."""
REFUSED_SECONDS: Final = 30.0
"""How long an operation that the API server refuses is not tried again."""
_MAX_WHY: Final = 300


class MigAsking:
    """The work of one term. What the API server refuses about one node holds up no other."""

    def __init__(
        self, api: KubeApi, watching: OperationsWatching, policy: MigPolicy, *, now: Callable[[], float],
        count: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._api = api
        self._watching = watching
        self._policy = policy
        self._now = now
        self._count = count
        self._refused: dict[str, tuple[float, str]] = {}
        """Until when an operation of a node is not tried again, and why."""

    async def look(self) -> float | None:
        """Create and tell; return when to look again if nothing changes. Raises KubeError if the API server is away."""
        watching, now = self._watching, self._now()
        if watching.kind_is_absent:
            return None
        whys = {node: why for node, (_, why) in self._refused.items()}
        plan = mig_plan(watching.nodes(), watching.operations(), self._policy, now, whys)
        wanted = {change.spec.node_name for change in plan.create}
        self._refused = {node: row for node, row in self._refused.items() if node in wanted}
        due = [change for change in plan.create if self._refused.get(change.spec.node_name, (0.0, ""))[0] <= now]
        for change in due[:AT_ONCE]:
            await self._create(change)
        for word in plan.tell[:AT_ONCE]:
            await self._tell(word)
        if len(due) > AT_ONCE or len(plan.tell) > AT_ONCE:
            return now
        times = [until for until, _ in self._refused.values()]
        return min([*times, *([] if plan.again_at is None else [plan.again_at])], default=None)

    async def _create(self, change: RequestedChange) -> None:
        node = change.spec.node_name
        body: Object = {"metadata": {"name": change.name}, "spec": msgspec.to_builtins(change.spec)}
        self._count("mig")
        try:
            made = await self._api.create(NODE_OPERATIONS, body)
        except KubeRefusedError as refused:
            if refused.reason == "AlreadyExists":  # the watch has not delivered it yet
                return
            why = one_line(f"the API server takes no operation for it: {refused.what}", _MAX_WHY)
            if self._refused.get(node, (0.0, ""))[1] != why:
                log.warning("node %s: %s", node, refused.one_line())
            self._refused[node] = (self._now() + REFUSED_SECONDS, why)
            return
        self._refused.pop(node, None)
        log.info("%s is made: node %s asks for the MIG config %s", change.name, node, _config(change))
        await self._watching.learn_operation(made)

    async def _tell(self, word: MigWord) -> None:
        """Write on the Node; one that is gone, or another of its name, is no error."""
        self._count("mig")
        try:
            await self._watching.learn_node(await self._write(word))
        except KubeRefusedError as refused:
            if not (refused.conflict or refused.code == 404):
                log.warning("node %s is not told of its MIG request: %s", word.node.name, refused.one_line())

    async def _write(self, word: MigWord) -> Object:
        node, key = word.node, names.MIG_OPERATION_ANNOTATION
        if word.progress is None:
            change: Object = {"metadata": {"uid": node.uid, "annotations": {key: None}}}
            return await self._api.patch(NODES, node.name, change)
        said = {"name": node.name, "uid": node.uid, "annotations": {key: encode(word.progress)}}
        return await self._api.apply(NODES, {"metadata": said}, manager=names.MIG_OPERATION_FIELD_MANAGER)


def _config(change: RequestedChange) -> str:
    return one_line(change.spec.mig.config, _MAX_WHY) if change.spec.mig is not None else ""
