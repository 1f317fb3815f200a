"""NodeFeature, NodeFeatureRule and NodeFeatureGroup ``nfd.k8s-sigs.io/v1alpha1``: what nodes have, and what follows.

Names and shapes are node feature discovery's, so that rules and objects written for it are read as they are. The
structs are also the rule engine's model (``discovery/rules``).
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias, get_args

import msgspec

from kgpu.formats.crd.common import Block, Labels, doc

MAX_RULES: Final = 1000
"""Rules of one object."""
MatchOperator: TypeAlias = Literal[
    "In", "NotIn", "InRegexp", "Exists", "DoesNotExist", "Gt", "Ge", "Lt", "Le", "GtLt", "GeLe", "IsTrue", "IsFalse"
]
OPERATORS: Final[tuple[str, ...]] = get_args(MatchOperator)
ANY: Final = ""
"""Always true. Feature files of the worker know it; the API server takes none without an operator."""


class NoValue(Block, frozen=True, kw_only=True):
    """A flag's value: that it is there says all."""


class FlagElements(Block, frozen=True, kw_only=True):
    """A feature whose elements are there or not."""

    elements: Annotated[dict[str, NoValue], doc("The elements that are there.")] = msgspec.field(default_factory=dict)


class AttributeElements(Block, frozen=True, kw_only=True):
    """A feature whose elements have a value each."""

    elements: Annotated[Labels, doc("The value of each element.")] = msgspec.field(default_factory=dict)


class InstanceAttributes(Block, frozen=True, kw_only=True):
    """One device or the like."""

    attributes: Annotated[Labels, doc("What it is, as text by name.")] = msgspec.field(default_factory=dict)


class InstanceElements(Block, frozen=True, kw_only=True):
    """A feature of which a node has several, such as PCI devices."""

    elements: Annotated[tuple[InstanceAttributes, ...], doc("Each of them.")] = ()


class NodeFeaturesBlock(Block, frozen=True, kw_only=True):
    """What was discovered, by the feature's name, such as `cpu.cpuid`."""

    flags: Annotated[dict[str, FlagElements], doc("Features whose elements are there or not.")] = msgspec.field(
        default_factory=dict
    )
    attributes: Annotated[dict[str, AttributeElements], doc("Features whose elements have values.")] = msgspec.field(
        default_factory=dict
    )
    instances: Annotated[dict[str, InstanceElements], doc("Features of which a node has several.")] = msgspec.field(
        default_factory=dict
    )


class NodeFeatureSpec(Block, frozen=True, kw_only=True):
    """What one program has discovered on one node."""

    features: Annotated[NodeFeaturesBlock, doc("What was discovered.")] = NodeFeaturesBlock()
    labels: Annotated[Labels, doc("Labels that the Node is to have.")] = msgspec.field(default_factory=dict)


class MatchExpression(Block, frozen=True, kw_only=True):
    """A condition on one element."""

    op: Annotated[MatchOperator, doc("How the element is compared.")]
    value: Annotated[tuple[str, ...], doc("What it is compared with; how many depends on `op`.")] = ()
    type: Annotated[
        str, doc("How `Gt`, `Ge`, `Lt`, `Le`, `GtLt` and `GeLe` compare: as whole numbers, or as a `version`.")
    ] = ""


class FeatureMatcherTerm(Block, frozen=True, kw_only=True):
    """Conditions on one feature. Without any, that the feature was discovered is enough."""

    feature: Annotated[str, doc("The feature, such as `pci.device`.")]
    match_expressions: Annotated[
        dict[str, MatchExpression] | None, doc("Conditions by the element's name; all have to hold.")
    ] = None
    match_name: Annotated[MatchExpression | None, doc("A condition that the name of some element has to meet.")] = None


class MatchAnyElem(Block, frozen=True, kw_only=True):
    """One alternative."""

    match_features: Annotated[tuple[FeatureMatcherTerm, ...], doc("Terms that all have to match.")]


class MatchingRule(Block, frozen=True, kw_only=True):
    """What both kinds of rules have: a name, conditions, and variables for the rules after it."""

    name: Annotated[str, doc("The rule's name, for people.")]
    vars: Annotated[Labels, doc("Values that later rules see as elements of the feature `rule.matched`.")] = (
        msgspec.field(default_factory=dict)
    )
    vars_template: Annotated[str, doc("A template of more such values, a line `name=value` for each.")] = ""
    match_features: Annotated[tuple[FeatureMatcherTerm, ...], doc("Terms that all have to match.")] = ()
    match_any: Annotated[tuple[MatchAnyElem, ...], doc("Alternatives, at least one of which has to match.")] = ()


class RuleTaint(Block, frozen=True, kw_only=True):
    """A taint that a Node gets."""

    key: Annotated[str, doc("The taint's key, with a prefix.")]
    value: Annotated[str, doc("The taint's value.")] = ""
    effect: Annotated[str, doc("`NoSchedule`, `PreferNoSchedule` or `NoExecute`.")]
    time_added: Annotated[str | None, doc("Not looked at.", schema={"format": "date-time"})] = None


class FeatureRule(MatchingRule, frozen=True, kw_only=True):
    """Conditions, and what a Node gets that meets them."""

    labels: Annotated[Labels, doc("Labels. A value `@feature.element` is replaced by that attribute's value.")] = (
        msgspec.field(default_factory=dict)
    )
    labels_template: Annotated[str, doc("A template of more labels, a line `name=value` for each.")] = ""
    annotations: Annotated[Labels, doc("Annotations.")] = msgspec.field(default_factory=dict)
    taints: Annotated[tuple[RuleTaint, ...], doc("Taints, where they are allowed.")] = ()
    extended_resources: Annotated[Labels, doc("Resources with their quantities. `@feature.element` as for labels.")] = (
        msgspec.field(default_factory=dict)
    )


class NodeFeatureRuleSpec(Block, frozen=True, kw_only=True):
    """Rules, in the order in which they are carried out."""

    rules: Annotated[tuple[FeatureRule, ...], doc("The rules.", schema={"maxItems": MAX_RULES})]


class NodeFeatureGroupSpec(Block, frozen=True, kw_only=True):
    """Rules that say which nodes belong to a group."""

    feature_group_rules: Annotated[
        tuple[MatchingRule, ...],
        doc("A node belongs to the group that matches one of them.", schema={"maxItems": MAX_RULES}),
    ] = msgspec.field(name="featureGroupRules")


class GroupMember(Block, frozen=True, kw_only=True):
    """A node of a group."""

    name: Annotated[str, doc("The Node's name.")]


class NodeFeatureGroupStatus(Block, frozen=True, kw_only=True):
    """Which nodes belong to a group."""

    nodes: Annotated[
        tuple[GroupMember, ...],
        doc("The nodes.", schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
    ] = ()
