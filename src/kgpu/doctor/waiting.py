"""Pods that no node has been found for, with everything that ``fit`` says about them: what scheduling rules lean on.

Pods alike (of one owner, asking for the same) are judged once. Only pods that use accelerators are looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from kgpu.doctor import matching, smallest_change
from kgpu.doctor.agent_reports import ill
from kgpu.doctor.kinds import Node, Pod
from kgpu.doctor.model import Evidence, NodeRow
from kgpu.doctor.node_operations import holding
from kgpu.doctor.smallest_change import FittingChange
from kgpu.doctor.snapshot import Snapshot
from kgpu.fit.explain import explain, explain_pod
from kgpu.fit.filters_node import AFFINITY, RESOURCES, TAINTS, UNSCHEDULABLE_FILTER
from kgpu.fit.model import PodView, Reason
from kgpu.formats import names

MAX_WAYS: Final = 200
MAX_OWNERS: Final = 20
MAX_NODES: Final = 200
MAX_ROWS: Final = 10
_SCALING: Final = {
    "TriggeredScaleUp": "the autoscaler adds a node",
    "Nominated": "the autoscaler adds a node",
    "FailedScaleUp": "the autoscaler could not add a node",
    "NotTriggerScaleUp": "the autoscaler adds no node",
}
_COMING: Final = frozenset({"TriggeredScaleUp", "Nominated"})
_SCALE_SECONDS: Final = 30 * 60.0
_SCALE_EXPECTED: Final = "5 to 15 minutes, until the new node has its driver and offers its GPUs"


@dataclass(frozen=True, slots=True)
class Scaling:
    """What an autoscaler says of pods that wait; ``expected`` is "" where waiting does not help."""

    sentence: str
    evidence: Evidence
    expected: str = ""


class Judged:
    """What ``fit`` says about one way of asking; shared by all pods that ask in that way.

    ``reasons``: all that keeps such a pod off each node that comes into question.
    """

    def __init__(self, view: PodView, nodes: tuple[Node, ...], snapshot: Snapshot) -> None:
        self.view, self.nodes, self._fit = view, nodes, snapshot.fit
        self._closed = ill(snapshot) | holding(snapshot).keys()
        self.reasons: Mapping[str, tuple[Reason, ...]] = {
            node.name: _once(explain(view, node.name, self._fit)) for node in nodes
        }
        self._against: dict[tuple[str, str], tuple[Reason, ...]] = {}
        self._only: dict[tuple[str, str], tuple[str, ...]] = {}

    @cached_property
    def changes(self) -> tuple[FittingChange, ...]:
        found = smallest_change.smallest(self.view, self._fit, self.reasons)
        # A node that is not well is mended before anybody puts work on it, and uncordoning ends an operation halfway.
        return tuple(one for one in found if one.kind != smallest_change.UNCORDON or one.subject not in self._closed)

    @cached_property
    def fits(self) -> tuple[str, ...]:
        return smallest_change.fitting(self.view, self._fit)

    def against(self, filter_name: str, subject: str) -> tuple[Reason, ...]:
        key = (filter_name, subject)
        if key not in self._against:
            self._against[key] = tuple(one for found in self.reasons.values() for one in found if _is(one, *key))
        return self._against[key]

    @cached_property
    def withdrawn(self) -> Mapping[str, bool]:
        """The nodes on which an accelerator resource asked for is offered in part only, each with whether the pod would
        fit it if all of its devices were back.
        """
        return {node.name: fits for node in self.nodes if (fits := self._with_all(node.name)) is not None}

    def _with_all(self, name: str) -> bool | None:
        node = self._fit.nodes[name].view
        less = {
            resource: node.capacity.get(resource, 0)
            for resource, wanted in self.view.requests.items()
            if wanted and matching.is_accelerator(resource)
            and node.allocatable.get(resource, 0) < node.capacity.get(resource, 0)
        }  # fmt: skip
        if not less:
            return None
        # More devices make up for a lack of them, and for nothing else.
        if not all(reason.filter == RESOURCES and reason.subject in less for reason in self.reasons[name]):
            return False
        return not explain(self.view, replace(node, allocatable={**node.allocatable, **less}), self._fit)

    def only(self, filter_name: str, subject: str) -> tuple[str, ...]:
        key = (filter_name, subject)
        if key not in self._only:
            self._only[key] = tuple(
                name for name, found in self.reasons.items() if found and all(_is(one, *key) for one in found)
            )
        return self._only[key]


def _is(reason: Reason, filter_name: str, subject: str) -> bool:
    return reason.filter == filter_name and (not subject or reason.subject == subject)


@dataclass(frozen=True)
class Waiting:
    """Pods of one owner that wait for the same; ``pod`` stands for all of them.

    ``resource`` is the accelerator resource that they ask for ("" where they have claims alone), ``wanted`` how many.
    """

    snapshot: Snapshot
    pod: Pod
    view: PodView
    pods: tuple[Pod, ...]
    resource: str
    wanted: int
    judged: Judged

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes that come into question: they offer the resource, or have accelerators of its vendor."""
        return self.judged.nodes

    @property
    def reasons(self) -> Mapping[str, tuple[Reason, ...]]:
        """All that keeps the pod off each of these nodes."""
        return self.judged.reasons

    @property
    def changes(self) -> tuple[FittingChange, ...]:
        """The changes that are enough, the smallest first."""
        return self.judged.changes

    @property
    def fits(self) -> tuple[str, ...]:
        """Where it fits as things are: then the scheduler just has not got to it, or another one is meant."""
        return self.judged.fits

    def fits_with_all(self, node: str) -> bool:
        """Whether a node has withdrawn devices, and with all of them back the pod would fit it."""
        return self.judged.withdrawn.get(node, False)

    @cached_property
    def anywhere(self) -> tuple[Reason, ...]:
        """What keeps it from being scheduled whatever the node."""
        return explain_pod(self.view, self.snapshot.fit)

    def only(self, filter_name: str, subject: str = "") -> tuple[str, ...]:
        """The nodes on which nothing but this filter (and subject) is against the pod."""
        return self.judged.only(filter_name, subject)

    def against(self, filter_name: str, subject: str = "") -> tuple[Reason, ...]:
        """Every reason of a filter, over all nodes in question."""
        return self.judged.against(filter_name, subject)

    def change(self, *kinds: str) -> FittingChange | None:
        """The smallest change of one of these kinds that is enough."""
        return next((one for one in self.changes if one.kind in kinds), None)

    def free(self, node: str, resource: str = "") -> int:
        """How much of a resource is left on a node (0 for an unknown one)."""
        state = self.snapshot.fit.nodes.get(node)
        return max(state.free(resource or self.resource), 0) if state else 0

    @cached_property
    def table(self) -> tuple[NodeRow, ...]:
        """The nodes in question, those with the fewest reasons first."""
        rows = []
        for name, reasons in sorted(self.reasons.items(), key=lambda row: (len(row[1]), row[0]))[:MAX_ROWS]:
            state = self.snapshot.fit.nodes[name]
            rows.append(
                NodeRow(
                    node=name,
                    product=matching.product(self.snapshot.nodes[name]),
                    capacity=state.view.capacity.get(self.resource, 0),
                    allocatable=state.view.allocatable.get(self.resource, 0),
                    used=state.used.get(self.resource, 0),
                    reasons=tuple(dict.fromkeys(reason.sentence for reason in reasons)),
                )
            )
        return tuple(rows)

    @property
    def who(self) -> str:
        """``Pod ml/train-0``, and how many more like it."""
        more = len(self.pods) - 1
        of = f"of {self.pod.owner}" if len({one.owner for one in self.pods}) == 1 else "that ask alike"
        return f"{self.pod}" + (f" (and {more} more {of})" if more else "")

    def shared(self, **more: Any) -> dict[str, Any]:
        """What every finding about these pods says alike; arguments of ``Finding``."""
        return {
            "subject": self.pod.subject,
            "pods": tuple(one.path for one in self.pods),
            "nodes": tuple(node.name for node in self.nodes if self._is_for(node))[:MAX_NODES],
            "table": self.table,
            "since": self.since,
            **more,
        }

    def _is_for(self, node: Node) -> bool:
        """Whether a node has the resource or devices of its vendor: what befalls others does not hurt these pods."""
        vendor = matching.vendor_of(self.resource)
        return not vendor or self.resource in node.resources() or vendor in matching.vendors_of(node, self.snapshot)

    @property
    def blamed(self) -> tuple[str, ...]:
        """The nodes of ``shared``, but for those with withdrawn devices that these pods would not fit even with all of
        them back: what is wrong with those devices is not why these pods wait.
        """
        nodes = (node for node in self.nodes if self._is_for(node))
        return tuple(node.name for node in nodes if self.judged.withdrawn.get(node.name, True))[:MAX_NODES]

    @property
    def since(self) -> str:
        found = self.pod.condition("PodScheduled")
        return (found.since if found and found.status == "False" else "") or self.pod.created

    def asked(self) -> Evidence:
        """The field in which the pod asks for the resource."""
        for one in self.pod.containers:
            for field, amounts in (("limits", one.limits), ("requests", one.requests)):
                if self.resource in amounts:
                    return one.cite(f"resources.{field}[{self.resource}]")
        return self.pod.cite("spec.resourceClaims")

    def said(self) -> tuple[Evidence, ...]:
        """The scheduler's own words, as far as there are any."""
        found = self.pod.condition("PodScheduled")
        if found is not None and found.message:
            return (found.cite(),)
        events = [one for one in self.snapshot.events(self.pod) if one.reason == "FailedScheduling"]
        return (events[0].quote(),) if events else ()

    @cached_property
    def scaling(self) -> Scaling | None:
        """The latest that an autoscaler has said of these pods, None where there is none."""
        events = [
            event for pod in self.pods[:MAX_OWNERS] for event in self.snapshot.events(pod) if event.reason in _SCALING
        ]
        last = max(events, key=lambda event: event.when, default=None)
        if last is None:
            return None
        age = self.snapshot.age(last.last) or 0.0
        if last.reason in _COMING and age > _SCALE_SECONDS:
            words = f"the autoscaler was to add a node {int(age // 60)} minutes ago, and the pod still waits"
            return Scaling(f"{words}: {last.message}", last.quote())
        expected = _SCALE_EXPECTED if last.reason in _COMING else ""
        return Scaling(f"{_SCALING[last.reason]}: {last.message}", last.quote(), expected)

    def holders(self, limit: int = 8) -> tuple[Pod, ...]:
        """The pods that hold the resource on the nodes in question, the oldest first."""
        return self._held_by[:limit]

    @cached_property
    def _held_by(self) -> tuple[Pod, ...]:
        names = dict.fromkeys(name for one in self.against(RESOURCES, self.resource) for name in one.holders)
        keys = [tuple(name.split("/", 1)) for name in names]
        found = [pod for key in keys if (pod := self.snapshot.pods.get((key[0], key[-1]))) is not None]
        return tuple(sorted(found, key=lambda pod: pod.created))


def waiting(snapshot: Snapshot) -> tuple[Waiting, ...]:
    """Return the pods that wait for accelerators, grouped by equal requests and owner."""
    return snapshot.once(_waiting)


def _waiting(snapshot: Snapshot) -> tuple[Waiting, ...]:
    if not snapshot.nodes:  # of which nothing is known; the reader is told that this can't be judged
        return ()
    ways: dict[Any, dict[str, list[tuple[Pod, PodView]]]] = {}
    for pod in snapshot.pods.values():
        if not pod.unplaced or not matching.uses_accelerators(pod):
            continue
        view = snapshot.view(pod)
        if view is None:
            continue
        owners = ways.setdefault(_alike(view), {})
        # Beyond a number of owners that ask alike, the rest is told with the last of them.
        owner = f"{view.namespace}/{view.owner or view.name}"
        owners.setdefault(owner if owner in owners or len(owners) < MAX_OWNERS else "", []).append((pod, view))
    waiting_pods: list[Waiting] = []
    for owners in list(ways.values())[:MAX_WAYS]:
        rows = [row for group in owners.values() for row in group]
        first = rows[0][0]
        requests = matching.accelerators(first)
        resource = max(requests, key=lambda name: (requests[name], name), default="")
        judged = Judged(rows[0][1], tuple(_in_question(snapshot, resource)), snapshot)
        for group in owners.values():
            group.sort(key=lambda row: row[0].key)
            waiting_pods.append(
                Waiting(
                    snapshot=snapshot,
                    pod=group[0][0],
                    view=group[0][1],
                    pods=tuple(pod for pod, _ in group),
                    resource=resource,
                    wanted=requests.get(resource, 0),
                    judged=judged,
                )
            )
    return tuple(waiting_pods)


def _once(reasons: tuple[Reason, ...]) -> tuple[Reason, ...]:
    """Without the taint of a cordon, which the cordon's own reason says already."""
    if not any(one.filter == UNSCHEDULABLE_FILTER for one in reasons):
        return reasons
    return tuple(
        one for one in reasons if one.filter != TAINTS or not one.subject.startswith(names.TAINT_UNSCHEDULABLE)
    )  # fmt: skip


def _alike(view: PodView) -> Any:
    """Equal for pods that every filter judges in the same way."""
    local = (
        view.affinity or view.anti_affinity or view.spread or view.volume_claims or view.claims or view.preferred_pods
    )
    return (
        tuple(sorted(view.requests.items())),
        *(view.tolerations, view.node_selector, view.node_terms, view.scheduler, view.gates, view.priority),
        *(view.ports, view.nominated, view.volume_claims, view.claims),
        (view.namespace, tuple(sorted(view.labels.items()))) if local else (),
    )


def _in_question(snapshot: Snapshot, resource: str) -> list[Node]:
    """Nodes that have the resource (an amount of 0 counts), else those of its vendor, else all with accelerators."""
    vendor = matching.vendor_of(resource)
    ways: Iterable[list[Node]] = (
        [node for node in snapshot.nodes.values() if resource in node.resources()],
        matching.gpu_nodes(snapshot, vendor) if vendor else [],
        matching.gpu_nodes(snapshot),
    )
    found = next((nodes for nodes in ways if nodes), [])
    return sorted(found, key=lambda node: (not node.ready, node.name))


__all__ = ["AFFINITY", "RESOURCES", "TAINTS", "UNSCHEDULABLE_FILTER", "Scaling", "Waiting", "waiting"]
