"""Rules that a node brings itself, in the worker's config or in files: also in the older, shorter form.

Shorter: conditions as a list of ``name`` or ``name=value``, or as a mapping to one value or to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kgpu.base.errors import UserError
from kgpu.discovery.features.model import FeatureSet
from kgpu.discovery.rules.decode import read_rules
from kgpu.discovery.rules.model import RuleError, RuleSource
from kgpu.discovery.rules.outputs import OutputLimits, settle
from kgpu.discovery.rules.plan import plan
from kgpu.formats.crd.nodefeatures import FeatureRule

TOLD: Final = 20


def labels_of(
    lists: Sequence[tuple[str, list[Any]]], features: FeatureSet, notes: list[UserError]
) -> Mapping[str, str]:
    """The labels that the rules give this node. What can't be used is added to ``notes``.

    Annotations, taints and resources are not for a node to give itself, and are told of.
    """
    rules: dict[int, FeatureRule] = {}
    for place, listed in lists:
        read = read_rules({"spec": {"rules": [full(rule) for rule in listed]}})
        notes += [_at(place, flaw.place.removeprefix("spec."), flaw.error) for flaw in read.flaws[:TOLD]]
        for index, rule in read.rules.items():
            rules[len(rules)] = rule
            if rule.annotations or rule.taints or rule.extended_resources:
                notes.append(_too_much(place, index))
    outcome = plan([RuleSource(name="", rules=rules)], features)
    notes += [_at(failure.rule or str(failure.index), "its conditions", failure.error) for failure in outcome.failures]
    outputs = settle(outcome, features, OutputLimits())
    notes += [one.error for one in outputs.rejected if one.kind == "label"]
    return outputs.labels


def full(rule: Any) -> Any:
    """A rule with its conditions in the long form; what is none of the short forms goes through as it is."""
    if not isinstance(rule, dict):
        return rule
    found = dict(rule)
    if isinstance(rule.get("matchFeatures"), list):
        found["matchFeatures"] = [_term(term) for term in rule["matchFeatures"]]
    if isinstance(rule.get("matchAny"), list):
        found["matchAny"] = [full(option) for option in rule["matchAny"]]
    return found


def _term(term: Any) -> Any:
    given = term.get("matchExpressions") if isinstance(term, dict) else None
    if isinstance(given, list) and all(isinstance(item, str) for item in given):
        pairs = [item.partition("=") for item in given]
        expressions = {key: _expression(value if sign else None) for key, sign, value in pairs}
        return {**term, "matchExpressions": expressions}
    if isinstance(given, dict):
        return {**term, "matchExpressions": {key: _expression(value) for key, value in given.items()}}
    return term


def _expression(value: Any) -> Any:
    if value is None:
        return {"op": "Exists"}
    if isinstance(value, bool):
        return {"op": "In", "value": [str(value).lower()]}
    if isinstance(value, str | int | float):
        return {"op": "In", "value": [str(value)]}
    if isinstance(value, dict) and isinstance(value.get("value"), list):
        return {**value, "value": [item if isinstance(item, str) else str(item) for item in value["value"]]}
    return value


def _at(place: str, where: str, error: UserError) -> RuleError:
    return RuleError(f"{place}: {where}: {error.what}", error.expected, error.remedy)


def _too_much(place: str, index: int) -> RuleError:
    return RuleError(
        f"{place}: rules[{index}] has more than labels", "labels and vars alone in a node's own rules",
        "write a NodeFeatureRule for annotations, taints and resources",
    )  # fmt: skip
