"""What the rule engine works on, as plain data: a node's features, and what came of rules. The rules themselves are the
structs of ``formats/crd/nodefeatures``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from kgpu.base.errors import ConfigError, UserError
from kgpu.discovery.features.model import FeatureSet
from kgpu.formats.crd.nodefeatures import FeatureRule, MatchingRule, NodeFeaturesBlock, RuleTaint

Element: TypeAlias = "dict[str, str]"
"""One matched element as templates see it: ``Name``, or ``Name`` and ``Value``, or an instance's attributes."""
NAME: Final = "Name"
VALUE: Final = "Value"
MATCHED: Final = "rule.matched"
"""The feature whose attributes are the labels and variables of the rules before."""


class RuleError(ConfigError):
    """A rule can't be carried out: an expression, template or value of it is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSource:
    """One object's rules by their place in it. ``name`` is the object's: rules are carried out by its order."""

    name: str
    rules: Mapping[int, FeatureRule]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSource:
    """One group's rules by their place in it."""

    name: str
    rules: Mapping[int, MatchingRule]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOutcome:
    """Whether a node belongs to a group, and which of its rules could not be carried out there."""

    matched: bool
    failures: tuple[RuleFailure, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchOutcome:
    """What came of one rule: not ``matched`` has nothing else, nor has one with an ``error``."""

    matched: bool
    labels: Mapping[str, str] = field(default_factory=dict)
    vars: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    extended_resources: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[RuleTaint, ...] = ()
    error: RuleError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFailure:
    """A rule that was left out: whose it is, its place there, and why."""

    source: str
    index: int
    rule: str
    error: UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesOutcome:
    """What all rules together give a node, before names and values are looked at (``outputs``)."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    extended_resources: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[RuleTaint, ...] = ()
    matched: Mapping[str, str] = field(default_factory=dict)
    failures: tuple[RuleFailure, ...] = ()


def feature_set(block: NodeFeaturesBlock) -> FeatureSet:
    """The features of a NodeFeature object."""
    return FeatureSet(
        flags={name: frozenset(found.elements) for name, found in block.flags.items()},
        attributes={name: dict(found.elements) for name, found in block.attributes.items()},
        instances={
            name: tuple(dict(one.attributes) for one in found.elements) for name, found in block.instances.items()
        },
    )


def as_spec(features: FeatureSet) -> dict[str, object]:
    """The same as ``spec.features`` of a NodeFeature has it, sorted, without types that have nothing."""
    spec: dict[str, object] = {
        "flags": {
            name: {"elements": {key: {} for key in sorted(found)}} for name, found in sorted(features.flags.items())
        },
        "attributes": {
            name: {"elements": dict(sorted(found.items()))} for name, found in sorted(features.attributes.items())
        },
        "instances": {
            name: {"elements": [{"attributes": dict(sorted(one.items()))} for one in found]}
            for name, found in sorted(features.instances.items())
        },
    }
    return {kind: found for kind, found in spec.items() if found}
