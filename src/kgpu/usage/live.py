"""Pure: what the agents have said of their devices, judged by whoever asks: the ``IdleSource`` of a cluster.

An agent that was not heard, or has not looked, for longer than the rules' longest gap gives ``unknown``: nothing is
idle by what was once so. Time is counted from the agent's steady clock, so that a wall clock that jumps makes nothing
idle.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from kgpu.formats.usage import UsageState
from kgpu.formats.usage_now import DeviceSaid, HolderSaid, UsageNow, UsageSource
from kgpu.usage.now import DeviceNow, HolderNow
from kgpu.usage.states import (
    IdleRules,
    UsageVerdict,
    WatchedDevice,
    activity,
    covered,
    gang_key,
    judge,
    judge_gangs,
    judge_tenant,
)
from kgpu.usage.watching import AtSeconds, readings


@dataclass(frozen=True, slots=True)
class HeardAgent:
    """What an agent has said, and when that was heard, in seconds since 1970. ``ahead``: by how many seconds its node's
    clock is ahead of the asker's.
    """

    said: UsageNow
    heard_at: float
    ahead: float = 0.0

    def at(self, uptime_us: int) -> float:
        """A moment of the agent's steady clock, as the asker's clock says it."""
        return self.heard_at - (self.said.uptime_us - uptime_us) / 1e6


@dataclass(slots=True)
class HeardAgents:
    """The last words of each node's agent; an ``IdleSource``. Whoever asks the agents calls ``heard``."""

    by_node: dict[str, HeardAgent] = field(default_factory=dict)

    def heard(self, said: UsageNow, now: float, answered: float | None = None) -> None:
        """Take an agent's answer; ``now`` is when it was asked, so that nothing seems younger than it is, and
        ``answered`` when it came.
        """
        ahead = said.at.timestamp() - (now if answered is None else answered)
        self.by_node[said.node] = HeardAgent(said, now, ahead)

    def clocks_ahead(self) -> float:
        """By how many seconds most nodes' clocks are ahead of the asker's; 0 where nobody was heard."""
        ahead = sorted(agent.ahead for agent in self.by_node.values())
        return ahead[len(ahead) // 2] if ahead else 0.0

    def keep(self, nodes: Iterable[str]) -> None:
        """Forget all other nodes: they are gone."""
        kept = frozenset(nodes)
        self.by_node = {node: agent for node, agent in self.by_node.items() if node in kept}

    def devices(self, rules: IdleRules, now: float) -> Sequence[DeviceNow]:
        return judged([agent for _, agent in sorted(self.by_node.items())], rules, now)


def judged(agents: Iterable[HeardAgent], rules: IdleRules, now: float) -> list[DeviceNow]:
    """Nodes' devices and partitions; those of one gang are judged together, on whatever nodes they are."""
    rows = [(one, _device(one, agent, rules, now)) for agent in agents for one in agent.said.devices]
    keys = [[_key(holder) for holder in said.holders] for said, _ in rows]
    worked = {_key(holder) for said, _ in rows for holder in said.holders if holder.worked}
    verdicts = judge_gangs([one.verdict for _, one in rows], keys, worked)
    return [replace(one, verdict=verdict) for (_, one), verdict in zip(rows, verdicts, strict=True)]


def _key(said: HolderSaid) -> str:
    return gang_key(said.namespace, said.gang, said.uid)


def _device(one: DeviceSaid, agent: HeardAgent, rules: IdleRules, now: float) -> DeviceNow:
    holders = tuple(_holder(said, agent.at) for said in one.holders)
    device = WatchedDevice(
        held_since=max((said.held_since or 0.0 for said in holders), default=None), memory_mib=one.memory_mib,
        usable=one.usable, idle_floor_w=_floor(one, rules),
    )  # fmt: skip
    busy = None if one.busy_us is None else agent.at(one.busy_us)
    verdict = judge(readings(one.buckets, one.last, agent.at), now, device, rules, last_busy=busy)
    if not one.held:
        verdict = UsageVerdict(state=UsageState.UNKNOWN, why="nobody can say who holds it", coverage=verdict.coverage)
    shared = len(holders) > 1 or (one.source is UsageSource.CARD and bool(holders))
    return DeviceNow(
        node=agent.said.node, device=one.device, partition=one.partition, product=one.product, verdict=verdict,
        read_at=agent.at(one.last.at_us if one.last is not None else agent.said.looked_us), holders=holders,
        tenants=tuple(
            (said.uid, judge_tenant(verdict, _own(said, agent.at, rules, now), rules)) for said in one.holders if shared
        ),
    )  # fmt: skip


def _floor(one: DeviceSaid, rules: IdleRules) -> float | None:
    """The floor that makes the device's limit with the rules' margin."""
    return None if one.idle_limit_w is None else one.idle_limit_w / (1 + rules.power_margin)


def _holder(said: HolderSaid, at: AtSeconds) -> HolderNow:
    return HolderNow(
        namespace=said.namespace, pod=said.pod, uid=said.uid, container=said.container, owner=said.owner,
        sharing=said.sharing, share=said.share, held_since=at(said.since_us),
    )  # fmt: skip


def _own(said: HolderSaid, at: AtSeconds, rules: IdleRules, now: float) -> tuple[float, ...] | None:
    """A tenant's own activity through the window; None where that was not watched as the rules want it, or where the
    tenant is younger than that.
    """
    seen = readings(said.buckets or (), None, at)
    if covered(seen, now, rules) < rules.coverage or now - at(said.since_us) < rules.window + rules.warm_up:
        return None
    return tuple(value for one in seen if one.at >= now - rules.window and (value := activity(one)) is not None)
