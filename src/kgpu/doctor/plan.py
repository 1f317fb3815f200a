"""From evidence to the report: rules asked, consequences folded under their causes, the most certain root first.

Pure: a snapshot in, a report out. A rule that fails is told as missing evidence; the others count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from kgpu.base.problems import describe
from kgpu.doctor import hearsay, matching
from kgpu.doctor.agent_reports import going_on, ill
from kgpu.doctor.draining import with_bare_pods
from kgpu.doctor.model import LIKELY, Finding, Level, Missing, Place, Report, Subject, folded
from kgpu.doctor.operated import left_to_operations
from kgpu.doctor.rule import Rule
from kgpu.doctor.rules import all_rules, is_named
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.steps import against_the_state
from kgpu.doctor.unexplained import may_follow, stuck_pods, unexplained
from kgpu.formats import names

MAX_PER_RULE: Final = 500
_EVERYTHING: Final[tuple[str, object]] = ("everything", "")
_OF_DEVICES: Final = frozenset({"HW", "KRN", "DRV", "DPL", "AMD", "GAU"})
"""Groups of rules of which those that lie deep are about a node's devices and driver themselves."""
_NODES_OWN: Final = "NODE-00"
"""What a node says of itself, where no other rule knows it."""
_LEVELS: Final = {Level.PROBLEM: 0, Level.WAIT: 1, Level.NOTE: 2}
WORKLOADS: Final = frozenset(
    {"Pod", "Deployment", "ReplicaSet", "StatefulSet", "Job", "CronJob", "ResourceClaim", "ResourceClaimTemplate"}
)
"""Kinds of which one object is one piece of somebody's work, unless it is of the GPU stack."""


def diagnose(
    snapshot: Snapshot, *, target: Subject | None = None, namespace: str = "", rules: Sequence[Rule] | None = None,
    strict: bool = False,
) -> Report:  # fmt: skip
    """Ask every rule. With a target only what hurts it is kept, with a namespace alone what is of it or hurts pods in
    it. ``strict``: a rule's error is raised.
    """
    checked_rules = all_rules() if rules is None else rules
    snapshot.sort()
    findings: list[Finding] = []
    missing = list(snapshot.missing)
    for rule in checked_rules:
        try:
            for finding in rule.check(snapshot):
                whole = replace(finding, id=finding.id or rule.id, place=rule.place)
                weighed = left_to_operations(hearsay.weighed(whole, snapshot), snapshot)
                safe = with_bare_pods(weighed, snapshot)
                findings.append(against_the_state(safe, snapshot))
                if len(findings) > MAX_PER_RULE * len(checked_rules):
                    break
        except Exception as error:
            if strict:
                raise
            missing.append(Missing(f"rule {rule.id}", f"a defect: {describe(error)}", "report it with the archive"))
    by_rule = {rule.id: rule for rule in checked_rules}
    roots = fold(without_needless(distinct(findings), by_rule, snapshot), by_rule)
    for finding in [finding for finding in unexplained(snapshot, roots) if finding.id in by_rule]:
        put_under_its_cause(finding, roots, snapshot)
    if target is not None:
        wanted = related(snapshot, target)
        below = devices_below(snapshot, wanted)
        roots = [
            finding
            for finding in roots
            if any(hurts(each, wanted) or is_of_devices(snapshot, each, below) for each in finding.all())
        ]
    elif namespace:
        roots = [finding for finding in roots if any(is_within(each, namespace) for each in finding.all())]
    stack = _stack(snapshot, roots)
    return Report(
        findings=tuple(sorted(roots, key=lambda finding: order(finding, stack))),
        missing=tuple(dict.fromkeys([*missing, *snapshot.missing])),  # rules add what they would have needed
        checked=len(checked_rules),
        scope=str(target) if target else f"Namespace {namespace}" if namespace else "Cluster",
        looked=snapshot.counts(),
        stuck=stuck(snapshot, namespace if target is None else ""),
    )


def is_within(finding: Finding, namespace: str) -> bool:
    """Whether a finding is about something in a namespace, or hurts a pod in it."""
    return finding.subject.namespace == namespace or any(pod.startswith(f"{namespace}/") for pod in finding.pods)


def put_under_its_cause(finding: Finding, roots: list[Finding], snapshot: Snapshot) -> None:
    """What no rule knows under the surest of the roots that may be the reason; as one of its own where none may."""
    able = [at for at, root in enumerate(roots) if any(may_follow(snapshot, finding, each) for each in root.all())]
    if not able:
        roots.append(finding)
        return
    at = min(able, key=lambda position: _weight(roots[position]))
    roots[at] = folded(roots[at], (finding,))


def order(finding: Finding, stack: frozenset[Subject] = frozenset()) -> tuple[int, float, bool, int, int, str, str]:
    """What needs somebody first, then the most certain, then what is of the stack or of nodes before what is of one
    piece of work, then from the bottom up, then whoever hurts most pods.

    ``stack`` are the pods and workloads that are of the GPU stack itself.
    """
    level, unsure, place, pods, rule, subject = _weight(finding)
    alone = finding.subject.kind in WORKLOADS and finding.subject not in stack
    return (level, unsure, alone, place, pods, rule, subject)


def _weight(finding: Finding) -> tuple[int, float, int, int, str, str]:
    """What explains more comes first, among those that can explain the same."""
    return (
        _LEVELS[finding.level], -finding.confidence, finding.place, -len(finding.pods), finding.id,
        str(finding.subject),
    )  # fmt: skip


def _stack(snapshot: Snapshot, findings: Iterable[Finding]) -> frozenset[Subject]:
    """The findings' workloads that belong to a GPU stack."""
    found = set()
    for one in {each.subject for root in findings for each in root.all() if each.subject.kind in WORKLOADS}:
        obj = snapshot.get(one.kind, one.name, one.namespace)
        if obj is None:
            continue
        if matching.believed(snapshot, obj):
            found.add(one)
    return frozenset(found)


def stuck(snapshot: Snapshot, namespace: str = "") -> int:
    """Pods with accelerators that do not run, in one namespace or all, and for all also nodes that are not Ready."""
    if namespace:
        return sum(pod.namespace == namespace for pod in stuck_pods(snapshot))
    return len(stuck_pods(snapshot)) + sum(not node.ready for node in matching.gpu_nodes(snapshot))


def distinct(found: Iterable[Finding]) -> list[Finding]:
    """Without what is said twice: of one rule about one subject with one cause the surest stays, a note last."""
    kept: dict[tuple[str, Subject, str], Finding] = {}
    for one in found:
        key = (one.id, one.subject, one.cause)
        if key not in kept or _rank(kept[key]) < _rank(one):
            kept[key] = one
    return list(kept.values())


def _rank(one: Finding) -> tuple[bool, float]:
    return one.level is not Level.NOTE, one.confidence


def without_needless(findings: list[Finding], rules: dict[str, Rule], snapshot: Snapshot) -> list[Finding]:
    """Without what a last resort says where something else is told that it does not itself explain.

    Told of its pods by anything; of its node by what lies deeper, or is of the same group of rules. A note counts for
    notes alone: what hurts nobody explains nothing. A stack's pod that does not start stays, and is folded under what
    is told of its node.
    """
    real = [finding for finding in findings if not rules[finding.id].last_resort and finding.level is not Level.NOTE]
    noted = {
        (_group(finding.id), pod)
        for finding in findings
        for pod in finding.pods
        if finding.level is Level.NOTE and not rules[finding.id].last_resort
    }
    told_of = {
        pod for finding in real for pod in finding.pods or (f"{finding.subject.namespace}/{finding.subject.name}",)
    }
    subjects = {finding.subject for finding in real}
    by_node: dict[str, list[Finding]] = {}
    for finding in real:
        for node in finding.nodes:
            by_node.setdefault(node, []).append(finding)

    harmless = going_on(snapshot)

    def needless(finding: Finding) -> bool:
        rule = rules[finding.id]
        if not rule.last_resort or finding.stays:
            return False
        if not told_of.isdisjoint(finding.pods):
            return True
        if finding.level is Level.NOTE and any((_group(finding.id), pod) in noted for pod in finding.pods):
            return True
        if not finding.pods and not finding.nodes:
            return not subjects.isdisjoint(_behind(snapshot, finding.subject))
        if finding.subject.kind != "Node":
            return False
        others = [
            rival
            for node in finding.nodes
            for rival in by_node.get(node, ())
            # That checks of the node fail does not follow from GPUs that go on working.
            if not (rival.place is Place.HARDWARE and node in harmless and _of_checks(finding))
        ]
        return any(
            (rival.place < finding.place or _group(rival.id) == _group(finding.id))
            and not is_named(rival.id, rule.explains)
            for rival in others
        )

    return [finding for finding in findings if not needless(finding)]


def _of_checks(one: Finding) -> bool:
    return any(names.VALIDATED_CONDITION in each.field for each in one.evidence)


def _behind(snapshot: Snapshot, one: Subject) -> set[Subject]:
    """A subject, its namespace, its controller, and that one's."""
    obj = snapshot.get(one.kind, one.name, one.namespace)
    chain = snapshot.owners(obj) if obj is not None else ()
    owners = {Subject(kind, name, one.namespace) for kind, name, _ in chain}
    return {Subject("Namespace", one.namespace), one, *owners}


def _group(rule_id: str) -> str:
    """The rule's group: SCH for ``SCH-01``."""
    return rule_id.partition("-")[0]


def fold(findings: list[Finding], rules: dict[str, Rule]) -> list[Finding]:
    """Every finding that another one explains goes under the surest that does; the rest are roots."""
    parents: dict[int, int] = {}
    near: dict[tuple[str, object], list[int]] = {}
    for position, finding in enumerate(findings):
        for key in (*_keys(finding), *([_EVERYTHING] if not finding.nodes and not finding.pods else [])):
            near.setdefault(key, []).append(position)
    for child, finding in enumerate(findings):
        able = [
            parent
            for parent in sorted({at for key in (*_keys(finding), _EVERYTHING) for at in near.get(key, ())})
            if (explaining := findings[parent]).id != finding.id
            and (_may_explain(rules, explaining, finding) or _below(rules, explaining, finding))
        ]
        reasons = [parent for parent in able if _wholly(findings[parent], finding)]
        by_node = [parent for parent in able if not set(findings[parent].nodes).isdisjoint(finding.nodes)]
        if set(finding.nodes) <= {node for parent in by_node for node in findings[parent].nodes}:
            reasons += by_node  # each explains some of the nodes, all of them together the whole
        if reasons:
            parents[child] = min(reasons, key=lambda parent: _weight(findings[parent]))
    _break_circles(parents)
    under: dict[int, list[int]] = {}
    for child, parent in parents.items():
        under.setdefault(parent, []).append(child)

    def whole(position: int) -> Finding:
        below = tuple(sorted((whole(child) for child in under.get(position, ())), key=_weight))
        return folded(findings[position], below)

    return [whole(position) for position in range(len(findings)) if position not in parents]


def _keys(one: Finding) -> Iterator[tuple[str, object]]:
    """By what findings are near each other: only of the same thing, node or pod can one follow from another."""
    yield "subject", one.subject
    yield from (("node", node) for node in one.nodes)
    yield from (("pod", pod) for pod in one.pods)


def _may_explain(rules: dict[str, Rule], cause: Finding, effect: Finding) -> bool:
    """Whether the one follows from the other, where both hurt the same."""
    rule, other = rules.get(cause.id), rules.get(effect.id)
    if rule is None or cause.level is Level.NOTE or (cause.confidence < LIKELY and not rule.last_resort):
        return False
    if effect.level is Level.NOTE or not is_named(effect.id, rule.explains):
        return False
    return other is None or not other.by_hand or effect.id in rule.explains


def _wholly(cause: Finding, effect: Finding) -> bool:
    """Whether a cause is about the very thing, about everything, about one of its pods, or about all of its nodes."""
    if cause.subject == effect.subject or (not cause.nodes and not cause.pods):
        return True
    return bool(set(cause.pods) & set(effect.pods)) or (bool(effect.nodes) and set(effect.nodes) <= set(cause.nodes))


def _below(rules: dict[str, Rule], cause: Finding, effect: Finding) -> bool:
    """Whether a stack's pod does not start, of which nobody knows why, on a node of which something deeper is told."""
    resort, other = rules.get(effect.id), rules.get(cause.id)
    if resort is None or other is None or not resort.last_resort or other.last_resort:
        return False
    if effect.subject.kind != "Pod" or Place.CLUSTER in (cause.place, effect.place) or cause.confidence < LIKELY:
        return False
    return cause.level is not Level.NOTE and bool(set(cause.nodes) & set(effect.nodes))


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
    """The target and the objects related to it: a controller's pods, a claim's pods, a pod's owner and claims."""
    obj = snapshot.get(target.kind, target.name, target.namespace)
    subjects = {target}
    if obj is None:
        return frozenset(subjects)
    for pod in snapshot.pods_of(obj):
        subjects.add(pod.subject)
    for kind in ("ReplicaSet", "Job"):
        subjects |= {
            controller.subject
            for controller in snapshot.all(kind)
            if controller.namespace == obj.namespace and controller.owner == f"{obj.kind}/{obj.name}"
        }
    if target.kind == "ResourceClaim":
        for pod in snapshot.pods.values():
            view = snapshot.view(pod)
            if view and pod.namespace == target.namespace and any(claim.claim == target.name for claim in view.claims):
                subjects.add(pod.subject)
    if target.kind == "Pod" and obj.owner:
        kind, _, name = obj.owner.partition("/")
        subjects.add(Subject(kind, name, target.namespace))
        view = snapshot.view(snapshot.pods[obj.key])
        subjects |= {
            Subject("ResourceClaim", claim.claim, obj.namespace)
            for claim in (view.claims if view else ())
            if claim.claim
        }
    return frozenset(subjects)


def hurts(finding: Finding, wanted: frozenset[Subject]) -> bool:
    """Whether a finding is about one of these, or says that it hurts one of them."""
    if finding.subject in wanted:
        return True
    nodes = {one.name for one in wanted if one.kind == "Node"}
    pods = {f"{one.namespace}/{one.name}" for one in wanted if one.kind == "Pod"}
    return bool(nodes & set(finding.nodes)) or bool(pods & set(finding.pods))


def devices_below(snapshot: Snapshot, wanted: frozenset[Subject]) -> frozenset[str]:
    """The nodes on which pods among these have accelerators."""
    pods = [pod for one in wanted if one.kind == "Pod" and (pod := snapshot.pods.get((one.namespace, one.name)))]
    return frozenset(pod.node for pod in pods if pod.node and not pod.ended and matching.uses_accelerators(pod))


def is_of_devices(snapshot: Snapshot, finding: Finding, nodes: frozenset[str]) -> bool:
    """Whether a finding is that accelerators of one of these nodes, or their driver, are broken: that concerns whatever
    has some of them, though it still runs. Which of a node's devices a pod has is not asked.
    """
    if finding.level is not Level.PROBLEM or nodes.isdisjoint(finding.nodes):
        return False
    if finding.subject.kind != "Node":
        # What befell a neighbour may be its own doing; what befell a part of the stack is the node's.
        pod = snapshot.pods.get((finding.subject.namespace, finding.subject.name))
        if finding.subject.kind != "Pod" or pod is None or not matching.is_part(snapshot, pod):
            return False
    if finding.place <= Place.DRIVER:
        return _group(finding.id) in _OF_DEVICES
    return finding.id == _NODES_OWN and not ill(snapshot).isdisjoint(nodes & set(finding.nodes))
