"""From evidence to the report: rules asked, consequences folded under their causes, the most certain root first.

Pure: a snapshot in, a report out. A rule that fails is told as missing evidence; the others count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from kgpu.base.problems import describe
from kgpu.doctor.model import LIKELY, Finding, Level, Missing, Place, Report, Subject, folded
from kgpu.doctor.rule import Rule
from kgpu.doctor.rules import all_rules, is_named
from kgpu.doctor.snapshot import Snapshot

MAX_PER_RULE: Final = 500
_LEVELS: Final = {Level.PROBLEM: 0, Level.WAIT: 1, Level.NOTE: 2}


def diagnose(
    snapshot: Snapshot, *, target: Subject | None = None, rules: Sequence[Rule] | None = None, strict: bool = False
) -> Report:
    """Ask every rule. With a target only what hurts it is kept. ``strict``: a rule's error is raised."""
    asked = all_rules() if rules is None else rules
    snapshot.sort()
    found: list[Finding] = []
    missing = list(snapshot.missing)
    for rule in asked:
        try:
            for finding in rule.check(snapshot):
                found.append(replace(finding, id=finding.id or rule.id, place=rule.place))
                if len(found) > MAX_PER_RULE * len(asked):
                    break
        except Exception as error:
            if strict:
                raise
            missing.append(Missing(f"rule {rule.id}", f"a defect: {describe(error)}", "report it with the archive"))
    by_rule = {rule.id: rule for rule in asked}
    roots = fold(without_needless(distinct(found), by_rule), by_rule)
    if target is not None:
        wanted = related(snapshot, target)
        roots = [one for one in roots if any(hurts(each, wanted) for each in one.all())]
    return Report(
        findings=tuple(sorted(roots, key=order)),
        missing=tuple(dict.fromkeys([*missing, *snapshot.missing])),  # rules add what they would have needed
        checked=len(asked),
        scope=str(target) if target else "Cluster",
        looked=snapshot.counts(),
    )


def order(finding: Finding) -> tuple[int, float, int, int, str, str]:
    """What needs somebody first, then the most certain, then from the bottom up, then whoever hurts most pods."""
    return (
        _LEVELS[finding.level], -finding.confidence, finding.place, -len(finding.pods), finding.id,
        str(finding.subject),
    )  # fmt: skip


def distinct(found: Iterable[Finding]) -> list[Finding]:
    """Without what is said twice: of one rule about one subject with one cause the surest stays."""
    kept: dict[tuple[str, Subject, str], Finding] = {}
    for one in found:
        key = (one.id, one.subject, one.cause)
        if key not in kept or kept[key].confidence < one.confidence:
            kept[key] = one
    return list(kept.values())


def without_needless(found: list[Finding], rules: dict[str, Rule]) -> list[Finding]:
    """Without what a last resort says of pods, or below the cluster of nodes, of which something else is told."""
    others = [one for one in found if one.level is not Level.NOTE and not rules[one.id].last_resort]
    pods = {pod for one in others for pod in one.pods or (f"{one.subject.namespace}/{one.subject.name}",)}
    nodes = {node for one in others if one.place is not Place.CLUSTER for node in one.nodes}

    def needless(one: Finding) -> bool:
        below = one.place is not Place.CLUSTER and bool(nodes.intersection(one.nodes))
        return rules[one.id].last_resort and (below or bool(pods.intersection(one.pods)))

    return [one for one in found if not needless(one)]


def fold(found: list[Finding], rules: dict[str, Rule]) -> list[Finding]:
    """Every finding that another one explains goes under the surest that does; the rest are roots."""
    parents: dict[int, int] = {}
    for child, one in enumerate(found):
        reasons = [
            parent
            for parent, other in enumerate(found)
            if parent != child and other.id != one.id and _explains(rules.get(other.id), other, one)
        ]
        if reasons:
            parents[child] = min(reasons, key=lambda parent: order(found[parent]))
    _break_circles(parents)
    under: dict[int, list[int]] = {}
    for child, parent in parents.items():
        under.setdefault(parent, []).append(child)

    def whole(position: int) -> Finding:
        below = tuple(sorted((whole(child) for child in under.get(position, ())), key=order))
        return folded(found[position], below)

    return [whole(position) for position in range(len(found)) if position not in parents]


def _explains(rule: Rule | None, cause: Finding, effect: Finding) -> bool:
    if rule is None or cause.confidence < LIKELY or cause.level is Level.NOTE:
        return False
    if effect.level is Level.NOTE or not is_named(effect.id, rule.explains):
        return False
    if cause.subject == effect.subject or (not cause.nodes and not cause.pods):
        return True
    return bool(set(cause.nodes) & set(effect.nodes)) or bool(set(cause.pods) & set(effect.pods))


def _break_circles(parents: dict[int, int]) -> None:
    for start in list(parents):
        seen = {start}
        at = parents.get(start)
        while at is not None:
            if at in seen:
                del parents[start]
                break
            seen.add(at)
            at = parents.get(at)


def related(snapshot: Snapshot, target: Subject) -> frozenset[Subject]:
    """The target and whatever stands for it: a controller's pods, a claim's pods, a pod's owner and claims."""
    obj = snapshot.get(target.kind, target.name, target.namespace)
    found = {target}
    if obj is None:
        return frozenset(found)
    for pod in snapshot.pods_of(obj):
        found.add(pod.subject)
    for kind in ("ReplicaSet", "Job"):
        found |= {
            one.subject
            for one in snapshot.all(kind)
            if one.namespace == obj.namespace and one.owner == f"{obj.kind}/{obj.name}"
        }
    if target.kind == "ResourceClaim":
        for pod in snapshot.pods.values():
            view = snapshot.view(pod)
            if view and pod.namespace == target.namespace and any(one.claim == target.name for one in view.claims):
                found.add(pod.subject)
    if target.kind == "Pod" and obj.owner:
        kind, _, name = obj.owner.partition("/")
        found.add(Subject(kind, name, target.namespace))
        view = snapshot.view(snapshot.pods[obj.key])
        found |= {
            Subject("ResourceClaim", one.claim, obj.namespace) for one in (view.claims if view else ()) if one.claim
        }
    return frozenset(found)


def hurts(finding: Finding, wanted: frozenset[Subject]) -> bool:
    """Whether a finding is about one of these, or says that it hurts one of them."""
    if finding.subject in wanted:
        return True
    nodes = {one.name for one in wanted if one.kind == "Node"}
    pods = {f"{one.namespace}/{one.name}" for one in wanted if one.kind == "Pod"}
    return bool(nodes & set(finding.nodes)) or bool(pods & set(finding.pods))
