"""What changes on a Node: what rules give it that it lacks, and what they gave it and no longer do. Pure.

Whose a key is says node feature discovery's own lists in annotations of the Node, so that kgpu goes on where that has
stopped, and the other way round. Only what is on a list is ever removed. As long as nothing was read of a node, nothing
is removed there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kgpu.base.quantity import Quantity, QuantityError
from kgpu.discovery.features.model import FeatureSet, merged
from kgpu.discovery.master.model import USUAL, MasterSettings, StoredFeature, TrackedNode, TrackingLists
from kgpu.discovery.rules.model import RuleFailure, RuleSource
from kgpu.discovery.rules.outputs import (
    ANNOTATION,
    LABEL,
    RESOURCE,
    NodeOutputs,
    OutputError,
    RejectedOutput,
    settle,
)
from kgpu.discovery.rules.plan import Timed, plan, untimed
from kgpu.formats import names
from kgpu.formats.crd.nodefeatures import RuleTaint
from kgpu.kube.port import Object


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChange:
    """Merge patches of a Node and of its status; empty for none."""

    node: TrackedNode
    body: Object = field(default_factory=dict)
    status: Object = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeVerdict:
    """What a node gets, and which rules could not be carried out there."""

    outputs: NodeOutputs
    failures: tuple[RuleFailure, ...] = ()


def features_of(ordered: Iterable[StoredFeature]) -> FeatureSet:
    """What all programs have found on one node; ``ordered`` by what counts (``by_weight``)."""
    return merged(one.features for one in ordered)


def by_weight(found: Iterable[StoredFeature], namespace: str) -> list[StoredFeature]:
    """One node's NodeFeatures; of two that say different things the later counts: those of other namespaces than
    kgpu's, of these by name, then by namespace.
    """
    return sorted(found, key=lambda one: (one.namespace != namespace, one.name, one.namespace))


def evaluate(
    found: Iterable[StoredFeature], sources: Sequence[RuleSource], settings: MasterSettings, timed: Timed = untimed
) -> NodeVerdict:
    """Carry out all rules on what programs have found on one node."""
    ordered = by_weight(found, settings.namespace)
    features = features_of(ordered)
    asking = [one for one in ordered if one.own or settings.foreign_labels]
    requested = {key: value for one in asking for key, value in one.labels.items()}
    outcome = plan(sources, features, timed)
    return NodeVerdict(outputs=settle(outcome, features, settings.limits, requested), failures=outcome.failures)


def without_others(node: TrackedNode, wanted: NodeOutputs, instance: str = "") -> NodeOutputs:
    """What is wanted, without names that the Node has from somebody else (restriction ``allowOverwrite: false``)."""
    lists = TrackingLists.of(instance)
    kept: dict[str, dict[str, str]] = {}
    refused: list[RejectedOutput] = []
    for kind, pairs, live, key in (
        (LABEL, wanted.labels, node.labels, lists.labels),
        (ANNOTATION, wanted.annotations, node.annotations, lists.annotations),
        (RESOURCE, wanted.extended_resources, node.resources, lists.resources),
    ):
        others = live.keys() - set(_listed(node.annotations.get(key, "")))
        kept[kind] = {name: value for name, value in pairs.items() if name not in others}
        refused += [_not_overwritten(kind, name) for name in pairs if name in others]
    return NodeOutputs(
        labels=kept[LABEL],
        annotations=kept[ANNOTATION],
        extended_resources=kept[RESOURCE],
        taints=wanted.taints,
        rejected=(*wanted.rejected, *refused),
    )


def _not_overwritten(kind: str, name: str) -> RejectedOutput:
    error = OutputError(
        f"the {kind} {name} is on the Node from somebody else", "one that is not there yet",
        "use another name, or allow it by restrictions.allowOverwrite",
    )  # fmt: skip
    return RejectedOutput(kind=kind, key=name, error=error)


def change(node: TrackedNode, wanted: NodeOutputs, *, remove: bool, instance: str = "") -> NodeChange:
    """What to write. Without ``remove`` whatever is on a list stays, and stays on it."""
    lists = TrackingLists.of(instance)
    listed = {key: node.annotations.get(key, "") if remove else "" for key in lists.keys}
    labels = _difference(node.labels, wanted.labels, _listed(listed[lists.labels]))
    annotations = _difference(node.annotations, wanted.annotations, _listed(listed[lists.annotations]))
    resources = _difference(
        node.resources, wanted.extended_resources, _listed(listed[lists.resources]), same=_same_quantity
    )
    taints = _taints(node, wanted.taints, listed[lists.taints])
    tracked = {
        lists.labels: _list(wanted.labels),
        lists.annotations: _list(wanted.annotations),
        lists.resources: _list(wanted.extended_resources),
        lists.taints: ",".join(sorted(map(_taint_text, wanted.taints))),
    }
    for key, value in tracked.items():
        kept = set() if remove else set(filter(None, node.annotations.get(key, "").split(",")))
        whole = ",".join(sorted(kept | set(filter(None, value.split(",")))))
        if whole != node.annotations.get(key, ""):
            annotations[key] = whole or None
    mark = instance or USUAL
    if any(tracked.values()) and node.labels.get(names.LABEL_FEATURE_RULES) != mark:
        labels[names.LABEL_FEATURE_RULES] = mark
    return _patches(node, labels, annotations, resources, taints)


def take_back(node: TrackedNode, instance: str) -> NodeChange:
    """Remove all that is on an instance's lists, the lists, and kgpu's mark of it."""
    cleared = change(node, NodeOutputs(), remove=True, instance=instance)
    return _marked_off(cleared) if node.marked and node.instance == instance else cleared


def removals(change: NodeChange) -> dict[str, list[str]]:
    """What a change takes from a Node, by kind; kgpu's and node feature discovery's own entries don't count."""
    metadata = change.body.get("metadata") or {}
    taints = change.body.get("spec", {}).get("taints")
    left = {_identity(one) for one in (change.node.taints if taints is None else taints)}
    found = {
        "labels": _gone(metadata.get("labels")),
        "annotations": _gone(metadata.get("annotations")),
        "taints": [one["key"] for one in change.node.taints if _identity(one) not in left],
        "extended resources": _gone(change.status.get("status", {}).get("capacity")),
    }
    return {kind: keys for kind, keys in found.items() if keys}


def _gone(values: Mapping[str, Any] | None) -> list[str]:
    own = (names.LABEL_FEATURE_RULES, *TrackingLists.of("").keys)
    return sorted(key for key, value in (values or {}).items() if value is None and not key.endswith(own))


def hand_over(node: TrackedNode) -> NodeChange:
    """Leave everything to another master: it finds the lists and goes on with them."""
    return _marked_off(NodeChange(node=node))


def _marked_off(change: NodeChange) -> NodeChange:
    metadata = dict(change.body.get("metadata") or {"uid": change.node.uid})
    metadata["labels"] = {**(metadata.get("labels") or {}), names.LABEL_FEATURE_RULES: None}
    return NodeChange(node=change.node, body={**change.body, "metadata": metadata}, status=change.status)


def _difference(
    live: Mapping[str, str], wanted: Mapping[str, str], listed: Iterable[str],
    same: Callable[[str, str], bool] = str.__eq__,
) -> dict[str, str | None]:  # fmt: skip
    found: dict[str, str | None] = {
        key: value for key, value in wanted.items() if key not in live or not same(live[key], value)
    }
    return found | {key: None for key in listed if key in live and key not in wanted}


def _patches(
    node: TrackedNode, labels: Mapping[str, Any], annotations: Mapping[str, Any], resources: Mapping[str, Any],
    taints: list[Mapping[str, str]] | None,
) -> NodeChange:  # fmt: skip
    metadata: Object = {}
    if labels:
        metadata["labels"] = dict(labels)
    if annotations:
        metadata["annotations"] = dict(annotations)
    body: Object = {"metadata": metadata} if metadata or taints is not None else {}
    if body:
        metadata["uid"] = node.uid
    if taints is not None:
        # The list is replaced as a whole: not by one that others have changed meanwhile.
        metadata["resourceVersion"] = node.version
        body["spec"] = {"taints": [dict(taint) for taint in taints]}
    figures = dict(resources)
    status = {"metadata": {"uid": node.uid}, "status": {"capacity": figures, "allocatable": figures}} if figures else {}
    return NodeChange(node=node, body=body, status=status)


def _listed(value: str) -> tuple[str, ...]:
    """Keys of a list; those of node feature discovery's own domain are there without it."""
    return tuple(key if "/" in key else names.NFD_PREFIX + key for key in value.split(",") if key)


def _list(keys: Iterable[str]) -> str:
    return ",".join(sorted(key.removeprefix(names.NFD_PREFIX) for key in keys))


def _same_quantity(live: str, wanted: str) -> bool:
    try:
        return Quantity.parse(live) == Quantity.parse(wanted)
    except QuantityError:
        return False


def _taint_text(taint: RuleTaint) -> str:
    return f"{taint.key}{f'={taint.value}' if taint.value else ''}:{taint.effect}"


def _taints(node: TrackedNode, wanted: Iterable[RuleTaint], listed: str) -> list[Mapping[str, str]] | None:
    """The Node's taints as they should be; None if they are."""
    new = {(taint.key, taint.effect): taint for taint in wanted}
    gone = {(key.partition("=")[0], effect) for key, _, effect in (one.rpartition(":") for one in listed.split(","))}
    kept = [taint for taint in node.taints if _identity(taint) not in gone - new.keys()]
    for place, taint in enumerate(kept):
        rule = new.pop(_identity(taint), None)
        if rule is not None and rule.value != taint.get("value", ""):
            kept[place] = _as_taint(rule)
    kept += [_as_taint(taint) for taint in new.values()]
    return None if kept == list(node.taints) else kept


def _identity(taint: Mapping[str, str]) -> tuple[str, str]:
    return taint.get("key", ""), taint.get("effect", "")


def _as_taint(taint: RuleTaint) -> Mapping[str, str]:
    return {"key": taint.key, **({"value": taint.value} if taint.value else {}), "effect": taint.effect}
