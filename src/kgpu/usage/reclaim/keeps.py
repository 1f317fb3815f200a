"""Pure: what people and other programs have written to keep a workload, and for how long that counts.

What is written on pods and their owners is a tenant's, and keeps an idle workload no longer than the policy allows,
counted from when it was first seen to be kept until its GPUs are used: writing it anew gives no more time. What is on a
namespace is the platform's, and lasts.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from kgpu.base.errors import ConfigError
from kgpu.base.printable import one_line
from kgpu.base.times import stamp_of
from kgpu.formats import names
from kgpu.formats.duration import parse_duration
from kgpu.kube.port import Object, annotations_of, name_of
from kgpu.usage.reclaim.model import ReclaimPolicy

NEVER: Final = "never"


def moment_of(text: object) -> float | None:
    """An RFC 3339 time in seconds since 1970, None for what is none."""
    try:
        moment = dt.datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return None if moment.tzinfo is None else moment.timestamp()


def title_of(obj: Object) -> str:
    """Kind and name, for people."""
    return f"{obj.get('kind') or 'object'} {one_line(name_of(obj), 100)}"


def _true(value: str, obj: Object, now: float) -> bool:
    del obj, now
    return value.lower() == "true"


def _false(value: str, obj: Object, now: float) -> bool:
    del obj, now
    return value.lower() == "false"


def _present(value: str, obj: Object, now: float) -> bool:
    del value, obj, now
    return True


def _until(value: str, obj: Object, now: float) -> bool:
    """Until that time; one that can't be read lasts."""
    del obj
    moment = moment_of(value)
    return moment is None or now < moment


def _true_or_for(value: str, obj: Object, now: float) -> bool:
    """Karpenter's: true, or a duration since the pod's start; anything else is ignored, as it ignores it."""
    if value == "true":
        return True
    started = moment_of((obj.get("status") or {}).get("startTime"))
    return started is not None and now < started + seconds_of(value, unreadable=0.0)


def _never_or_notify(value: str, obj: Object, now: float) -> bool:
    """Anything but ``reclaim``: a word that is not known may be meant to keep it."""
    del obj, now
    return value != "reclaim"


def seconds_of(text: object, *, unreadable: float) -> float:
    """A duration in seconds, ``unreadable`` for what is none."""
    try:
        return parse_duration(str(text)) / 10**9
    except ConfigError:
        return unreadable


@dataclass(frozen=True, slots=True)
class KeepRow:
    """An annotation that keeps, by what ``keeps`` says of its value. ``timed``: it names a time at which it ends."""

    key: str
    keeps: Callable[[str, Object, float], bool]
    timed: bool = False


KEEPING: Final = (
    KeepRow(names.IDLE_POLICY, _never_or_notify),
    KeepRow(names.KEEP_UNTIL, _until, timed=True),
    KeepRow("karpenter.sh/do-not-disrupt", _true_or_for),
    KeepRow("cluster-autoscaler.kubernetes.io/safe-to-evict", _false),
    KeepRow("descheduler.alpha.kubernetes.io/prefer-no-eviction", _present),
    KeepRow("downscaler/exclude", _true),
    KeepRow("downscaler/exclude-until", _until, timed=True),
    KeepRow("gpu-pruner.io/ack-until", _until, timed=True),
    KeepRow("autoscaling.keda.sh/paused-scale-in", _true),
)
"""On pods, owners or the namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepFound:
    """An annotation that keeps a workload. ``limited``: no longer than the policy allows; ``until``: when it ends by
    its own word, in seconds since 1970, None where it says no end.
    """

    obj: Object
    key: str
    value: str
    limited: bool
    until: float | None = None

    @property
    def sentence(self) -> str:
        """For people."""
        return f"{title_of(self.obj)} has the annotation {self.key}: {one_line(self.value, 60)}"

    def outlasts(self, end: float) -> bool:
        """Whether it would keep beyond that moment."""
        return self.limited and (self.until is None or self.until > end)


def keeps_of(objects: tuple[Object, ...], policy: ReclaimPolicy, now: float) -> Iterator[KeepFound]:
    """All annotations that keep a workload now, whatever the policy's limit."""
    for obj in objects:
        for row in KEEPING:
            value = annotations_of(obj).get(row.key)
            if value is not None and row.keeps(str(value), obj, now):
                limited = obj.get("kind") != "Namespace" and (row.timed or policy.limit_exemptions)
                yield KeepFound(
                    obj=obj, key=row.key, value=str(value), limited=limited,
                    until=moment_of(value) if row.timed else None,
                )  # fmt: skip


def kept_by(objects: tuple[Object, ...], policy: ReclaimPolicy, now: float, end: float | None) -> str:
    """Why annotations keep it, "" where they do not. ``end``: when its time of being kept ends, None where that has
    not begun to count.
    """
    for found in keeps_of(objects, policy, now):
        if not found.limited or end is None:
            return found.sentence
        if now < end:
            return found.sentence + (f", which counts until {stamp_of(end)}" if found.outlasts(end) else "")
    return ""


def wants_no_notice(objects: tuple[Object, ...], policy: ReclaimPolicy, now: float, end: float | None) -> bool:
    """Whether somebody has written that it is kept for now, or never to be spoken of."""
    return any(
        not (found.limited and end is not None and now >= end)
        for found in keeps_of(objects, policy, now)
        if found.key == names.KEEP_UNTIL or (found.key == names.IDLE_POLICY and found.value == NEVER)
    )


def idle_after(objects: tuple[Object, ...], policy: ReclaimPolicy) -> float:
    """The longest time in seconds that anybody has asked for; one that can't be read asks for ever. A tenant is given
    no more than the policy's longest keep.
    """
    longest = 0.0
    for obj in objects:
        text = annotations_of(obj).get(names.IDLE_AFTER)
        if text is not None:
            asked = seconds_of(text, unreadable=float("inf"))
            longest = max(longest, asked if obj.get("kind") == "Namespace" else min(asked, policy.longest_keep))
    return longest
