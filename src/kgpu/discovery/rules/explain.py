"""Why a rule matches a node or doesn't: every term and expression with what the node has. Pure.

Whether a rule matches, and what is told of its expressions, is asked of the functions that carry rules out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kgpu.discovery.features.model import FeatureSet
from kgpu.discovery.rules.matching import ElementsOfFeature, elements_of, match_name, match_term
from kgpu.discovery.rules.model import MatchOutcome, RuleError, RuleSource
from kgpu.discovery.rules.operators import DOES_NOT_EXIST, flag_holds, holds, shown
from kgpu.discovery.rules.plan import carry_out, hand_on, with_matched
from kgpu.formats.crd.nodefeatures import FeatureMatcherTerm, FeatureRule, MatchExpression

MISSING: Final = "it is missing"
SHOWN: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpressionTrace:
    """One condition: its element's name, what is asked, what there is, and whether it holds. ``error``: it is wrong."""

    name: str
    condition: str
    found: str
    holds: bool
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TermTrace:
    """One term. ``note`` says what its expressions alone don't, such as that the feature was not discovered."""

    feature: str
    matches: bool
    note: str = ""
    expressions: tuple[ExpressionTrace, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleTrace:
    """One rule: what came of it, its terms, and those of each alternative."""

    source: str
    rule: str
    outcome: MatchOutcome
    terms: tuple[TermTrace, ...] = ()
    alternatives: tuple[tuple[TermTrace, ...], ...] = ()


def explain(sources: Sequence[RuleSource], features: FeatureSet) -> list[RuleTrace]:
    """Every rule, in the order in which they are carried out; each sees what those before it hand on."""
    traces: list[RuleTrace] = []
    handed_on: dict[str, str] = {}
    for source in sorted(sources, key=lambda source: source.name):
        for _, rule in sorted(source.rules.items()):
            traces.append(_rule(source.name, rule, with_matched(features, handed_on)))
            hand_on(handed_on, traces[-1].outcome.labels, traces[-1].outcome.vars)
    return traces


def _rule(source: str, rule: FeatureRule, features: FeatureSet) -> RuleTrace:
    return RuleTrace(
        source=source,
        rule=rule.name,
        outcome=carry_out(rule, features),
        terms=_terms(rule.match_features, features),
        alternatives=tuple(_terms(option.match_features, features) for option in rule.match_any),
    )


def _terms(terms: Iterable[FeatureMatcherTerm], features: FeatureSet) -> tuple[TermTrace, ...]:
    return tuple(_term(term, features) for term in terms)


def _term(term: FeatureMatcherTerm, features: FeatureSet) -> TermTrace:
    elements = elements_of(term.feature, features)
    if not elements.is_known:
        return TermTrace(feature=term.feature, matches=False, note="this node has no such feature")
    expressions = [
        _expression(name, expression, elements) for name, expression in sorted((term.match_expressions or {}).items())
    ]
    if term.match_name is not None:
        expressions.append(_name(term.match_name, elements))
    try:
        matches, note = match_term(term, features) is not None, ""
    except RuleError as error:
        matches, note = False, error.what
    if not matches and not note and expressions and all(one.holds for one in expressions):
        note = "no instance meets all of them"
    elif not expressions:
        note = "it asks only whether there is such a feature" if matches else "there is no instance"
    return TermTrace(feature=term.feature, matches=matches, note=note, expressions=tuple(expressions))


def _expression(name: str, expression: MatchExpression, elements: ElementsOfFeature) -> ExpressionTrace:
    try:
        result, error = _holds(name, expression, elements), ""
    except RuleError as problem:
        result, error = False, f"{problem.what}; expected {problem.expected}"
    found = _found(name, elements)
    return ExpressionTrace(name=name, condition=shown(expression), found=found, holds=result, error=error)


def _holds(name: str, expression: MatchExpression, elements: ElementsOfFeature) -> bool:
    """Whether it holds for the flag or attribute, or for some instance."""
    results = []
    if elements.flags is not None:
        results.append(flag_holds(expression, there=name in elements.flags))
    if elements.attributes is not None:
        results.append(holds(expression, elements.attributes.get(name)))
    together = all(results) if expression.op == DOES_NOT_EXIST else any(results)
    return (bool(results) and together) or any(
        [holds(expression, one.get(name)) for one in elements.instances or ()]  # noqa: C419 - errors of all count
    )


def _found(name: str, elements: ElementsOfFeature) -> str:
    said = []
    if elements.flags is not None and name in elements.flags:
        said.append("it is there")
    if elements.attributes is not None and name in elements.attributes:
        said.append(f'it is "{_cut(elements.attributes[name])}"')
    if elements.instances:
        counts: dict[str, int] = {}
        for one in elements.instances:
            value = f'"{_cut(one[name])}"' if name in one else "missing"
            counts[value] = counts.get(value, 0) + 1
        most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:8]
        said.append("instances have " + ", ".join(f"{value} ({count})" for value, count in most))
    return "; ".join(said) or MISSING


def _name(expression: MatchExpression, elements: ElementsOfFeature) -> ExpressionTrace:
    try:
        matched, error = match_name(expression, elements), ""
    except RuleError as problem:
        matched, error = [], f"{problem.what}; expected {problem.expected}"
    found = f"{len(matched)} names do" if matched else "no name does"
    return ExpressionTrace(name="(name)", condition=shown(expression), found=found, holds=bool(matched), error=error)


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def as_data(trace: RuleTrace) -> Mapping[str, object]:
    """A rule's trace as plain data, for programs."""
    outcome = trace.outcome
    gives = {
        "labels": dict(outcome.labels), "vars": dict(outcome.vars), "annotations": dict(outcome.annotations),
        "extendedResources": dict(outcome.extended_resources),
        "taints": [{"key": one.key, "value": one.value, "effect": one.effect} for one in outcome.taints],
    }  # fmt: skip
    return {
        "source": trace.source,
        "rule": trace.rule,
        "matches": outcome.matched,
        **({"error": outcome.error.one_line()} if outcome.error else {}),
        "matchFeatures": [_term_data(term) for term in trace.terms],
        "matchAny": [[_term_data(term) for term in terms] for terms in trace.alternatives],
        "gives": {name: found for name, found in gives.items() if found},
    }


def _term_data(term: TermTrace) -> Mapping[str, object]:
    expressions = [
        {"name": one.name, "condition": one.condition, "found": one.found, "holds": one.holds,
         **({"error": one.error} if one.error else {})}
        for one in term.expressions
    ]  # fmt: skip
    note = {"note": term.note} if term.note else {}
    return {"feature": term.feature, "matches": term.matches, **note, "expressions": expressions}
