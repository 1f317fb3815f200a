"""Agents clean up their hosts before they are removed: the first step when nothing is wanted any more.

The operator sets ``leaving`` in the configuration that all agents read, then waits for a while until every agent that
can be reached reports that it has left. Only then the DaemonSet and the labels go. An agent that does not answer in
time is named in the log and not waited for: no node keeps a policy from being deleted.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from kgpu.base.clock import Clock
from kgpu.base.errors import ConfigError
from kgpu.formats import agent_config, names
from kgpu.formats.agent_report import AgentReport
from kgpu.formats.operands import DAEMON_SETS, OPERANDS
from kgpu.kube import kinds
from kgpu.kube.port import CONFIG_MAPS, KubeApi, KubeRefusedError, Object
from kgpu.operator.model import ClusterNode, ClusterPlan
from kgpu.operator.objects.rbac import features_role
from kgpu.operator.watching import ClusterWatching

log = logging.getLogger(__name__)

PATIENCE: Final = 20.0
LOOK_AGAIN: Final = 1.0
ROLE_OF: Final = {names.AGENT_DAEMON_SET: ""} | {
    name: operand.role for name, operand in DAEMON_SETS.items() if operand.role
}
"""The DaemonSets whose pods clean up, with the role that they run; "" for all roles."""

_NEEDED_TO_LEAVE: Final = frozenset(
    {(kinds.DAEMON_SETS.kind, name) for name in ROLE_OF}
    | {(CONFIG_MAPS.kind, names.AGENT_CONFIG_MAP)}
    | {
        (row.kind, operand.account)  # what they may do, with which they take back what they have published
        for operand in OPERANDS
        if operand.role
        for row in kinds.ACCOUNTS
    }
    | {
        (row.kind, features_role(account))
        for account in (names.AGENT_DAEMON_SET, *(operand.account for operand in OPERANDS if operand.role))
        for row in kinds.ACCOUNTS
    }
)
_DONE: Final = frozenset({"left", "stopped"})


class Leaving:
    """Tells agents to leave and knows whether they have."""

    def __init__(
        self, api: KubeApi, watching: ClusterWatching, *, namespace: str, clock: Clock, seconds: float = PATIENCE
    ) -> None:
        self._api = api
        self._watching = watching
        self._namespace = namespace
        self._clock = clock
        self._seconds = seconds
        self._since: float | None = None
        self._told = False

    async def holds(self, plan: ClusterPlan) -> bool:
        """True while agents are still leaving, so that nothing they need may be removed yet. Raises KubeError."""
        live = self._watching.live(CONFIG_MAPS, self._namespace, names.AGENT_CONFIG_MAP)
        agents = any(self._watching.live(kinds.DAEMON_SETS, self._namespace, name) is not None for name in ROLE_OF)
        wanted = bool(plan.keep) or any(obj.get("kind") == kinds.DAEMON_SETS.kind for obj in plan.objects)
        if plan.hold or wanted or live is None or not agents:
            self._since, self._told = None, False
            return False
        now = self._clock.monotonic()
        if not await self._tell(str(live.get("text") or "")):
            return False
        if self._since is None:
            self._since = now
        staying = self.staying()
        if staying and now - self._since < self._seconds:
            return True
        if not self._told:
            self._told = True
            if staying:
                shown = ", ".join(staying[:5]) + (f" and {len(staying) - 5} more" if len(staying) > 5 else "")
                log.warning("agents did not say in %g s that they have left: %s", self._seconds, shown)
            else:
                log.info("every agent has cleaned up its host")
        return False

    def staying(self) -> tuple[str, ...]:
        """The nodes with an agent that runs and has not left."""
        running: dict[str, set[str]] = {}
        for pod in self._watching.objects("pods").values():
            if pod["owner"] in ROLE_OF and pod["ready"]:
                running.setdefault(pod["node"], set()).add(ROLE_OF[pod["owner"]])
        nodes = (obj["node"] for obj in self._watching.objects("nodes").values())
        return tuple(
            sorted(
                node.name
                for node in nodes
                if not all(has_left(_said(node, role)) for role in running.get(node.name, ()))
            )
        )

    async def _tell(self, text: str) -> bool:
        """Set ``leaving`` in the agents' configuration unless it is set; False when it can't be written."""
        try:
            config = agent_config.decode(text, source=f"ConfigMap {names.AGENT_CONFIG_MAP}")
        except ConfigError as error:
            log.warning("%s", error.one_line())
            config = agent_config.AgentConfig()
        if config.leaving:
            return True
        log.info("nothing is wanted any more: agents are told to clean up their hosts")
        leaving = agent_config.encode(msgspec.structs.replace(config, leaving=True))
        change = {"data": {names.AGENT_CONFIG_KEY: leaving}}
        try:
            config_map = await self._api.patch(CONFIG_MAPS, names.AGENT_CONFIG_MAP, change, namespace=self._namespace)
        except KubeRefusedError as refused:
            log.warning("agents can't be told to leave: %s", refused.one_line())
            return False
        await self._watching.learn(CONFIG_MAPS, config_map)
        return True


def outliving_policy(obj: Object, owner: Object | None) -> Object:
    """The object to apply: what agents need to clean up is owned by the operator instead of the policy.

    Garbage collection would otherwise remove the agents together with the policy, before they have cleaned up.
    """
    metadata = obj["metadata"]
    if (obj.get("kind"), metadata.get("name")) not in _NEEDED_TO_LEAVE:
        return obj
    kept = {key: value for key, value in metadata.items() if key != "ownerReferences"}
    if owner is not None and metadata.get("namespace"):  # what is in no namespace can't have an owner in one
        kept["ownerReferences"] = [{**owner, "controller": True, "blockOwnerDeletion": False}]
    return {**obj, "metadata": kept}


def _said(node: ClusterNode, role: str) -> AgentReport | None:
    return node.reports.get(role) if role else node.report


def has_left(report: AgentReport | None) -> bool:
    """True when an agent reports that it has cleaned up: every role has left or does not run."""
    if report is None or not report.roles:
        return False
    states = {role.state for role in report.roles.values()}
    return "left" in states and states <= _DONE
