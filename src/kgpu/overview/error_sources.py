"""Pure: an Event of a Node, or a Node with the report of its health, in; the hardware errors that it tells of, out.

A report of kgpu's health has them as data. Events are text for people, of kgpu's agent and of other programs: of these
only the numbers of Xids and the names of GPUs are taken, and nothing is decided by them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from kgpu.base.plain import mapping
from kgpu.base.printable import one_line
from kgpu.base.times import moment_of, stamp_of
from kgpu.formats import gpu_report, names
from kgpu.formats.gpu_report import ReportedGpu
from kgpu.kube.port import Object, name_of
from kgpu.overview.model import DAY, HardwareError

SKEW: Final = 3600.0
"""Seconds by which a node's clock may be ahead; what is of a later time is of no time."""
MOST_CODES: Final = 16  # of one Event
MAX_TEXT: Final = 300
_CODE: Final = re.compile(
    r"(?<!\w)(S?Xid) (?:\([^()]{1,60}\): )?([0-9]{1,9})(?: in GPU instance [0-9]{1,3})?(?=[:,.]|$| of | on )", re.ASCII
)
"""``Xid 79: ...`` as the agent says it and ``Xid (PCI:0000:3b:00): 79, ...`` as the kernel's log does; not
``Xid 63 or`` in an explanation.
"""
_UUID: Final = re.compile(r"(?<![\w-])GPU-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![\w-])", re.ASCII)
_INDEX: Final = re.compile(r"(?<![\w-])GPU ([0-9]{1,4})(?![\w-]|:[0-9a-fA-F])", re.ASCII)
_AGENT: Final = "kgpu-agent"
_OF_HEALTH: Final = frozenset({
    "GPUApplicationError", "GPUNeedsInspection", "GPUNeedsDrain", "GPUNeedsReset", "GPUNeedsReboot",
    "GPUNeedsReplacement",
})  # fmt: skip
"""Reasons of the agent's Events about GPUs that are unwell: those without a number have the reason for it."""
_NO_ERRORS: Final = frozenset({"recovery-action", "throttle", "temperature"})
"""Evidence of health that says what is to be done or how a GPU works, and not that something has failed."""
_NUMBERED: Final = {"xid": "Xid", "sxid": "SXid"}


def slim_event(event: Object) -> Object:
    """What ``of_event`` reads of an Event of a Node; nothing of others."""
    about = mapping(event.get("involvedObject"))
    if about.get("kind") != "Node":
        return {}
    keys = ("reason", "message", "count", "series", "lastTimestamp", "eventTime", "firstTimestamp", "source",
            "reportingComponent")  # fmt: skip
    return {"node": about.get("name"), **{key: event[key] for key in keys if key in event}}


def slim_node(node: Object) -> Object:
    """What ``of_node`` reads of a Node."""
    report = mapping(mapping(node.get("metadata")).get("annotations")).get(names.GPUS_ANNOTATION)
    found = {names.GPUS_ANNOTATION: report} if isinstance(report, str) else {}
    return {"metadata": {"name": name_of(node), "annotations": found}}


def of_event(event: Object, now: float) -> Iterator[HardwareError]:
    """The errors of the last day in what ``slim_event`` has left of an Event. ``now`` is in seconds since 1970."""
    node, message = event.get("node"), event.get("message")
    series = mapping(event.get("series"))
    at = _moment(series.get("lastObservedTime"), *map(event.get, ("lastTimestamp", "eventTime", "firstTimestamp")))
    if not isinstance(node, str) or not isinstance(message, str) or not _recent(at, now):
        return
    uuid, index = _UUID.search(message), _INDEX.search(message)
    codes = list(dict.fromkeys(f"{kind} {int(number)}" for kind, number in _CODE.findall(message)))[:MOST_CODES]
    if not codes and (uuid or index) and _is_of_health(event):
        codes = [str(event["reason"])]
    since = _moment(*map(event.get, ("firstTimestamp", "eventTime")))
    for code in codes:
        yield HardwareError(
            node=one_line(node), code=code, at=stamp_of(at), since=stamp_of(since) if since > 0 else "",
            uuid=uuid[0] if uuid else "", index=int(index[1]) if index else None,
            count=_count(series.get("count")) or _count(event.get("count")), text=one_line(message, MAX_TEXT),
        )  # fmt: skip


def of_node(node: Object, now: float) -> tuple[HardwareError, ...] | None:
    """The errors that a Node's report has and that began within the last day; None for a Node without a report."""
    report = gpu_report.of_node(mapping(mapping(node.get("metadata")).get("annotations")))
    if report is None:
        return None
    name = one_line(name_of(node))
    return tuple(error for gpu in report.gpus if _recent(gpu.since, now) for error in _reported(name, gpu))


def _reported(node: str, gpu: ReportedGpu) -> Iterator[HardwareError]:
    since = stamp_of(gpu.since)
    for place, fact in enumerate(gpu.facts):
        if fact.partition(":")[0] in _NO_ERRORS:
            continue
        text = gpu.evidence[place] if place < len(gpu.evidence) else ""
        yield HardwareError(
            node=node, code=_code(fact), at=since, since=since, uuid=gpu.uuid, index=gpu.index, pci=gpu.pci, text=text
        )


def _code(fact: str) -> str:
    """``Xid 79`` for ``xid:79@2``; the fact itself where it has no number."""
    source, _, key = fact.partition(":")
    number = key.partition("@")[0]
    if source in _NUMBERED and number.isascii() and number.isdecimal() and len(number) < 10:
        return f"{_NUMBERED[source]} {int(number)}"
    return fact


def _is_of_health(event: Object) -> bool:
    who = event.get("reportingComponent") or mapping(event.get("source")).get("component")
    reason = event.get("reason")
    return who == _AGENT and isinstance(reason, str) and reason in _OF_HEALTH


def _moment(*stamps: Any) -> float:
    """The first of these that is a time, in seconds since 1970; 0 for none."""
    return next((moment.timestamp() for moment in map(moment_of, stamps) if moment is not None), 0.0)


def _recent(at: float, now: float) -> bool:
    return max(0.0, now - DAY) < at <= now + SKEW


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 < value < 1 << 31 else None
