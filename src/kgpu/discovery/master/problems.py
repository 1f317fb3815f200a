"""What is wrong with rules, groups and NodeFeatures, as records for Events. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from kgpu.base.advice import Advice, Severity
from kgpu.discovery.master.model import StoredFeature, StoredGroup, StoredRules, ToldProblem
from kgpu.discovery.master.plan import NodeVerdict
from kgpu.discovery.rules.model import RuleFailure

MOST: Final = 100
"""Problems that are told of at a time."""
REFUSED: Final = "NodeFeatureRuleRefused"
GROUP_REFUSED: Final = "NodeFeatureGroupRefused"
RULE: Final = "NodeFeatureRule"
GROUP: Final = "NodeFeatureGroup"
_OUTSIDERS: Final = (
    ("NodeFeatures", "NodeFeatureNotUsed", "whoever may write there could label any Node"),
    ("NodeFeatureGroups", "NodeFeatureGroupNotUsed", "whoever may write there could learn what every node has"),
)


def problems(
    rules: Iterable[StoredRules], verdicts: Mapping[str, NodeVerdict], features: Iterable[StoredFeature],
    groups: Iterable[tuple[StoredGroup, Iterable[tuple[str, RuleFailure]]]] = (),
) -> tuple[ToldProblem, ...]:  # fmt: skip
    """All problems, each once; of the same on many nodes, that of the first. Groups come with failures by node."""
    by_name = {one.source.name: one for one in rules}
    listed = list(groups)
    outsiders = ([one for one in features if not one.used], [group for group, _ in listed if not group.used])
    found: dict[tuple[str, str, str], ToldProblem] = {}
    for one in (*_of_rules(by_name), *_of_groups(listed), *_of_nodes(by_name, verdicts), *_of_outsiders(outsiders)):
        about = one.name if one.kind != "Node" else ""
        found.setdefault((one.kind, about, one.advice.one_line()), one)
        if len(found) >= MOST:
            break
    return tuple(found.values())


def _of_rules(rules: Mapping[str, StoredRules]) -> Iterator[ToldProblem]:
    for name, one in sorted(rules.items()):
        for flaw in one.flaws:
            advice = Advice.from_error(flaw.error, subject=f"{name}: {flaw.place}", reason=REFUSED)
            yield ToldProblem(advice=advice, kind=RULE, name=name, uid=one.uid)


def _of_groups(
    groups: Iterable[tuple[StoredGroup, Iterable[tuple[str, RuleFailure]]]],
) -> Iterator[ToldProblem]:
    for group, failures in groups:
        about = f"{group.namespace}/{group.source.name}"
        wrong = {flaw.rule for flaw in group.flaws}  # which is told already, and better
        for place, error in (
            *((flaw.place, flaw.error) for flaw in group.flaws),
            *((f"spec.featureGroupRules[{one.index}]", one.error) for _, one in failures if one.index not in wrong),
        ):
            advice = Advice.from_error(error, subject=f"{about}: {place}", reason=GROUP_REFUSED)
            yield ToldProblem(advice=advice, kind=GROUP, name=group.source.name, uid=group.uid)


def _of_nodes(rules: Mapping[str, StoredRules], verdicts: Mapping[str, NodeVerdict]) -> Iterator[ToldProblem]:
    wrong = {(name, flaw.rule) for name, one in rules.items() for flaw in one.flaws}  # told already, and better
    for node, verdict in sorted(verdicts.items()):
        for failure in verdict.failures:
            if (failure.source, failure.index) in wrong:
                continue
            subject = f'{failure.source}: spec.rules[{failure.index}] "{failure.rule[:60]}"'
            advice = Advice.from_error(failure.error, subject=subject, reason=REFUSED)
            uid = rules[failure.source].uid if failure.source in rules else ""
            yield ToldProblem(advice=advice, kind=RULE, name=failure.source, uid=uid)
        for output in verdict.outputs.rejected:
            advice = Advice.from_error(output.error, subject=output.kind, reason="NodeFeatureRejected")
            yield ToldProblem(advice=advice, kind="Node", name=node, uid=node)


def _of_outsiders(outsiders: Iterable[Iterable[StoredFeature | StoredGroup]]) -> Iterator[ToldProblem]:
    for (what, reason, why), found in zip(_OUTSIDERS, outsiders, strict=True):
        for namespace in sorted({one.namespace for one in found}):
            advice = Advice(
                subject=namespace,
                what=f"{what} of the namespace {namespace} are not used",
                why=why,
                remedy="let them be in kgpu's namespace, choose this one by restrictions.nodeFeatureNamespaceSelector, "
                "or delete them",
                severity=Severity.WARNING,
                reason=reason,
            )
            yield ToldProblem(advice=advice, kind="Namespace", name=namespace)
