"""What changes on a Node: what rules give it that it lacks, and what they gave it and no longer do. Pure.

Whose a key is says node feature discovery's own lists in annotations of the Node, so that kgpu goes on where that has
stopped, and the other way round. Only what is on a list is ever removed. As long as nothing was read of a node, nothing
is removed there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kgpu.base.quantity import Quantity, QuantityError
from kgpu.discovery.features.model import merged
from kgpu.discovery.master.model import StoredFeature, TrackedNode
from kgpu.discovery.rules.model import RuleFailure, RuleSource
from kgpu.discovery.rules.outputs import NodeOutputs, OutputLimits, settle
from kgpu.discovery.rules.plan import plan
from kgpu.formats import names
from kgpu.formats.crd.nodefeatures import RuleTaint
from kgpu.kube.port import Object

TRACKING: Final = (
    names.NFD_TRACKING_ANNOTATION, names.NFD_TRACKED_ANNOTATIONS, names.NFD_TRACKED_RESOURCES, names.NFD_TRACKED_TAINTS,
)  # fmt: skip
MARK: Final = {names.LABEL_FEATURE_RULES: "true"}


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


def evaluate(found: Iterable[StoredFeature], sources: Sequence[RuleSource], limits: OutputLimits) -> NodeVerdict:
    """Carry out all rules on what programs have found on one node; of two that say different things the later counts,
    by name of their objects.
    """
    ordered = sorted(found, key=lambda one: (one.name, one.namespace))
    features = merged(one.features for one in ordered)
    requested = {key: value for one in ordered for key, value in one.labels.items()}
    outcome = plan(sources, features)
    return NodeVerdict(outputs=settle(outcome, features, limits, requested), failures=outcome.failures)


def change(node: TrackedNode, wanted: NodeOutputs, *, remove: bool) -> NodeChange:
    """What to write. Without ``remove`` whatever is on a list stays, and stays on it."""
    lists = {key: _listed(node.annotations.get(key, "")) for key in TRACKING}
    labels = _difference(node.labels, wanted.labels, lists[names.NFD_TRACKING_ANNOTATION] if remove else ())
    gone = lists[names.NFD_TRACKED_ANNOTATIONS] if remove else ()
    annotations = _difference(node.annotations, wanted.annotations, gone)
    gone = lists[names.NFD_TRACKED_RESOURCES] if remove else ()
    resources = _difference(node.resources, wanted.extended_resources, gone, same=_same_quantity)
    taints = _taints(node, wanted.taints, node.annotations.get(names.NFD_TRACKED_TAINTS, "") if remove else "")
    tracked = {
        names.NFD_TRACKING_ANNOTATION: _list(wanted.labels),
        names.NFD_TRACKED_ANNOTATIONS: _list(wanted.annotations),
        names.NFD_TRACKED_RESOURCES: _list(wanted.extended_resources),
        names.NFD_TRACKED_TAINTS: ",".join(sorted(map(_taint_text, wanted.taints))),
    }
    for key, value in tracked.items():
        kept = set() if remove else set(filter(None, node.annotations.get(key, "").split(",")))
        whole = ",".join(sorted(kept | set(filter(None, value.split(",")))))
        if whole != node.annotations.get(key, ""):
            annotations[key] = whole or None
    if any(tracked.values()) and not node.marked:
        labels |= MARK
    return _patches(node, labels, annotations, resources, taints)


def take_back(node: TrackedNode) -> NodeChange:
    """Remove all that is on lists, the lists, and kgpu's mark."""
    cleared = change(node, NodeOutputs(), remove=True)
    return _marked_off(cleared)


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
