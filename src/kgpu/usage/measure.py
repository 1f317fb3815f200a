"""Pure: what one workload has used of its GPUs by a recording: how much memory, how busy, how much of it idle.

Percentiles are over stretches of time weighted by their length, of each device by itself: a recording's lines are
minutes apart, so that what is shorter is averaged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kgpu.usage.model import HolderUse, Segment
from kgpu.usage.plan import first_moment, last_moment
from kgpu.usage.segments import Timeline

_HOUR_US: Final = 3_600_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadUse:
    """Parts are 0 to 1; None is what was not known. ``hours`` is the time in which any of its pods held a device, and
    ``watched_hours`` so much of it as activity is known of; the recording has ``recorded_hours``.

    ``idle`` is the part of the held time in which nothing ran on it, ``gpus_per_pod`` the most devices that a pod held.
    """

    hours: float
    product: str
    card_mib: int
    gpus_per_pod: int
    memory_mib: int | None
    activity: float | None
    mean_activity: float | None
    multiprocessors: float | None
    idle: float | None
    profile: str = ""
    pods: int = 0
    watched_hours: float = 0.0
    recorded_hours: float = 0.0


def measure(
    times: Timeline, namespace: str, name: str, begin_us: int | None = None, end_us: int | None = None
) -> WorkloadUse | None:
    """What a workload (or a pod) of that name has used between two moments, the recording's where none are given; None
    where the recording has nothing of it then.
    """
    begin, end = _between(times, begin_us, end_us)
    uses = uses_of(times, namespace, name, begin, end)
    if not uses:
        return None
    devices: dict[str, set[tuple[str, str]]] = {}
    for segment, use in uses:
        devices.setdefault(use.holder.uid, set()).add((segment.node, segment.device))
    held = sum(use.held_us for _, use in uses)
    watched = [use for _, use in uses if use.busy_us is not None]
    mean = _part(sum(use.busy_us or 0 for use in watched), sum(use.held_us for use in watched))
    last = max(uses, key=lambda row: row[0].end_us)[0]
    return WorkloadUse(
        hours=_union(segment for segment, _ in uses) / _HOUR_US, product=last.product, card_mib=last.memory_mib,
        gpus_per_pod=max(map(len, devices.values())),
        memory_mib=_rounded(_percentile(0.99, ((_memory(use), use.held_us) for _, use in uses))),
        activity=_percentile(0.95, ((_part(use.busy_us, use.held_us), use.held_us) for _, use in uses)),
        mean_activity=mean,
        multiprocessors=_percentile(0.95, ((_part(use.sm_us, use.held_us), use.held_us) for _, use in uses)),
        idle=None if mean is None or held == 0 else 1 - mean,
        profile=_profile(last, uses), pods=len(devices), recorded_hours=max(0, end - begin) / _HOUR_US,
        watched_hours=_union(segment for segment, use in uses if use.busy_us is not None) / _HOUR_US,
    )  # fmt: skip


def _between(times: Timeline, begin_us: int | None, end_us: int | None) -> tuple[int, int]:
    """Both moments, as far as the recording goes."""
    begin = first_moment(times) if begin_us is None else max(begin_us, first_moment(times))
    return begin, last_moment(times) if end_us is None else min(end_us, last_moment(times))


def uses_of(
    times: Timeline, namespace: str, name: str, begin_us: int | None = None, end_us: int | None = None
) -> list[tuple[Segment, HolderUse]]:
    """The stretches in which a workload (or a pod) of that name held a device, and its part of each."""
    begin, end = _between(times, begin_us, end_us)
    return [
        (segment, use)
        for segments in times.devices.values()
        for whole in segments
        if (segment := whole.within(begin, end)) is not None
        for use in segment.holders
        if use.held_us and use.holder.namespace == namespace and _is(use, name)
    ]


def _is(use: HolderUse, name: str) -> bool:
    return use.holder.pod == name or use.holder.owner.rpartition("/")[2] == name


def _memory(use: HolderUse) -> float | None:
    return None if use.memory_mib_ms is None else use.memory_mib_ms * 1000 / use.held_us


def _part(amount: int | None, whole: int) -> float | None:
    return None if amount is None or not whole else min(1.0, amount / whole)


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


def _percentile(part: float, rows: Iterable[tuple[float | None, int]]) -> float | None:
    """The value that so much of the time is at or below."""
    known = sorted((value, weight) for value, weight in rows if value is not None and weight)
    total, seen = sum(weight for _, weight in known), 0
    for value, weight in known:
        seen += weight
        if seen >= part * total:
            return value
    return None


def _profile(last: Segment, uses: list[tuple[Segment, HolderUse]]) -> str:
    """The slices that it held last, "" for whole GPUs."""
    held = {use.holder.partition for segment, use in uses if segment is last}
    return next((one.profile for one in last.partitions if one.id in held), "")


def _union(segments: Iterable[Segment]) -> int:
    """Microseconds that are in any of them."""
    total, reached = 0, 0
    for begin, end in sorted((segment.begin_us, segment.end_us) for segment in segments):
        total += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return total
