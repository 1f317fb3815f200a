"""Whether terms of a rule match a node's features, and which elements did.

Flags and attributes of one name are looked at together: an expression holds if it does for either, but ``DoesNotExist``
has to for both. Instances stand beside them: all expressions have to hold for one and the same. An expression that does
not hold decides before one that is wrong, so that a rule for one vendor's devices does not fail for another's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from kgpu.discovery.features.model import FeatureSet
from kgpu.discovery.rules.model import NAME, VALUE, Element, RuleError
from kgpu.discovery.rules.operators import DOES_NOT_EXIST, flag_holds, holds
from kgpu.formats.crd.nodefeatures import FeatureMatcherTerm, MatchExpression

Expressions: TypeAlias = "Mapping[str, MatchExpression]"


@dataclass(frozen=True, slots=True)
class ElementsOfFeature:
    """One feature's elements by type; None for a type that it does not have."""

    flags: frozenset[str] | None = None
    attributes: Mapping[str, str] | None = None
    instances: Sequence[Mapping[str, str]] | None = None

    @property
    def is_known(self) -> bool:
        """Whether the feature was discovered."""
        return self.flags is not None or self.attributes is not None or self.instances is not None


def elements_of(feature: str, features: FeatureSet) -> ElementsOfFeature:
    """The feature's elements. Names of features are looked up in small letters."""
    name = feature.lower()
    return ElementsOfFeature(features.flags.get(name), features.attributes.get(name), features.instances.get(name))


def match_terms(terms: Iterable[FeatureMatcherTerm], features: FeatureSet) -> dict[str, list[Element]] | None:
    """The matched elements by feature as the rule spells it; None unless all terms match. Raises RuleError."""
    matched: dict[str, list[Element]] = {}
    for term in terms:
        found = match_term(term, features)
        if found is None:
            return None
        matched.setdefault(term.feature, []).extend(found)
    return matched


def match_term(term: FeatureMatcherTerm, features: FeatureSet) -> list[Element] | None:
    """The term's matched elements; None if it does not match. Raises RuleError."""
    elements = elements_of(term.feature, features)
    if not elements.is_known:
        return None
    matched: list[Element] = []
    if term.match_expressions is not None:
        found = match_expressions(term.match_expressions, elements)
        if found is None:
            return None
        matched += found
    if term.match_name is not None:
        found = match_name(term.match_name, elements)
        if not found:
            return None
        matched += found
    return matched


def match_expressions(expressions: Expressions, elements: ElementsOfFeature) -> list[Element] | None:
    """The elements for which the expressions hold; None if they don't."""
    together = _flags_and_attributes(expressions, elements)
    instances = [dict(one) for one in elements.instances or () if _instance_holds(expressions, one)]
    if together is None and not instances:
        return None
    return [*(together or ()), *instances]


def match_name(expression: MatchExpression, elements: ElementsOfFeature) -> list[Element]:
    """The elements whose name meets the condition; of instances, those that have such an attribute."""
    flags: list[Element] = [{NAME: name} for name in sorted(elements.flags or ()) if holds(expression, name)]
    attributes: list[Element] = [
        {NAME: name, VALUE: value}
        for name, value in sorted((elements.attributes or {}).items())
        if holds(expression, name)
    ]
    instances = [dict(one) for one in elements.instances or () if [name for name in one if holds(expression, name)]]
    return [*flags, *attributes, *instances]


def _flags_and_attributes(expressions: Expressions, elements: ElementsOfFeature) -> list[Element] | None:
    flags, attributes = elements.flags, elements.attributes
    if flags is None and attributes is None:
        return None
    matched: list[Element] = []
    wrong: RuleError | None = None
    for name in sorted(expressions):
        try:
            found = _matched(name, expressions[name], flags, attributes)
        except RuleError as error:
            wrong = wrong or error
            continue
        if not found:
            return None
        matched += found
    if wrong is not None:
        raise wrong
    return matched


def _matched(
    name: str, expression: MatchExpression, flags: frozenset[str] | None, attributes: Mapping[str, str] | None
) -> list[Element]:
    found: list[Element] = []
    missing = 0
    if flags is not None and flag_holds(expression, there=name in flags):
        found.append({NAME: name})
        missing += 1
    if attributes is not None and holds(expression, attributes.get(name)):
        found.append({NAME: name, VALUE: attributes.get(name, "")})
        missing += 1
    if expression.op == DOES_NOT_EXIST and missing < (flags is not None) + (attributes is not None):
        return []
    return found


def _instance_holds(expressions: Expressions, instance: Mapping[str, str]) -> bool:
    wrong: RuleError | None = None
    for name in sorted(expressions):
        try:
            if not holds(expressions[name], instance.get(name)):
                return False
        except RuleError as error:
            wrong = wrong or error
    if wrong is not None:
        raise wrong
    return True
