"""Reads NodeFeatureRule, NodeFeatureGroup and NodeFeature objects, and finds all that is wrong with rules.

Node feature discovery tells of a wrong expression only once a node has the element that it is about, and of an unknown
field never. Here every error is found when the object is read, each with its place. Never raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import msgspec

from kgpu.base.errors import UserError
from kgpu.base.typed import convert
from kgpu.discovery.rules.model import RuleError
from kgpu.discovery.rules.operators import flaws
from kgpu.discovery.rules.outputs import ANNOTATION, LABEL, RESOURCE, OutputLimits, check_taint, static_flaws
from kgpu.discovery.rules.templates.parser import parse
from kgpu.formats.crd.decode import fields_of
from kgpu.formats.crd.nodefeatures import (
    MAX_RULES,
    FeatureMatcherTerm,
    FeatureRule,
    MatchingRule,
    NodeFeatureGroupSpec,
    NodeFeatureRuleSpec,
    NodeFeatureSpec,
)

R = TypeVar("R", bound=msgspec.Struct)
M = TypeVar("M", bound=MatchingRule)
MOST: Final = 100
"""Flaws that are told of in one object."""
_FEATURE: Final = re.compile(r"[^.\s]+\.[^\s]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFlaw:
    """What is wrong with an object, and where; ``rule`` is the place of the rule that it is about, None for none.

    A ``warning`` lets the rule be carried out.
    """

    place: str
    error: UserError
    rule: int | None = None
    warning: bool = False

    def one_line(self) -> str:
        return f"{self.place}: {self.error.one_line()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRules(Generic[M]):
    """An object's rules by their place; one that can't be read is left out. A rule with other flaws is carried out
    where what is wrong with it does not count.
    """

    rules: Mapping[int, M] = field(default_factory=dict)
    flaws: tuple[ObjectFlaw, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFeature:
    """A NodeFeature's spec, empty where it can't be read."""

    spec: NodeFeatureSpec
    flaws: tuple[ObjectFlaw, ...] = ()


def read_rules(obj: Any) -> ReadRules[FeatureRule]:
    """A NodeFeatureRule object."""
    return _rules(obj, NodeFeatureRuleSpec, "rules", FeatureRule)


def read_group(obj: Any) -> ReadRules[MatchingRule]:
    """A NodeFeatureGroup object."""
    return _rules(obj, NodeFeatureGroupSpec, "featureGroupRules", MatchingRule)


def read_feature(obj: Any) -> ReadFeature:
    """A NodeFeature object."""
    spec, found = _converted(_spec(obj), NodeFeatureSpec, "spec", None)
    return ReadFeature(spec=spec or NodeFeatureSpec(), flaws=tuple(found))


def feature_spec(obj: Any) -> NodeFeatureSpec:
    """The same without what is wrong, which takes a fifth of the time; also for objects of thousands of elements."""
    try:
        return convert(_spec(obj), NodeFeatureSpec)
    except (msgspec.ValidationError, RecursionError):
        return read_feature(obj).spec


def _spec(obj: Any) -> Any:
    spec = obj.get("spec") if isinstance(obj, dict) else None
    return {} if spec is None else spec


def _rules(obj: Any, struct: type[msgspec.Struct], key: str, of: type[M]) -> ReadRules[M]:
    spec = _spec(obj)
    listed = spec.get(key) if isinstance(spec, dict) else None
    items = listed if isinstance(listed, list) and len(listed) <= MAX_RULES else []
    _, found = _converted({**spec, key: []} if isinstance(listed, list) else spec, struct, "spec", None)
    if isinstance(listed, list) and len(listed) > MAX_RULES:
        error = RuleError(f"it has {len(listed)} rules", f"at most {MAX_RULES}", "make several objects of it")
        found.append(ObjectFlaw(place=f"spec.{key}", error=error))
    rules: dict[int, M] = {}
    for index, item in enumerate(items):
        place = f"spec.{key}[{index}]"
        rule, flaws_of_rule = _converted(item, of, place, index)
        found += flaws_of_rule
        if rule is not None:
            rules[index] = rule
            found += [
                ObjectFlaw(place=f"{place}.{path}", error=error, rule=index, warning=isinstance(error, NoEffectError))
                for path, error in rule_flaws(rule)
            ]
    return ReadRules(rules=rules, flaws=tuple(found[:MOST]))


def _converted(value: Any, struct: type[R], path: str, rule: int | None) -> tuple[R | None, list[ObjectFlaw]]:
    """The value as the struct, None if it does not fit; and what is wrong with it."""
    known, wrong, warnings = fields_of(value, struct, path)
    found = [
        ObjectFlaw(place=one.path, error=RuleError(f"it {one.what}", one.expected, "correct it"), rule=rule)
        for one in wrong
    ]
    found += [_warning(text, rule) for text in warnings]
    if wrong:
        return None, found
    try:
        return convert(known, struct), found
    except (msgspec.ValidationError, RecursionError) as error:  # pragma: no cover - what was checked can be made
        reason = RuleError(f"it can't be read ({error})", "what the schema allows", "correct it")
        return None, [*found, ObjectFlaw(place=path, error=reason, rule=rule)]


def _warning(text: str, rule: int | None) -> ObjectFlaw:
    place, _, what = text.partition(" ")
    error = RuleError(f"it {what}", "fields of this kind alone", "take it out, or correct its name")
    return ObjectFlaw(place=place, error=error, rule=rule, warning=True)


class NoEffectError(RuleError):
    """A part of a rule that changes nothing."""


def rule_flaws(rule: MatchingRule) -> Iterator[tuple[str, RuleError]]:
    """Everything that is wrong with a rule, whatever nodes have: each with its place in the rule."""
    for index, term in enumerate(rule.match_features):
        yield from _term_flaws(term, f"matchFeatures[{index}]")
    for index, option in enumerate(rule.match_any):
        for number, term in enumerate(option.match_features):
            yield from _term_flaws(term, f"matchAny[{index}].matchFeatures[{number}]")
    yield from _template_flaws(rule, rule.vars_template, "varsTemplate")
    if isinstance(rule, FeatureRule):
        yield from _template_flaws(rule, rule.labels_template, "labelsTemplate")
        for kind, name, pairs in (
            (LABEL, "labels", rule.labels),
            (ANNOTATION, "annotations", rule.annotations),
            (RESOURCE, "extendedResources", rule.extended_resources),
        ):
            yield from ((name, error) for error in static_flaws(pairs, kind))
        for index, taint in enumerate(rule.taints):
            try:
                check_taint(taint, OutputLimits(), allowed=True)
            except RuleError as error:
                yield f"taints[{index}]", error


def _term_flaws(term: FeatureMatcherTerm, place: str) -> Iterator[tuple[str, RuleError]]:
    if not _FEATURE.fullmatch(term.feature):
        yield (
            f"{place}.feature",
            RuleError(
                f'"{term.feature[:60]}" is no name of a feature', "domain.feature, such as pci.device", "correct it"
            ),
        )
    for key, expression in (term.match_expressions or {}).items():
        yield from ((f'{place}.matchExpressions["{key[:60]}"]', error) for error in flaws(expression))
    if term.match_name is not None:
        yield from ((f"{place}.matchName", error) for error in flaws(term.match_name))


def _template_flaws(rule: MatchingRule, template: str, name: str) -> Iterator[tuple[str, RuleError]]:
    if not template:
        return
    try:
        parse(template)
    except RuleError as error:
        yield name, error
    if not rule.match_features and not rule.match_any:
        yield name, NoEffectError(
            "a template of a rule without conditions is never carried out", "matchFeatures or matchAny beside it",
            "give the rule a condition, or write labels and vars without a template",
        )  # fmt: skip
