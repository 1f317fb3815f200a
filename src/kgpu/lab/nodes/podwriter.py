"""Writes one pod's status to the API server whenever it differs from what was told, and in the end deletes the object.

It works in a task of its own: an API server that is away delays what is told and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from kgpu.base.backoff import Backoff, BackoffPolicy
from kgpu.base.errors import KubeError
from kgpu.kube.port import PODS, KubeRefusedError, Object, Patch
from kgpu.lab.nodes import podstatus
from kgpu.lab.nodes.context import NodeContext
from kgpu.lab.nodes.podstate import ContainerRole, PodState

log = logging.getLogger(__name__)

_POLICY: Final = BackoffPolicy(first=0.2, cap=10.0)


class StatusWriter:
    """``state`` is read whenever ``changed`` was called; ``on_gone`` hears that the API server has the pod no more."""

    def __init__(self, node: NodeContext, state: PodState, on_gone: Callable[[], None]) -> None:
        self._node = node
        self._state = state
        self._on_gone = on_gone
        self._dirty = asyncio.Event()
        self._told: Object | None = None
        self._final = False
        self.gone = False

    def changed(self) -> None:
        """There may be something to tell."""
        self._dirty.set()

    def end(self) -> None:
        """Tell the last status, then have the object deleted."""
        self._final = True
        self._dirty.set()

    async def run(self) -> None:
        """Until the object is deleted, or is gone and ``end`` was called."""
        backoff = Backoff(_POLICY)
        while not (self.gone and self._final):
            await self._dirty.wait()
            self._dirty.clear()
            while not self.gone:
                final = self._final
                try:
                    await self._write(final=final)
                except KubeError as error:
                    if isinstance(error, KubeRefusedError) and await self._is_gone(error):
                        self.gone = True
                        self._on_gone()
                        break
                    log.debug("%s: %s", self._state.full_name, error.one_line())
                    await asyncio.sleep(backoff.next_delay())
                    continue
                backoff.reset()
                if final:
                    return
                break

    async def _is_gone(self, refused: KubeRefusedError) -> bool:
        """Whether the API server has this pod no more; a conflict alone may be another writer's haste."""
        if refused.code != 409:
            return refused.code == 404
        metadata = self._state.pod["metadata"]
        try:
            pod = await self._node.api.get(PODS, metadata["name"], namespace=metadata["namespace"])
        except KubeError:
            return False
        return pod is None or pod["metadata"].get("uid") != metadata["uid"]

    def _add_health(self, status: Object) -> None:
        """How well the devices of claims are, as their drivers say."""
        if self._node.claims is None:
            return
        specs = {container.name: container.spec for container in self._state.of(ContainerRole.MAIN)}
        for row in status["containerStatuses"]:
            if health := self._node.claims.health(self._state.pod, specs[row["name"]]):
                row["allocatedResourcesStatus"] = health

    async def _write(self, *, final: bool) -> None:
        state, node = self._state, self._node
        metadata = state.pod["metadata"]
        status = podstatus.pod_status(state, host_ip=node.host_ip, now=node.now())
        self._add_health(status)
        if status != self._told:
            change = {"metadata": {"uid": metadata["uid"]}, "status": status}
            await node.api.patch(
                PODS, metadata["name"], change, namespace=metadata["namespace"], subresource="status",
                kind=Patch.STRATEGIC,
            )  # fmt: skip
            self._told = status
        if final:
            await node.api.delete(PODS, metadata["name"], namespace=metadata["namespace"], grace=0, uid=metadata["uid"])
