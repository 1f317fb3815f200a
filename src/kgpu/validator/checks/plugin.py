"""The plugin check: does the Node show the resources, so that the scheduler can assign them?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from kgpu.formats.names import NVIDIA_DOMAIN
from kgpu.formats.validation_report import CheckTrouble
from kgpu.validator.model import Check, CheckResult, Status, failed, waiting

NOTHING: Final[Mapping[str, int]] = {}
EMPTY_SECONDS: Final = 30.0
"""How long nothing may be allocatable: a plugin that has just started has not told the kubelet yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResources:
    """Facts from the Node object: extended resources of accelerators by name, and the container runtime's version."""

    capacity: Mapping[str, int] = field(default_factory=dict)
    allocatable: Mapping[str, int] = field(default_factory=dict)
    runtime: str = ""


class NodeSource(Protocol):
    """Reads this node's Node object."""

    async def facts(self) -> NodeResources:
        """The Node's resources. Raises KubeError."""
        ...


def is_empty(facts: NodeResources, domain: str = NVIDIA_DOMAIN) -> bool:
    """True if the Node has resources of the vendor's domain and none is allocatable."""
    shown = [name for name, count in facts.capacity.items() if name.startswith(f"{domain}/") and count]
    return bool(shown) and not any(facts.allocatable.get(name, 0) for name in shown)


def judge(
    facts: NodeResources,
    *,
    usable: int,
    offered: Mapping[str, int] = NOTHING,
    empty_for: float = EMPTY_SECONDS,
    domain: str = NVIDIA_DOMAIN,
) -> CheckResult:
    """Judge the Node's resources of the vendor's ``domain``. ``usable`` is the number of devices that passed the checks
    before; ``offered`` is how many healthy ones the device plugin offers by resource, empty if not known; ``empty_for``
    is for how many seconds nothing has been allocatable. Resources of the domain that others offer are not checked.
    """
    shown = {name: count for name, count in facts.capacity.items() if name.startswith(f"{domain}/") and count}
    proof = "CUDA" if domain == NVIDIA_DOMAIN else "the driver check"
    evidence = tuple(f"{name}: {facts.allocatable.get(name, 0)} of {count}" for name, count in sorted(shown.items()))
    if not shown:
        return waiting(
            Check.PLUGIN,
            CheckTrouble(
                what=f"the Node has no {domain} resource yet",
                expected="the device plugin's resources in the Node's capacity",
                remedy="see how the device plugin is: the Node's annotation kgpu.dev/roles, or its log",
            ),
        )
    if is_empty(facts, domain):
        return (waiting if empty_for < EMPTY_SECONDS else failed)(
            Check.PLUGIN,
            CheckTrouble(
                what=f"the Node has {', '.join(sorted(shown))}, but none of it is allocatable",
                expected=f"devices for the {usable} that passed {proof}",
                remedy="the plugin calls them unhealthy, or it has gone: see its log and the Node's Events",
            ),
            evidence=evidence,
        )
    other = [
        f"{name}: {facts.allocatable.get(name, 0)} of {count}"
        for name, count in sorted(offered.items())
        if facts.allocatable.get(name, 0) != count
    ]
    if other:
        return waiting(
            Check.PLUGIN,
            CheckTrouble(
                what=f"the Node does not show what the device plugin offers ({', '.join(other)} allocatable)",
                expected="in the Node's allocatable what the plugin offers, some 10 s after it has changed",
                remedy="see the log of the node's kubelet (`journalctl -u kubelet`); restart the kubelet if it "
                "is stuck",
            ),
            evidence=evidence,
        )
    allocatable = sum(facts.allocatable.get(name, 0) for name in shown)
    return CheckResult(check=Check.PLUGIN, status=Status.PASSED, evidence=evidence, allocatable=allocatable)
