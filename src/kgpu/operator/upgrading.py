"""Makes and withdraws the NodeOperations that exchange drivers, as the plan says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from kgpu.base.clock import Clock
from kgpu.kube.kinds import NODE_OPERATIONS
from kgpu.kube.port import KubeApi, KubeRefusedError, Object, name_of
from kgpu.operator.model import UpgradeOperation, UpgradePlan
from kgpu.operator.watching import OPERATIONS, ClusterWatching

log = logging.getLogger(__name__)

CONCURRENCY: Final = 8
RETRY: Final = 15.0
"""Seconds until what the API server has refused is tried again."""


class Upgrading:
    """The writes of one term. A refusal stops the pass: what one operation lacks, such as a right, all lack."""

    def __init__(self, api: KubeApi, watching: ClusterWatching, *, clock: Clock, count: Callable[[str], None]) -> None:
        """``count`` is called with the kind of every object written."""
        self._api = api
        self._watching = watching
        self._clock = clock
        self._count = count
        self._until = 0.0
        self.errors: dict[str, str] = {}
        """What the API server refused last, by ``Kind/name``."""
        self.again_at: float | None = None
        """When to run the next pass even if nothing changes; None for never."""

    async def converge(self, plan: UpgradePlan) -> None:
        """Withdraw, then make. Raises KubeUnreachableError; what is refused is in ``errors``."""
        self.again_at = None
        wanted = {_shown(obj) for obj in plan.create}
        self.errors = {key: message for key, message in self.errors.items() if key in wanted}
        for operation in plan.withdraw:
            await self._withdraw(operation)
        if not plan.create:
            self._until = 0.0
            return
        if self.errors and self._clock.monotonic() < self._until:
            self.again_at = self._until
            return
        self.errors = {}
        await self._make(plan)
        if self.errors:
            self.again_at = self._until = self._clock.monotonic() + RETRY

    async def _make(self, plan: UpgradePlan) -> None:
        known = self._watching.objects(OPERATIONS)
        waiting = iter([obj for obj in plan.create if ("", name_of(obj)) not in known])

        async def work() -> None:
            for obj in waiting:
                if self.errors:
                    return
                await self._create(obj)

        async with asyncio.TaskGroup() as group:
            for _ in range(CONCURRENCY):
                group.create_task(work())

    async def _create(self, obj: Object) -> None:
        self._count(NODE_OPERATIONS.kind)
        try:
            made = await self._api.create(NODE_OPERATIONS, obj)
        except KubeRefusedError as refused:
            if refused.reason == "AlreadyExists":  # the watch has not delivered it yet
                return
            log.warning("%s: %s", _shown(obj), refused.one_line())
            self.errors[_shown(obj)] = refused.what
        else:
            log.info("%s is made: %s", _shown(obj), obj["spec"]["reason"])
            await self._watching.learn(NODE_OPERATIONS, made)

    async def _withdraw(self, operation: UpgradeOperation) -> None:
        self._count(NODE_OPERATIONS.kind)
        try:
            await self._api.delete(NODE_OPERATIONS, operation.name, uid=operation.uid)
            log.info("NodeOperation/%s is withdrawn: nothing asks for it any more", operation.name)
        except KubeRefusedError as refused:
            if not refused.conflict:
                log.warning("NodeOperation/%s can't be withdrawn: %s", operation.name, refused.one_line())


def _shown(obj: Object) -> str:
    return f"{NODE_OPERATIONS.kind}/{name_of(obj)}"
