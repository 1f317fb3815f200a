"""Carries out rules on a node's features: which match, and what the node gets. Pure.

Rules run by their object's name, then by their place in it; each sees labels and variables of those before as
attributes of the feature ``rule.matched``. A rule that can't be carried out is left out and told of, and no other with
it. What is a legal name or value is decided afterwards (``outputs``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Final, TypeAlias

from kgpu.discovery.features.model import FeatureSet
from kgpu.discovery.rules.matching import match_terms
from kgpu.discovery.rules.model import (
    MATCHED,
    Element,
    GroupOutcome,
    GroupSource,
    MatchOutcome,
    RuleError,
    RuleFailure,
    RuleSource,
    RulesOutcome,
)
from kgpu.discovery.rules.templates.run import expand_lines
from kgpu.formats.crd.nodefeatures import FeatureRule, MatchingRule, RuleTaint

MAX_MATCHED: Final = 10_000
"""Labels and variables that rules hand on."""
NOTHING: Final = MatchOutcome(matched=False)
Timed: TypeAlias = "Callable[[str], AbstractContextManager[None]]"
"""Measures how long a block takes, in which the rules of an object of this name are carried out."""


def untimed(_name: str) -> AbstractContextManager[None]:
    """Measures nothing."""
    return nullcontext()


def plan(sources: Iterable[RuleSource], features: FeatureSet, timed: Timed = untimed) -> RulesOutcome:
    """What all rules give the node."""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    resources: dict[str, str] = {}
    taints: list[RuleTaint] = []
    handed_on: dict[str, str] = dict(features.attributes.get(MATCHED, {}))
    failures: list[RuleFailure] = []
    seen = _seen(features, handed_on)  # grows with what is handed on
    for source in sorted(sources, key=lambda source: source.name):
        with timed(source.name):
            for index, rule in sorted(source.rules.items()):
                outcome = carry_out(rule, seen if handed_on else features)
                if outcome.error is not None:
                    failures.append(RuleFailure(source=source.name, index=index, rule=rule.name, error=outcome.error))
                    continue
                labels |= outcome.labels
                annotations |= outcome.annotations
                resources |= outcome.extended_resources
                taints += [taint for taint in outcome.taints if taint not in taints]
                hand_on(handed_on, outcome.labels, outcome.vars)
    return RulesOutcome(
        labels=labels,
        annotations=annotations,
        extended_resources=resources,
        taints=tuple(taints),
        matched=handed_on,
        failures=tuple(failures),
    )


def with_matched(features: FeatureSet, matched: Mapping[str, str]) -> FeatureSet:
    """The features with what earlier rules hand on; until one has matched, ``rule.matched`` is not there at all."""
    return _seen(features, matched) if matched else features


def _seen(features: FeatureSet, matched: Mapping[str, str]) -> FeatureSet:
    return replace(features, attributes={**features.attributes, MATCHED: matched})


def carry_out(rule: FeatureRule, features: FeatureSet) -> MatchOutcome:
    """What one rule gives the node."""
    try:
        alternatives = matches(rule, features)
        if alternatives is None:
            return NOTHING
        return MatchOutcome(
            matched=True,
            labels={**_expanded(rule.labels_template, alternatives), **rule.labels},
            vars={**_expanded(rule.vars_template, alternatives), **rule.vars},
            annotations=rule.annotations,
            extended_resources=rule.extended_resources,
            taints=rule.taints,
        )
    except RuleError as error:
        return MatchOutcome(matched=False, error=error)


def matches(rule: MatchingRule, features: FeatureSet) -> Sequence[Mapping[str, list[Element]]] | None:
    """The matched elements of ``matchFeatures`` and of each alternative that matches; None if the rule does not.

    Templates are carried out for each, and for a rule without any condition not at all. Raises RuleError.
    """
    found: list[Mapping[str, list[Element]]] = []
    if rule.match_any:
        # Without a template the first alternative that matches decides.
        all_of_them = bool(_templates(rule))
        for option in rule.match_any:
            matched = match_terms(option.match_features, features)
            if matched is not None:
                found.append(matched)
                if not all_of_them:
                    break
        if not found:
            return None
    if rule.match_features:
        matched = match_terms(rule.match_features, features)
        if matched is None:
            return None
        found.append(matched)
    return found


def belongs(source: GroupSource, features: FeatureSet) -> GroupOutcome:
    """Whether a node belongs to a group: one of its rules matches. Variables of those before are seen as by rules."""
    handed_on: dict[str, str] = dict(features.attributes.get(MATCHED, {}))
    failures: list[RuleFailure] = []
    matched = False
    for index, rule in sorted(source.rules.items()):
        try:
            alternatives = matches(rule, with_matched(features, handed_on))
            if alternatives is not None:
                matched = True
                hand_on(handed_on, {**_expanded(rule.vars_template, alternatives), **rule.vars})
        except RuleError as error:
            failures.append(RuleFailure(source=source.name, index=index, rule=rule.name, error=error))
    return GroupOutcome(matched=matched, failures=tuple(failures))


def _templates(rule: MatchingRule) -> list[str]:
    texts = [rule.vars_template, rule.labels_template if isinstance(rule, FeatureRule) else ""]
    return [text for text in texts if text]


def _expanded(template: str, alternatives: Sequence[Mapping[str, list[Element]]]) -> dict[str, str]:
    lines: dict[str, str] = {}
    for matched in alternatives if template else ():
        lines |= expand_lines(template, _by_domain(matched))
    return lines


def _by_domain(matched: Mapping[str, list[Element]]) -> dict[str, dict[str, list[Element]]]:
    """``.pci.device`` for the feature ``pci.device``: domain and feature are apart at the first dot."""
    data: dict[str, dict[str, list[Element]]] = {}
    for feature, elements in matched.items():
        domain, _, name = feature.partition(".")
        data.setdefault(domain, {}).setdefault(name, []).extend(elements)
    return data


def hand_on(handed_on: dict[str, str], *given: Mapping[str, str]) -> None:
    """Add what later rules see of a rule: its labels and variables."""
    for pairs in given:
        for key, value in pairs.items():
            if len(handed_on) < MAX_MATCHED or key in handed_on:
                handed_on[key] = value
