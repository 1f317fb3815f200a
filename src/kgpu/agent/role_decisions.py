"""Decides from the operator's document and the Node's labels which roles run on this node. Pure.

A role runs if the document names and enables it, and its labels are exactly ``true``. Any other value stops it on this
node alone, which is how a pause for a driver upgrade works; the decision then says why, for people and programs. Nodes
of another vendor than NVIDIA have those roles alone that the document has for that vendor. When kgpu is uninstalled,
all roles leave. On a node that has no more work for an agent, all but the features leave: they go on until the finder
takes over.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kgpu.base.suggest import did_you_mean
from kgpu.formats.agent_config import AgentConfig, RoleConfig, kind_of_node, of_node
from kgpu.formats.names import (
    AGENT_NODE_LABEL,
    AGENT_NODE_LEAVING,
    LABEL_DEVICE_CONFIG,
    LABEL_VENDOR,
    PAUSED_FOR_DRIVER_UPGRADE,
)
from kgpu.formats.operands import FINDERS

TRUE: Final = "true"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleDecision:
    """The decision on one role. ``why`` is a CamelCase word and ``reason`` a sentence, both "" for a role that runs.
    ``lingers`` is why it goes on for a while although it is to stop.
    """

    run: bool
    why: str = ""
    reason: str = ""
    lingers: str = ""

    @property
    def goes_on(self) -> bool:
        """Whether the role is to run now, for more work or to end what there is."""
        return self.run or bool(self.lingers)


RUN: Final = RoleDecision(run=True)
LEAVING: Final = RoleDecision(run=False, why="Leaving", reason="kgpu is being uninstalled")
LEAVING_NODE: Final = RoleDecision(run=False, why="Leaving", reason="this node has no work for an agent any more")
DISABLED: Final = RoleDecision(run=False, why="Disabled", reason="it is switched off in the ClusterPolicy")
"""It runs on no node, so what the role has published is removed, too."""


def wanted_roles(config: AgentConfig, labels: Mapping[str, str], known: Collection[str]) -> dict[str, RoleDecision]:
    """The decision on every role that the document names or the agent knows."""
    here = of_node(config, labels).roles
    return {
        name: _wanted(name, here.get(name), config, labels, known)
        for name in dict.fromkeys((*known, *sorted(config.roles)))
    }


def leaves(config: AgentConfig, labels: Mapping[str, str]) -> bool:
    """True if the agent has to remove what it has put on this node."""
    return config.leaving or leaves_node(labels)


def leaves_node(labels: Mapping[str, str]) -> bool:
    """True if the agent has to do so on this node alone, by its label."""
    return labels.get(AGENT_NODE_LABEL) == AGENT_NODE_LEAVING


def belongs(labels: Mapping[str, str]) -> bool:
    """True if the operator wants the whole agent on this node."""
    return labels.get(AGENT_NODE_LABEL) == TRUE


def why_stopped(config: AgentConfig, labels: Mapping[str, str], name: str) -> str:
    """Why the document or the Node's labels keep the role from running on this node; "" if they do not."""
    return _wanted(name, of_node(config, labels).roles.get(name), config, labels, (name,)).reason


def labels_that_count(config: AgentConfig, labels: Mapping[str, str]) -> dict[str, str]:
    """The labels on which the decisions depend."""
    keys = {label for role in config.roles.values() for label in (role.label, role.where) if label}
    keys |= {AGENT_NODE_LABEL, LABEL_VENDOR, LABEL_DEVICE_CONFIG}
    return {key: labels[key] for key in sorted(keys) if key in labels}


def string_map(value: Any) -> dict[str, str]:
    """The entries of ``value`` whose key and value are strings; {} if it is not a map."""
    if not isinstance(value, dict):
        return {}
    return {key: text for key, text in value.items() if isinstance(key, str) and isinstance(text, str)}


def _wanted(
    name: str, role: RoleConfig | None, config: AgentConfig, labels: Mapping[str, str], known: Collection[str]
) -> RoleDecision:
    if config.leaving:
        return LEAVING
    if leaves_node(labels) and name not in FINDERS:
        return LEAVING_NODE
    if role is None and name in config.roles:
        return _not_for(config, labels)
    if role is None or not role.enabled:
        return DISABLED
    if name not in known:
        hint = did_you_mean(name, list(known))
        return RoleDecision(
            run=False,
            why="UnknownRole",
            reason=f"this agent has no role {name}{'; ' if hint else ''}{hint}; update the agent's image",
        )
    value = labels.get(role.label, "")
    if not role.label or value == TRUE:
        return RUN if not role.where or labels.get(role.where) == TRUE else _idle(role.where)
    if not value:
        return RoleDecision(run=False, why="NotLabelled", reason=f"the node label {role.label} is not set")
    paused = PAUSED_FOR_DRIVER_UPGRADE in value
    return RoleDecision(
        run=False,
        why="Paused" if paused else "SwitchedOff",
        reason=f'the node label {role.label} is "{value}", not "{TRUE}"',
    )


def _not_for(config: AgentConfig, labels: Mapping[str, str]) -> RoleDecision:
    """The decision on a role that others than this node's vendor have."""
    kind = kind_of_node(config, labels)
    if kind is None:
        told = ", ".join(f"{key}={labels[key]}" for key in (LABEL_VENDOR, LABEL_DEVICE_CONFIG) if key in labels)
        reason = f"the operator has not said yet how nodes with {told} are served"
        return RoleDecision(run=False, why="NotForVendor", reason=reason)
    return RoleDecision(run=False, why="NotForVendor", reason=f"it has nothing to do for accelerators of {kind.title}")


def _idle(label: str) -> RoleDecision:
    """The decision on a role that has nothing to do on a node without this label."""
    return RoleDecision(
        run=False, why="NotNeeded", reason=f'there is nothing for it to do: the node label {label} is not "{TRUE}"'
    )
