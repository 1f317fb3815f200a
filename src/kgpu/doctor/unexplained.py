"""Pods with accelerators, and parts of a GPU stack, that do not run and of which no rule tells anything.

Nobody knows why, and they are told all the same, with what the cluster says of them, so that "nothing was found" never
hides one. Who may still be starting in an ordinary way is left to the report's count of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import matching, remedies
from kgpu.doctor.kinds import Pod
from kgpu.doctor.model import LIKELY, POSSIBLE, Evidence, Finding, Level
from kgpu.doctor.objects import Condition, Key
from kgpu.doctor.progress import works
from kgpu.doctor.rules.pods.not_starting import OLD, PATIENCE, SHORT, age_of
from kgpu.doctor.snapshot import Snapshot

_POD, _PART, _UNPLACED = "POD-00", "OPR-00", "SCH-00"
"""The rules whose last word this is: of pods with accelerators, of those of a GPU stack, of those without a node."""
_MANY: Final = 200
"""Groups of pods that are told apart."""


def stuck_pods(snapshot: Snapshot) -> tuple[Pod, ...]:
    """The pods with accelerators that do not run."""
    return snapshot.once(_stuck_pods)


def _stuck_pods(snapshot: Snapshot) -> tuple[Pod, ...]:
    pods = snapshot.pods.values()
    return tuple(pod for pod in pods if not pod.ended and not pod.ready and matching.uses_accelerators(pod))


def unexplained(snapshot: Snapshot, roots: Iterable[Finding]) -> Iterator[Finding]:
    """A finding for those of one owner that stand alike and that no finding names; on a node of which something is told
    one for each node, as that may be the reason there. A note is enough for one that is young, and explains none that
    has stood for long.
    """
    every = [each for root in roots for each in root.all()]
    named = _named(finding for finding in every if finding.level is not Level.NOTE)
    noted = _named(every) - named
    away = {
        name
        for finding in every
        for name in finding.nodes
        if (node := snapshot.nodes.get(name)) and node.ready is False
    }
    told = {name for finding in every if finding.level is not Level.NOTE for name in finding.nodes}
    groups: dict[tuple[str, str, str, str], list[Pod]] = {}
    for pod in (*stuck_pods(snapshot), *_unready_parts(snapshot)):
        if pod.path in named or (pod.path in noted and _is_young(snapshot, pod)):
            continue
        if pod.node in away or _can_not_be_judged(snapshot, pod) or starts(snapshot, pod):
            continue
        apart = pod.node if pod.node in told and matching.is_part(snapshot, pod) else ""
        key = (pod.namespace, pod.owner or pod.name, _words(snapshot, pod), apart)
        groups.setdefault(key if key in groups or len(groups) < _MANY else ("", "", "", ""), []).append(pod)
    for pods in groups.values():
        yield _finding(snapshot, pods)


def _named(findings: Iterable[Finding]) -> set[str]:
    """The pods that findings are about, or name."""
    told = list(findings)
    subjects = (finding.subject for finding in told if finding.subject.kind == "Pod")
    named = {f"{subject.namespace}/{subject.name}" for subject in subjects}
    return named | {path for finding in told for path in finding.pods}


def _is_young(snapshot: Snapshot, pod: Pod) -> bool:
    age = age_of(snapshot, pod, None)
    return age is None or age < OLD


def _unready_parts(snapshot: Snapshot) -> Iterator[Pod]:
    """The parts of a GPU stack that are not ready."""
    for pod in snapshot.pods.values():
        if not (pod.ended or pod.ready or matching.uses_accelerators(pod)) and matching.is_part(snapshot, pod):
            yield pod


def may_follow(snapshot: Snapshot, part: Finding, cause: Finding) -> bool:
    """Whether a part of the stack, of which no rule tells, may be unready for what is told of its node: parts wait for
    each other in their init containers, and what is at fault with the node stops all of them.
    """
    if part.id != _PART or cause.level is Level.NOTE or not part.nodes or not set(part.nodes) <= set(cause.nodes):
        return False
    if cause.subject.kind == "Node":
        return cause.confidence >= LIKELY
    other = snapshot.pods.get((cause.subject.namespace, cause.subject.name)) if cause.subject.kind == "Pod" else None
    pods = [pod for path in part.pods if (pod := snapshot.pods.get(_key(path)))]
    waits = all(matching.initialising(pod) is not None for pod in pods)
    return waits and other is not None and matching.is_part(snapshot, other)


def _key(path: str) -> Key:
    namespace, _, name = path.partition("/")
    return namespace, name


def _can_not_be_judged(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether the report says by itself that nobody knows: where a pod could run no one can say without nodes."""
    return not pod.node and not snapshot.nodes


def starts(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether a pod may be on its way, as far as can be seen, for as long as that takes as a rule."""
    if pod.deleting:
        return snapshot.overdue(pod) is None
    age = age_of(snapshot, pod, None)
    at = matching.initialising(pod)
    if at is not None and works(snapshot, pod, at):
        return True
    if not matching.uses_accelerators(pod):  # parts of a stack wait for each other, and end for it
        return age is None or age < _patience(snapshot, pod)
    return not _is_odd(snapshot, pod) and age is not None and age < _patience(snapshot, pod)


def _patience(snapshot: Snapshot, pod: Pod) -> float:
    """Seconds that a pod may stand as it does: POD-00 and OPR-00 give it as many."""
    if matching.initialising(pod) is not None:
        return PATIENCE if matching.is_part(snapshot, pod) else SHORT
    loads = any(one.state == "running" and not one.ready for one in pod.containers)
    return 3 * PATIENCE if loads else OLD


def _is_odd(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether it stands as no pod does that starts in an ordinary way, however young it is."""
    node = snapshot.nodes.get(pod.node)
    return matching.failing(pod) is not None or (node is not None and node.ready is False)


def _finding(snapshot: Snapshot, pods: list[Pod]) -> Finding:
    pod = pods[0]
    age = age_of(snapshot, pod, None)
    young = _is_young(snapshot, pod)
    where = f" on node {pod.node}" if pod.node else ""
    of = f"of {pod.owner}" if len({sibling.owner for sibling in pods}) == 1 else "of which no more is known"
    more = f" (and {len(pods) - 1} more {of})" if len(pods) > 1 else ""
    how = "is not ready" if pod.node else "has no node"
    since = f" for {int((age or 0.0) // 60)} minutes" if not young else ""
    return Finding(
        id=_PART if matching.is_part(snapshot, pod) else _POD if pod.node else _UNPLACED,
        subject=pod.subject,
        cause=f"{pod}{where}{more} {how}{since}{_words(snapshot, pod)}",
        evidence=tuple(_evidence(snapshot, pod)),
        remedy=_steps(snapshot, pod),
        confidence=POSSIBLE,
        level=Level.NOTE if young else Level.PROBLEM,
        since=pod.created,
        nodes=tuple(dict.fromkeys(sibling.node for sibling in pods if sibling.node))
        if matching.is_part(snapshot, pod)
        else (),
        pods=tuple(sibling.path for sibling in pods),
    )


def _said(pod: Pod) -> Condition | None:
    """The condition by which it is told how a pod stands."""
    return pod.condition("Ready" if pod.node else "PodScheduled")


def _words(snapshot: Snapshot, pod: Pod) -> str:
    """What is known of it, as the end of a sentence."""
    at = matching.failing(pod)
    if at is not None:
        return ": ".join(filter(None, (f": container {at.name}", at.waiting or at.end_reason, at.message)))
    node = snapshot.nodes.get(pod.node)
    if node is not None and node.ready is False:
        return ": its node is not Ready"
    condition = _said(pod)
    if condition is None:
        nobody = "its kubelet has said" if pod.node else "a scheduler has said"
        return f", and neither by a condition nor otherwise {nobody} why"
    why = ": ".join(filter(None, (condition.reason, condition.message)))
    known = f"{condition.type} is {condition.status}" + (f" ({why})" if why else "")
    return f", and nothing that is known here says why; {known}"


def _evidence(snapshot: Snapshot, pod: Pod) -> Iterator[Evidence]:
    found = _said(pod)
    yield found.cite() if found is not None else pod.cite("status.phase")
    at = next((one for one in pod.blamed if not one.ready and one.state), None)
    if at is not None:
        yield at.cite_status()
    node = snapshot.nodes.get(pod.node)
    ready = node.condition("Ready") if node is not None and node.ready is False else None
    if ready is not None:
        yield ready.cite()


def _steps(snapshot: Snapshot, pod: Pod) -> tuple[Remedy, ...]:
    node = snapshot.nodes.get(pod.node)
    away = (remedies.describe_node(node.name),) if node is not None and node.ready is False else ()
    return (*away, remedies.describe(pod.namespace, "pod", pod.name))
