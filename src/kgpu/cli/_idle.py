"""How idle workloads are found and shown, for ``kgpu idle``. Names are anybody's: none reaches the terminal unseen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from kgpu.base.printable import in_columns, one_line
from kgpu.base.times import stamp_of
from kgpu.cli._rights import USAGE, needing
from kgpu.formats.usage import UsageState
from kgpu.usage.hour_prices import HourPrices

if TYPE_CHECKING:
    from kgpu.kube.client import Client
    from kgpu.usage.asked_reclaim import ProcessWord
    from kgpu.usage.now import DeviceNow
    from kgpu.usage.reclaim.guards import GuardAnswer
    from kgpu.usage.reclaim.model import HeldWorkload, WorkloadRef
    from kgpu.usage.reclaim.requests import WorkloadExplained
    from kgpu.usage.states import IdleRules, UsageVerdict

STATES: Final = ("held-empty", "held-idle", "hung", "free")
USUAL: Final = ("held-empty", "held-idle", "hung")
MARGIN: Final = 1800.0
"""Seconds of readings that are asked for beyond what is judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleLook:
    """What the agents have said. ``silent``: why nodes have not, by node; ``notes``: what else is to be told."""

    devices: Sequence[DeviceNow]
    workloads: Mapping[WorkloadRef, HeldWorkload]
    silent: Mapping[str, str]
    now: float
    namespace: str
    prices: HourPrices = field(default_factory=HourPrices)
    notes: tuple[str, ...] = ()


async def look(api: Client, rules: IdleRules, now: float) -> IdleLook:
    """Ask every agent. Raises KubeError."""
    from kgpu.kube.operator_namespace import operator_namespace
    from kgpu.usage.agents import UsageAgents
    from kgpu.usage.live import HeardAgents
    from kgpu.usage.reclaim.model import workloads

    namespace = await operator_namespace(api)
    agents = UsageAgents(api, namespace=namespace, direct=False)
    heard = HeardAgents()
    async with needing(USAGE, api):
        found = await agents.find()
        await agents.all_now(found, rules.window + rules.warm_up + MARGIN, lambda said: heard.heard(said, now))
        devices = heard.devices(rules, now)
        if not devices:
            agents.check_rights()
    silent = dict(agents.silent)
    if not found:
        silent[""] = f"no agent in the namespace {namespace} watches usage: set usage.enabled in the chart"
    return IdleLook(devices=devices, workloads=workloads(devices), silent=silent, now=now, namespace=namespace)


async def process_word(api: Client, namespace: str, now: float) -> ProcessWord:
    """What ``kgpu-usage`` alone knows, or why that can't be had."""
    from kgpu.usage import asked_reclaim
    from kgpu.usage.agents import UsageAgents

    return await asked_reclaim.process_word(UsageAgents(api, namespace=namespace, direct=False), now)


async def priced(api: Client, found: IdleLook) -> IdleLook:
    """With the cluster's price list and what its nodes are. What of that can't be read is a note. Raises KubeError."""
    from kgpu.kube.port import NODES, KubeRefusedError
    from kgpu.usage.agents import UsageAgents
    from kgpu.usage.asked_prices import cluster_list
    from kgpu.usage.node_line import node_line
    from kgpu.usage.prices import PriceBook

    own, problem = await cluster_list(UsageAgents(api, namespace=found.namespace, direct=False))
    book, notes = PriceBook(own), [problem] if problem else []
    prices = HourPrices(lambda _: book)
    by_node: dict[str, list[str]] = {}
    for one in found.devices:
        by_node.setdefault(one.node, []).append(one.device)
    for node, devices in by_node.items():
        prices.nodes.count(node, devices)
    try:
        prices.nodes.learn(map(node_line, (await api.list(NODES)).items))
    except KubeRefusedError as error:
        notes.append(f"the types of nodes are not known, GPUs cost what their model does: {error.what}")
    return replace(found, prices=prices, notes=tuple(notes))


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleRow:
    """A workload, or GPUs that nobody holds on a node. ``per_hour``: millionths of ``currency``."""

    who: str
    kind: str
    state: UsageState
    gpus: float
    where: str
    since: float | None
    per_hour: int
    currency: str

    def wasted(self, now: float) -> int | None:
        """Millionths of the currency so far; None where it is not known since when."""
        return None if self.since is None else int(self.per_hour * max(0.0, now - self.since) / 3600)


def rows(found: IdleLook, states: Sequence[str], namespace: str) -> list[IdleRow]:
    """What is idle in these states, the dearest first."""
    from kgpu.usage.reclaim.model import ReclaimPolicy
    from kgpu.usage.reclaim.notices import about_devices, cost_per_hour

    policy = ReclaimPolicy(name="")
    table = []
    for ref, workload in found.workloads.items():
        if workload.state in states and namespace in ("", ref.namespace):
            cost = cost_per_hour(policy, ((one.device, one.holder.share) for one in workload.held), found.prices)
            where = about_devices(one.device for one in workload.held)
            table.append(
                IdleRow(who=str(ref), kind=ref.kind, state=workload.state, gpus=workload.gpus, where=where,
                        since=workload.idle_since, per_hour=cost.per_hour, currency=cost.currency)
            )  # fmt: skip
    if UsageState.FREE in states and not namespace:
        by_node: dict[str, list[DeviceNow]] = {}
        for device in found.devices:
            if device.verdict.state is UsageState.FREE:
                by_node.setdefault(device.node, []).append(device)
        for node, own in by_node.items():
            cost = cost_per_hour(policy, ((one, 1_000_000) for one in own), found.prices)
            table.append(
                IdleRow(who=node, kind="Node", state=UsageState.FREE, gpus=len(own), where=about_devices(own),
                        since=None, per_hour=cost.per_hour, currency=cost.currency)
            )  # fmt: skip
    return sorted(table, key=lambda row: (-(row.wasted(found.now) or 0), -row.per_hour, row.who))


def too_young(found: IdleLook, namespace: str) -> str:
    """How many workloads do nothing and are not called idle yet, as the end of a sentence; "" for none."""
    from kgpu.usage.states import USUAL_RULES

    young = sum(workload.too_young for ref, workload in found.workloads.items() if namespace in ("", ref.namespace))
    who = "1 workload does nothing and is" if young == 1 else f"{young} workloads do nothing and are"
    minutes = int(USUAL_RULES.warm_up // 60)
    return f"; {who} too young: pods have to be {minutes}m older than that" if young else ""


def table_of(table: Sequence[IdleRow], now: float) -> list[str]:
    """One line each, with a heading."""
    from kgpu.usage.reclaim.figures import amount
    from kgpu.usage.reclaim.guards import span

    lines = [("WHO", "KIND", "STATE", "GPUS", "IDLE", "WASTED", "AN HOUR", "WHERE")]
    for row in table:
        wasted = row.wasted(now)
        lines.append(
            (one_line(row.who), row.kind, str(row.state), f"{row.gpus:g}",
             "-" if row.since is None else span(now - row.since),
             "-" if wasted is None else amount(wasted, row.currency),
             amount(row.per_hour, row.currency), one_line(row.where, 120))
        )  # fmt: skip
    return in_columns(lines)


def as_data(found: IdleLook, table: Sequence[IdleRow]) -> dict[str, Any]:
    """For JSON; null is what is not known."""
    return {
        "version": 1,
        "at": stamp_of(found.now),
        "idle": [
            {
                "who": row.who, "kind": row.kind, "state": str(row.state), "gpus": row.gpus, "where": row.where,
                "since": None if row.since is None else stamp_of(row.since),
                "perHour": row.per_hour / 1e6,
                "wasted": None if (cost := row.wasted(found.now)) is None else cost / 1e6,
                "currency": row.currency,
            }
            for row in table
        ],
        "notes": list(found.notes),
        "silent": {node or "*": why for node, why in sorted(found.silent.items())},
    }  # fmt: skip


def _guard_line(said: GuardAnswer, unknown: Mapping[str, str]) -> str:
    guard = said.guard
    if guard.name in unknown:
        return f"     ?  {guard.number:>2} {guard.name}: {one_line(unknown[guard.name], 600)}"
    word, why = ("pass", guard.means) if said.passed else ("STOP", one_line(said.why))
    return f"  {word}  {guard.number:>2} {guard.name}: {why}"


def _known_state(verdict: UsageVerdict) -> str:
    from kgpu.usage.states import YOUNG

    return "not known yet" if verdict.why == YOUNG else str(verdict.state)


def explained(one: WorkloadExplained) -> list[str]:
    """The window, every guard, and what would be done."""
    workload, policy = one.facts.workload, one.facts.policy
    from kgpu.usage.reclaim.guards import seen_by_guard_10, span

    since = workload.idle_since
    name = policy.name or "none: it is observed alone"
    lines = [
        f"{one_line(workload.ref.title)} "
        + ("does nothing, and is too young to be called idle" if workload.too_young else f"is {workload.state}")
        + (f" since {stamp_of(since)} ({span(one.facts.now - since)})" if since is not None and workload.idle else ""),
        f"policy: {name}; mode {policy.mode}; idle for {span(policy.stop.window)}, then {span(policy.grace)} to react",
        *(f"note: {one_line(told)}" for told in policy.told_of),
        "holds:",
        *(
            f"  {one_line(held.holder.pod)}: {held.device.device} on {held.device.node}: {_known_state(held.verdict)}, "
            f"{one_line(held.verdict.why)}; readings cover {held.verdict.coverage:.0%}"
            for held in workload.held
        ),
        "guards:",
        *(_guard_line(said, one.unknown) for said in one.guards),
        f"           {seen_by_guard_10(one.facts)}",
        f"would be done: {one_line(one.action)}",
        f"deadline, as its annotation says: {one_line(one.deadline) or 'none'}",
        *([f"kgpu-usage looked at {one_line(one.last, 600)}"] if one.last else []),
    ]
    return lines


def explained_data(one: WorkloadExplained) -> dict[str, Any]:
    """The same for JSON; null is what is not known."""
    from kgpu.usage.reclaim.guards import seen_by_guard_10

    workload, policy = one.facts.workload, one.facts.policy
    return {
        "version": 1,
        "who": str(workload.ref), "kind": workload.ref.kind,
        "state": str(UsageState.UNKNOWN if workload.too_young else workload.state),
        "since": None if workload.idle_since is None else stamp_of(workload.idle_since),
        "coverage": workload.coverage, "policy": policy.name or None, "mode": str(policy.mode),
        "guards": [
            {
                "number": said.guard.number, "name": said.guard.name,
                "why": one.unknown.get(said.guard.name) or said.why or None,
                "passed": None if said.guard.name in one.unknown else said.passed,
            }
            for said in one.guards
        ],
        "action": one.action, "deadline": one.deadline or None, "lastLook": one.last or None,
        "trafficLook": seen_by_guard_10(one.facts), "notes": list(policy.told_of),
    }  # fmt: skip
