"""Pure: what people are told when, as messages of the record and as Events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

import msgspec

from kgpu.base.advice import Advice, Severity
from kgpu.base.times import stamp_of
from kgpu.formats import names
from kgpu.formats.usage import MILLION
from kgpu.kube.kinds import plural_and_group
from kgpu.kube.port import PODS
from kgpu.usage.hour_prices import HourPrices
from kgpu.usage.now import DeviceNow
from kgpu.usage.reclaim.delivery import warning_id
from kgpu.usage.reclaim.figures import waste
from kgpu.usage.reclaim.guards import span
from kgpu.usage.reclaim.messages import key_of
from kgpu.usage.reclaim.model import HeldWorkload, ReclaimPolicy, WorkloadRef
from kgpu.usage.reclaim.owners import CLIMBED
from kgpu.usage.reclaim.record import NoticeKind, ReclaimAction, ReclaimNotice, WarningEntry

KEEP_FOR: Final = 8 * 3600.0
"""Seconds for which the command in a message keeps a workload."""
TOLD_AGAIN: Final = 86_400.0
_BY_KIND: Final = {row.kind: row for row in (*CLIMBED.values(), PODS)}


def keep_command(ref: WorkloadRef, now: float) -> str:
    """What keeps a workload for some hours; it needs no kgpu."""
    row = _BY_KIND.get(ref.kind)
    if row is None:
        return f"kgpu idle keep {ref} --for 8h"
    kind = plural_and_group(row)
    until = stamp_of(now + KEEP_FOR)
    return f"kubectl -n {ref.namespace} annotate --overwrite {kind}/{ref.name} {names.KEEP_UNTIL}={until}"


def undo_command(ref: WorkloadRef) -> str:
    """What brings a workload back."""
    return f"kgpu idle resume {ref}"


@dataclass(frozen=True, slots=True)
class HourCost:
    """Millionths of ``currency`` for an hour; ``assumed`` says what of it is not known to be so, if anything."""

    per_hour: int
    currency: str
    assumed: str = ""


def cost_per_hour(policy: ReclaimPolicy, held: Iterable[tuple[DeviceNow, int]], prices: HourPrices) -> HourCost:
    """What devices cost an hour, each with the share of it in millionths."""
    if policy.per_gpu_hour:
        return HourCost(sum(policy.per_gpu_hour * share // MILLION for _, share in held), policy.currency)
    total, assumed = 0, ""
    for device, share in held:
        found = prices.of(device.node, device.product, prices=policy.prices)
        total, assumed = total + found.per_gpu_hour * share // MILLION, assumed or found.assumed
    return HourCost(total, prices.currency(policy.prices), assumed)


def about_devices(devices: Iterable[DeviceNow]) -> str:
    """What, how many and where: ``8 x NVIDIA A100 on gpu-1``."""
    found = list(devices)
    models = Counter(f"{one.product or 'GPU'}{f' ({one.partition})' if one.partition else ''}" for one in found)
    nodes = sorted({one.node for one in found})
    told = ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more nodes" if len(nodes) > 3 else "")
    return f"{', '.join(f'{count} x {model}' for model, count in sorted(models.items()))} on {told}"


def idle_notice(
    kind: NoticeKind, workload: HeldWorkload, policy: ReclaimPolicy, prices: HourPrices, now: float, *, key: str,
    since: float | None, what: str = "", deadline: float | None = None,
) -> ReclaimNotice:  # fmt: skip
    """A message about a workload to the policy's receivers; to those that want it, by what it has wasted."""
    cost = cost_per_hour(policy, ((one.device, one.holder.share) for one in workload.held), prices)
    ref = workload.ref
    devices = about_devices(one.device for one in workload.held)
    notice = ReclaimNotice(
        id=key, kind=kind, policy=policy.name, namespace=ref.namespace, who=ref.title,
        what=f"{devices}, {workload.state}{what}", at=now, since=since, per_hour=cost.per_hour, assumed=cost.assumed,
        currency=cost.currency, keep=keep_command(ref, now), deadline=deadline,
    )  # fmt: skip
    return to_receivers(notice, policy, now)


def node_notice(
    node: str, devices: tuple[DeviceNow, ...], policy: ReclaimPolicy, prices: HourPrices, *, now: float, since: float
) -> ReclaimNotice:
    """A message about a node all of whose GPUs are idle."""
    cost = cost_per_hour(policy, ((one, MILLION) for one in devices), prices)
    holders = sorted({WorkloadRef.of(holder) for one in devices for holder in one.holders})
    named = ", ".join(ref.title for ref in holders[:5]) + (f" and {len(holders) - 5} more" if len(holders) > 5 else "")
    notice = ReclaimNotice(
        id=f"{NoticeKind.NODE}/{policy.name}/{node}/{since:.0f}/{now // TOLD_AGAIN:.0f}", kind=NoticeKind.NODE,
        policy=policy.name, namespace="", who=f"Node {node}",
        what=f"{about_devices(devices)}, all idle; held by {named}",
        at=now, since=since, per_hour=cost.per_hour, assumed=cost.assumed, currency=cost.currency,
        keep=keep_command(holders[0], now) if len(holders) == 1 else "kgpu idle keep NAMESPACE/NAME --for 8h",
    )  # fmt: skip
    return to_receivers(notice, policy, now)


def to_receivers(notice: ReclaimNotice, policy: ReclaimPolicy, now: float) -> ReclaimNotice:
    """The message with those who get it: all, or for a mere notice those for whom it wastes enough."""
    asked = notice.kind in {NoticeKind.IDLE, NoticeKind.NODE}
    wasted = waste(notice, now) or 0
    waiting = tuple(key_of(one) for one in policy.receivers if not asked or wasted >= Decimal(one.min_waste) * MILLION)
    return msgspec.structs.replace(notice, waiting=waiting)


def plain_notice(kind: NoticeKind, policy: ReclaimPolicy, ref: WorkloadRef, what: str, now: float) -> ReclaimNotice:
    """A message without figures: something is over, or paused."""
    who = ref.title if ref.name else "kgpu"
    notice = ReclaimNotice(
        id=f"{kind}/{policy.name}/{who}/{now:.0f}", kind=kind, policy=policy.name, namespace=ref.namespace, who=who,
        what=what, at=now,
    )  # fmt: skip
    return to_receivers(notice, policy, now)


def warning_notice(
    warning: WarningEntry, workload: HeldWorkload, policy: ReclaimPolicy, prices: HourPrices, *, now: float,
    deadline: float,
) -> ReclaimNotice:  # fmt: skip
    """The message that a workload has a deadline."""
    return idle_notice(
        NoticeKind.WARNING,
        workload,
        policy,
        prices,
        now,
        key=warning_id(warning),
        since=warning.since,
        deadline=deadline,
    )


def stopped_notice(action: ReclaimAction, policy: ReclaimPolicy, now: float) -> ReclaimNotice:
    """The message that a workload was stopped, and what brings it back."""
    notice = ReclaimNotice(
        id=f"{NoticeKind.STOPPED}/{action.id}", kind=NoticeKind.STOPPED, policy=action.policy,
        namespace=action.namespace, who=action.ref.title, at=now,
        what=f"{action.why}; {action.gpus:g} GPUs are free; bring it back: {action.undo}",
    )  # fmt: skip
    return to_receivers(notice, policy, now)


def warned(workload: HeldWorkload, deadline: float, since: float, now: float) -> Advice:
    """The Event on a workload that has a deadline."""
    return Advice(
        subject=workload.ref.title, reason="ReclaimWarned", severity=Severity.WARNING,
        what=f"it will be stopped at {stamp_of(deadline)} unless its GPUs are used",
        why=f"all GPUs that it holds are idle since {stamp_of(since)}",
        evidence=(about_devices(one.device for one in workload.held),),
        remedy=f"to keep it: {keep_command(workload.ref, now)}",
    )  # fmt: skip


def done(action: ReclaimAction) -> Advice:
    """The Event and record of an act."""
    return Advice(
        subject=action.ref.title, reason="Reclaimed", severity=Severity.WARNING, why=action.why,
        what=f"it was stopped ({action.target.way})", evidence=(f"act {action.id}",),
        remedy=f"bring it back: {action.undo}",
    )  # fmt: skip


def why_of(workload: HeldWorkload, now: float) -> str:
    """The evidence of an act, in a sentence."""
    since = workload.idle_since or now
    return (
        f"{about_devices(one.device for one in workload.held)} idle for {span(now - since)} (since {stamp_of(since)}), "
        f"readings cover {workload.coverage:.0%}"
    )
