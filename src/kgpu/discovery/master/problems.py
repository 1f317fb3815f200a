"""What is wrong with rules and NodeFeatures, as records for Events. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from kgpu.base.advice import Advice, Severity
from kgpu.discovery.master.model import StoredFeature, StoredRules, ToldProblem
from kgpu.discovery.master.plan import NodeVerdict

MOST: Final = 100
"""Problems that are told of at a time."""
REFUSED: Final = "NodeFeatureRuleRefused"
RULE: Final = "NodeFeatureRule"


def problems(
    rules: Iterable[StoredRules], verdicts: Mapping[str, NodeVerdict], features: Iterable[StoredFeature]
) -> tuple[ToldProblem, ...]:
    """All problems, each once; of the same on many nodes, that of the first."""
    by_name = {one.source.name: one for one in rules}
    found: dict[tuple[str, str, str], ToldProblem] = {}
    for one in (*_of_rules(by_name), *_of_nodes(by_name, verdicts), *_of_outsiders(features)):
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


def _of_nodes(rules: Mapping[str, StoredRules], verdicts: Mapping[str, NodeVerdict]) -> Iterator[ToldProblem]:
    for node, verdict in sorted(verdicts.items()):
        for failure in verdict.failures:
            subject = f'{failure.source}: spec.rules[{failure.index}] "{failure.rule[:60]}"'
            advice = Advice.from_error(failure.error, subject=subject, reason=REFUSED)
            uid = rules[failure.source].uid if failure.source in rules else ""
            yield ToldProblem(advice=advice, kind=RULE, name=failure.source, uid=uid)
        for output in verdict.outputs.rejected:
            advice = Advice.from_error(output.error, subject=output.kind, reason="NodeFeatureRejected")
            yield ToldProblem(advice=advice, kind="Node", name=node, uid=node)


def _of_outsiders(features: Iterable[StoredFeature]) -> Iterator[ToldProblem]:
    for namespace in sorted({one.namespace for one in features if not one.used}):
        advice = Advice(
            subject=namespace,
            what=f"NodeFeatures of the namespace {namespace} are not used",
            why="whoever may write there could label any Node",
            remedy="let the program that writes them do so in kgpu's namespace, or delete them",
            severity=Severity.WARNING,
            reason="NodeFeatureNotUsed",
        )
        yield ToldProblem(advice=advice, kind="Namespace", name=namespace)
