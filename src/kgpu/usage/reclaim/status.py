"""What policies say of themselves: conditions, counts, and what was done last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from kgpu.base.plain import items, mapping, text
from kgpu.base.printable import one_line
from kgpu.base.times import stamp_of
from kgpu.formats import names
from kgpu.formats.crd.usagepolicy import MAX_ACTIONS
from kgpu.formats.usage import UsageState
from kgpu.kube.kinds import GPU_USAGE_POLICIES
from kgpu.kube.port import KubeApi, Object
from kgpu.usage.now import DeviceNow
from kgpu.usage.reclaim.messages import key_of
from kgpu.usage.reclaim.model import HeldWorkload, PolicyReading, ReclaimMode
from kgpu.usage.reclaim.record import ReclaimAction

_MESSAGE: Final = 1024
BROUGHT_BACK: Final = "BroughtBack"
"""The reason of the condition ``Frozen`` where people have brought back too much; every other is about the data."""


@dataclass(slots=True)
class PolicySummary:
    """What a round has found, by policy. ``frozen`` has reason and why, under "" what is so for all; ``frozen_nodes``
    are those that it is about, empty for all. ``prices`` says why a policy's price list is not in force as it is
    written.
    """

    unknown: int = 0
    devices: int = 0
    frozen: dict[str, tuple[str, str]] = field(default_factory=dict)
    frozen_nodes: tuple[str, ...] = ()
    workloads: Counter[str] = field(default_factory=Counter)
    held: Counter[str] = field(default_factory=Counter)
    warned: Counter[str] = field(default_factory=Counter)
    actions: Sequence[ReclaimAction] = ()
    trouble: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    dropped: int = 0
    prices: dict[str, str] = field(default_factory=dict)

    def see(self, devices: Iterable[DeviceNow]) -> None:
        """Count what is known."""
        states = Counter(one.verdict.state for one in devices)
        self.devices, self.unknown = states.total(), states[UsageState.UNKNOWN]

    def count(self, policy: str, workload: HeldWorkload | None) -> None:
        """Count a workload of a policy."""
        if workload is not None and workload.idle:
            self.workloads[policy] += 1
            self.held[policy] += len(workload.held)


def _condition(kind: str, status: bool, reason: str, message: str) -> Object:
    return {
        "type": kind, "status": "True" if status else "False", "reason": reason,
        "message": one_line(message, _MESSAGE),
    }  # fmt: skip


def conditions(reading: PolicyReading, summary: PolicySummary) -> list[Object]:
    """The conditions of a policy, without times."""
    policy = reading.policy
    if policy is None:
        why = reading.problem.sentence if reading.problem else "it can't be used"
        return [
            _condition("Accepted", False, "Unreadable", why),
            _condition("Acting", False, "Unreadable", "a policy that can't be used does nothing, and holds up others"),
        ]
    reason, why = summary.frozen.get("") or summary.frozen.get(policy.name) or ("", "")
    mode = policy.mode
    complete = summary.devices > 0 and not summary.unknown
    data = f"{summary.unknown} of {summary.devices} GPUs and partitions are unknown; these are never idle"
    trouble = {key: summary.trouble[key] for key in map(key_of, policy.receivers) if key in summary.trouble}
    prices = "" if policy.per_gpu_hour else summary.prices.get(policy.name, "")
    problems = [f"{ref}: {problem}" for ref, problem in sorted(summary.problems.items())]
    acting = mode is ReclaimMode.RECLAIM and (not reason or bool(summary.frozen_nodes)) and not problems
    told = (
        f"mode {mode}" if mode is not ReclaimMode.RECLAIM else why or "; ".join(problems) or "it stops what stays idle"
    )
    return [
        _condition("Accepted", True, "Accepted", "; ".join(policy.told_of) or "the policy is in force"),
        _condition(
            "DataComplete", complete, "Complete" if complete else "NoData" if not summary.devices else "Unknown",
            data if summary.devices else "no agent says what its GPUs do: is usage.enabled set in the chart?",
        ),
        _condition("Acting", acting, str(mode).capitalize() if not (reason or problems) else reason or "Refused", told),
        _condition("Frozen", bool(reason), reason or "NotFrozen", why or "nothing is in doubt"),
        _condition(
            "Notified", not trouble and not summary.dropped,
            "Unreachable" if trouble else "Dropped" if summary.dropped else "Notified",
            "; ".join(f"{key}: {said}" for key, said in trouble.items())
            or (f"{summary.dropped} messages had to be dropped" if summary.dropped else "nobody waits for a message"),
        ),
        _condition("Priced", not prices, "Unreadable" if prices else "Priced", prices or "the prices are as written"),
    ]  # fmt: skip


def actions_of(actions: Sequence[ReclaimAction], policy: str) -> list[Object]:
    """What a policy did last, the newest first."""
    own = [one for one in actions if one.policy == policy][-MAX_ACTIONS:]
    return [
        {"at": stamp_of(one.at), "what": one_line(f"{one.ref.title} ({one.state}): {one.why}", 1024), "undo": one.undo}
        for one in reversed(own)
    ]


async def write_status(api: KubeApi, readings: Iterable[PolicyReading], summary: PolicySummary, now: float) -> None:
    """Write the status of every policy that has changed. Raises KubeError."""
    for reading in readings:
        obj = await api.get(GPU_USAGE_POLICIES, reading.name)
        if obj is None:
            continue
        before = mapping(obj.get("status"))
        old = {text(one.get("type")): one for one in map(mapping, items(before.get("conditions")))}
        rows = []
        generation = mapping(obj.get("metadata")).get("generation")
        for row in conditions(reading, summary):
            known = mapping(old.get(row["type"]))
            same = known.get("status") == row["status"] and text(known.get("lastTransitionTime"))
            rows.append({**row, "lastTransitionTime": known["lastTransitionTime"] if same else stamp_of(now),
                         **({"observedGeneration": generation} if generation else {})})  # fmt: skip
        status = {
            "conditions": rows, "idleWorkloads": summary.workloads[reading.name],
            "idleDevices": summary.held[reading.name], "warned": summary.warned[reading.name],
            "lastActions": actions_of(summary.actions, reading.name),
            **({"frozenNodes": list(summary.frozen_nodes)} if summary.frozen_nodes else {}),
            **({"observedGeneration": generation} if generation else {}),
        }  # fmt: skip
        if status != before:
            body = {"metadata": {"name": reading.name}, "status": status}
            await api.apply(GPU_USAGE_POLICIES, body, manager=names.RECLAIM_FIELD_MANAGER, subresource="status")
