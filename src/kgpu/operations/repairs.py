"""Creates the operations that verdicts call for, while the breaker is closed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import msgspec

from kgpu.base.advice import Advice, Severity
from kgpu.base.times import stamp_of
from kgpu.formats import names
from kgpu.kube.kinds import NODE_OPERATIONS
from kgpu.kube.port import CONFIG_MAPS, KubeApi, KubeRefusedError, Object
from kgpu.operations.config import RemediationPolicy
from kgpu.operations.model import Operation
from kgpu.operations.remediation import (
    BREAKER_WINDOW,
    RemediationMemory,
    RemediationPlan,
    WantedOperation,
    calls_for_repair,
    remediate,
)
from kgpu.operations.watching import MAX_SEEN, OperationsWatching

log = logging.getLogger(__name__)


class Repairs:
    """The remediation work of one term. ``tell`` receives the advice when the breaker opens."""

    def __init__(
        self, api: KubeApi, watching: OperationsWatching, policy: RemediationPolicy, *, namespace: str,
        now: Callable[[], float], tell: Callable[[Advice], None],
    ) -> None:  # fmt: skip
        self._api = api
        self._watching = watching
        self._policy = policy
        self._namespace = namespace
        self._now = now
        self._tell = tell
        self._closed_at = 0.0
        """When the breaker was last seen open."""
        self._seen: dict[str, float] = {}
        """When the nodes that the person who closed it knew of have last called for a repair."""
        self._well_since: dict[str, float] = {}
        """Since when the GPUs of nodes for which operations wait have been healthy."""
        self._given_up: dict[str, str] = {}
        """The nodes about which people were told that nothing more is done, and why."""
        self.withdrawn: set[str] = set()
        """The uids of operations that were withdrawn; the watch may still deliver them for a moment."""

    async def look(self) -> None:
        """Create, approve and withdraw operations as the verdicts say now. Raises KubeError."""
        watching = self._watching
        if watching.kind_is_absent:
            return
        now = self._now()
        if watching.breaker:
            self._closed_at = now
        self._follow(now)
        memory = RemediationMemory(closed_at=self._closed_at, seen=self._seen, well_since=self._well_since)
        plan = remediate(watching.nodes(), watching.operations(), self._policy, now, memory)
        for operation in plan.withdraw:
            await self._withdraw(operation)
        if watching.breaker_known and not watching.breaker:
            await self._carry_out(plan)

    def _follow(self, now: float) -> None:
        """Note which nodes are well, and which of those that the breaker was about no longer call."""
        watching = self._watching
        nodes = watching.nodes()
        waiting = {one.node for one in watching.operations() if one.automatic and not (one.begun or one.ended)}
        well = {name for name in waiting if name in nodes and nodes[name].gpus_healthy}
        self._well_since = {name: self._well_since.get(name, now) for name in well}
        if watching.breaker:
            self._seen = dict.fromkeys(watching.breaker_nodes, now)
        for name in self._seen:
            if name in nodes and calls_for_repair(nodes[name]):
                self._seen[name] = now
        # As long as an operation on one of them counts: it may have been repaired, or be about to come back.
        self._seen = {name: called for name, called in self._seen.items() if now - called <= BREAKER_WINDOW}

    async def _withdraw(self, operation: Operation) -> None:
        """Delete an operation that nothing calls for any more: it has not begun, and must not."""
        self.withdrawn.add(operation.uid)
        await self._api.delete(NODE_OPERATIONS, operation.name, uid=operation.uid)
        log.info("%s is withdrawn: node %s no longer calls for it", operation.name, operation.node)

    async def _carry_out(self, plan: RemediationPlan) -> None:
        if plan.breaker:
            await self._open(plan)
        for wanted in plan.create:
            await self._create(wanted)
        self._tell_given_up(plan.given_up)
        for operation in plan.approve:
            approved = {"spec": {"approved": True}}
            await self._watching.learn_operation(await self._api.patch(NODE_OPERATIONS, operation.name, approved))

    def _tell_given_up(self, given_up: Mapping[str, str]) -> None:
        """Tell once that it is a person's turn."""
        for node, why in given_up.items():
            if self._given_up.get(node) != why:
                what = f"GPUs of {node} still call for a repair, and kgpu does nothing more"
                remedy = "look at the node; its GPUs may have to be replaced"
                advice = Advice(
                    subject=node, what=what, why=why, remedy=remedy, reason="RepairGivenUp", severity=Severity.WARNING
                )
                self._tell(advice.printable())
        self._given_up = dict(given_up)

    async def _create(self, wanted: WantedOperation) -> None:
        body: Object = {"metadata": {"name": wanted.name}, "spec": msgspec.to_builtins(wanted.spec)}
        try:
            await self._watching.learn_operation(await self._api.create(NODE_OPERATIONS, body))
        except KubeRefusedError as refused:
            if refused.reason != "AlreadyExists":  # the watch has not delivered it yet
                raise

    async def _open(self, plan: RemediationPlan) -> None:
        """Put the open breaker on record, so that the next leader does nothing either. Raises KubeError."""
        how = f"kubectl --namespace {self._namespace} delete configmap {names.REMEDIATION_CONFIG_MAP}"
        body: Object = {
            "metadata": {"name": names.REMEDIATION_CONFIG_MAP, "namespace": self._namespace},
            "data": {
                "open": plan.breaker, "since": stamp_of(self._now()), "close": how,
                "nodes": ",".join(plan.calling[:MAX_SEEN]),
            },
        }  # fmt: skip
        made = await self._api.apply(CONFIG_MAPS, body, manager=names.OPERATIONS_FIELD_MANAGER)
        await self._watching.learn_breaker(made)
        advice = Advice(
            subject=plan.calling[0], what=plan.breaker, reason="RemediationStopped", severity=Severity.WARNING,
        ).printable()  # fmt: skip
        log.warning("%s; to go on: %s", plan.breaker, how)
        self._tell(advice)
