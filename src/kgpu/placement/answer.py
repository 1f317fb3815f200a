"""The whole answer: changes made, pods placed, room before and after, what it costs, and a plan to make room. Pure.

Its prices come through a port: what a node costs an hour, asked with its labels and the number of its GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from kgpu.base.errors import ConfigError
from kgpu.base.plain import mapping, text
from kgpu.base.printable import one_line
from kgpu.base.suggest import did_you_mean
from kgpu.placement import asides, capacity, edits, groups, layouts, quality, question, quotas
from kgpu.placement.defrag import defragment
from kgpu.placement.model import DefragPlan, Origin, PriceChange, WhatIfAnswer
from kgpu.placement.plan import Placing, by_points
from kgpu.placement.question import WhatIfQuestion
from kgpu.placement.state import Chooser, Object, PlacementState

DEFAULT_SCHEDULER: Final = "default-scheduler"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHour:
    """Millionths of the currency for an hour of a node, where that is from, and what was assumed."""

    per_hour: int
    source: str
    assumed: str = ""


class NodePrices(Protocol):
    """Where prices come from."""

    currency: str

    def hour(self, labels: Mapping[str, str], provider_id: str, gpus: int) -> NodeHour:
        """What a node with these labels and so many GPUs costs an hour."""
        ...


def answer(
    asked: WhatIfQuestion, objects: Iterable[Object], prices: NodePrices | None = None, choose: Chooser | None = None
) -> WhatIfAnswer:
    """What becomes of the cluster; ``choose`` decides between nodes instead of points. Raises ConfigError for a
    question that it can't be asked.
    """
    question.check_kinds(asked.manifests)
    state = PlacementState(objects)
    if not state.snapshot.nodes:
        raise ConfigError("there are no nodes", "a cluster with nodes", "look at another cluster or snapshot")
    known = state.resources()
    before = {resource: capacity.room(state.snapshot, resource) for resource in known}
    told = edits.apply(state, question.changes(asked, state))
    groups.join(state)
    placing = Placing(state, choose or by_points(pack=asked.pack))
    outcomes = tuple(placing.all())
    every = sorted({*known, *state.resources()})
    after = {resource: capacity.room(state.snapshot, resource) for resource in every}
    resource = _resource(asked, state)
    nodes = state.snapshot.nodes
    by_pod = {str(one.pod): quality.of_pod(state, one.pod, nodes[one.node].view) for one in outcomes if one.node}
    others = {one.pod.scheduler for one in outcomes} - {DEFAULT_SCHEDULER}
    notes = [f"scheduler {one_line(name, 80)} places some of the pods by rules of its own; the default one's are used"
             for name in sorted(others)]  # fmt: skip
    new = (one.pod.namespace for one in outcomes if one.origin is not Origin.WAITING)
    notes += quotas.unseen(state, new)
    notes += [
        *asides.unread_classes(state),
        *asides.without_accelerators(outcomes),
        *asides.slices_for_whole(state, outcomes),
    ]
    return WhatIfAnswer(
        changes=told,
        refusals=(*asides.missing_namespaces(state, outcomes), *asides.missing_classes(state)),
        outcomes=outcomes,
        gangs=tuple(placing.gangs),
        before=tuple(before.values()),
        after=tuple(after.values()),
        stranded=tuple(one for name in after for one in capacity.stranded(state.snapshot, name)),
        quality={pod: words for pod, words in by_pod.items() if words},
        defrag=_plan(state, resource, asked.defrag_for),
        prices=tuple(_prices(state, prices)) if prices is not None else (),
        currency=prices.currency if prices is not None else "",
        notes=tuple(dict.fromkeys((*state.notes, *state.volumes.notes(), *notes))),
    )


def _plan(state: PlacementState, resource: str, wanted: int) -> DefragPlan | None:
    return defragment(state, resource, wanted) if wanted else None


def _resource(asked: WhatIfQuestion, state: PlacementState) -> str:
    """What a plan to make room is about. Raises ConfigError."""
    known = state.resources()
    if asked.resource and asked.resource not in known:
        near = did_you_mean(asked.resource, known)
        raise ConfigError(
            f"no node offers {one_line(asked.resource, 80)}" + (f"; {near}" if near else ""),
            f"one of {', '.join(known)}" if known else "a resource that nodes offer", "correct --resource",
        )  # fmt: skip
    if asked.defrag_for and not known:
        raise ConfigError("no node offers accelerators", "a node that does", "leave --defrag-for out")
    nodes = state.snapshot.nodes.values()
    offered = {name: sum(node.view.allocatable.get(name, 0) for node in nodes) for name in known}
    return asked.resource or max(known, key=lambda name: (offered[name], name), default="")


def _prices(state: PlacementState, prices: NodePrices) -> Iterator[PriceChange]:
    rows: tuple[tuple[int, Mapping[str, Object]], ...] = ((1, state.came), (-1, state.went))
    for sign, nodes in rows:
        for name, obj in nodes.items():
            view = state.snapshot.nodes[name].view
            provider = text(mapping(obj.get("spec")).get("providerID"))
            hour = prices.hour(view.labels, provider, max(1, layouts.cards_of(view)))
            yield PriceChange(node=name, per_hour=sign * hour.per_hour, source=hour.source, assumed=hour.assumed)
