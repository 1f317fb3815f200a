"""Rules that are known by a sentence: a pattern, where it is said, and what it means. Rows of data, one loop.

A sentence counts only while it hurts: the log of a pod that is ready, or an event of a pod that has become ready, says
what was. ``always`` is for sentences of pods that look healthy. Hits in pods of one owner are one finding.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import cluster_policy, matching, messages
from kgpu.doctor.kinds import Pod
from kgpu.doctor.messages import Hit
from kgpu.doctor.model import LIKELY, Evidence, Finding, Level, Place, Subject
from kgpu.doctor.objects import plain
from kgpu.doctor.rule import Rule
from kgpu.doctor.snapshot import Snapshot

MAX_QUOTED: Final = 3


class Source(enum.Enum):
    """Where a sentence is looked for."""

    LOG = enum.auto()
    EVENT = enum.auto()
    STATUS = enum.auto()
    """A container's waiting or ending message, or the pod's own."""
    KERNEL = enum.auto()


LOG, EVENT, STATUS, KERNEL = Source.LOG, Source.EVENT, Source.STATUS, Source.KERNEL


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """A rule of this kind.

    ``pattern`` is searched in lines that have ``words``, a literal part of every match. ``parts`` (of ``matching``)
    limit whose logs and events count; none: every pod's. ``cause`` and ``remedy`` may name ``{who}`` (the pod, and how
    many like it), ``{pod}``, ``{namespace}``, ``{name}``, ``{node}``, ``{policy}`` (the name of the ClusterPolicy in
    force) and the pattern's named groups.
    ``proof`` looks for more: it gives further evidence, or None when the sentence means something else here.
    ``besides`` finds the same cause by other evidence, such as the host's facts.
    """

    id: str
    title: str
    place: Place
    pattern: str
    words: str
    cause: str
    remedy: tuple[str, ...]
    explain: str
    where: tuple[Source, ...] = (LOG, EVENT, STATUS)
    parts: tuple[str, ...] = ()
    always: bool = False
    confidence: float = LIKELY
    level: Level = Level.PROBLEM
    expected: str = ""
    explains: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    rests_on: tuple[str, ...] = ()
    proof: Callable[[Snapshot, Hit], tuple[Evidence, ...] | None] | None = None
    besides: Callable[[Snapshot], Iterable[Finding]] | None = None


def rules_of(*signs: Sign) -> tuple[Rule, ...]:
    """A rule for each row."""
    return tuple(
        Rule(
            id=sign.id,
            title=sign.title,
            place=sign.place,
            check=_check(sign),
            explain=sign.explain,
            explains=sign.explains,
            also=sign.also,
            rests_on=sign.rests_on,
        )
        for sign in signs
    )


def _check(sign: Sign) -> Callable[[Snapshot], Iterable[Finding]]:
    pattern = re.compile(sign.pattern)

    def check(snapshot: Snapshot) -> Iterator[Finding]:
        seen: set[str] = set()
        for finding in sign.besides(snapshot) if sign.besides else ():
            seen.update(finding.nodes)
            yield finding
        for finding in findings(snapshot, sign, pattern):
            if not seen or not set(finding.nodes) <= seen:
                yield finding

    return check


def findings(snapshot: Snapshot, sign: Sign, pattern: re.Pattern[str]) -> Iterator[Finding]:
    """One finding for each owner whose pods say the sentence, or for each node whose kernel does."""
    groups: dict[tuple[str, str], list[tuple[Hit, tuple[Evidence, ...]]]] = {}
    for hit in _hits(snapshot, sign, pattern):
        more = sign.proof(snapshot, hit) if sign.proof else ()
        if more is None:
            continue
        owner = f"{hit.pod.namespace}/{hit.pod.owner or hit.pod.name}" if hit.pod else hit.node
        groups.setdefault((owner, str(hit.match.groups())), []).append((hit, more))
    for rows in groups.values():
        yield _finding(snapshot, sign, rows)


def _finding(snapshot: Snapshot, sign: Sign, rows: list[tuple[Hit, tuple[Evidence, ...]]]) -> Finding:
    first = rows[0][0]
    pods = tuple(dict.fromkeys(hit.pod.path for hit, _ in rows if hit.pod))
    nodes = tuple(dict.fromkeys(hit.node for hit, _ in rows if hit.node))
    subject = first.pod.subject if first.pod else Subject("Node", first.node)
    more = f" (and {len(pods) - 1} more of {first.pod.owner or 'the same kind'})" if first.pod and len(pods) > 1 else ""
    where = f" on node {first.node}" if first.pod and first.node else ""
    groups = {key: value or "" for key, value in first.match.groupdict().items()}
    pasted = {key: plain(value) for key, value in groups.items()}  # whoever writes a log must not write a command
    words = {
        "who": f"{subject}{where}{more}",
        "pod": str(subject),
        "namespace": subject.namespace,
        "name": subject.name,
        "node": first.node or "NODE",
        "policy": cluster_policy.name(snapshot),
    }
    shown = [part for hit, extra in rows[:MAX_QUOTED] for part in (hit.evidence, *extra)]
    return Finding(
        subject=subject,
        cause=sign.cause.format_map(groups | words),
        evidence=tuple(shown),
        remedy=tuple(Remedy(step, **(pasted | words)) for step in sign.remedy),
        confidence=sign.confidence,
        level=sign.level,
        expected=sign.expected,
        since=_since(first.pod),
        nodes=nodes,
        pods=pods,
    )


def _since(pod: Pod | None) -> str:
    if pod is None:
        return ""
    found = pod.condition("Ready")
    return (found.since if found and found.status != "True" else "") or pod.created


def _hits(snapshot: Snapshot, sign: Sign, pattern: re.Pattern[str]) -> Iterator[Hit]:
    seen: set[tuple[str, str]] = set()
    for source in sign.where:
        for hit in _SEARCHES[source](snapshot, sign, pattern):
            if source is not KERNEL and not _counts(snapshot, sign, hit, source):
                continue
            key = hit.pod.key if hit.pod else ("", hit.node)
            if key not in seen:
                seen.add(key)
                yield hit


def _counts(snapshot: Snapshot, sign: Sign, hit: Hit, source: Source) -> bool:
    if hit.pod is None or matching.superseded(snapshot, hit.pod):
        return False
    if sign.parts and source is not LOG and hit.pod.key not in _keys(snapshot, sign.parts):
        return False
    return sign.always or not (hit.pod.ready or hit.pod.phase == "Succeeded")


def _keys(snapshot: Snapshot, parts: tuple[str, ...]) -> set[tuple[str, str]]:
    return {pod.key for part in parts for pod in matching.pods_of_part(snapshot, part)}


_SEARCHES: Final[dict[Source, Callable[[Snapshot, Sign, re.Pattern[str]], Iterable[Hit]]]] = {
    LOG: lambda snapshot, sign, pattern: messages.in_logs(snapshot, pattern, sign.words, parts=sign.parts),
    EVENT: lambda snapshot, sign, pattern: messages.in_events(snapshot, pattern, sign.words),
    STATUS: lambda snapshot, sign, pattern: messages.in_status(snapshot, pattern, sign.words),
    KERNEL: lambda snapshot, sign, pattern: messages.in_kernel_logs(snapshot, pattern, sign.words),
}
