"""What may still give a waiting pod its GPUs without another node: devices that nobody offers, a plugin without pods,
discovery that is not well, a scheduler or a sharing system with rules of its own.

Only where none of it is so does the doctor propose another node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import hami, matching, remedies
from kgpu.doctor.kinds import Node, Pod
from kgpu.doctor.model import Evidence
from kgpu.doctor.objects import Obj
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.waiting import Waiting
from kgpu.formats import names

DEFAULT_SCHEDULER: Final = "default-scheduler"
_PATIENCE: Final = 300.0
"""Seconds in which discovery starts."""
_RESERVED: Final = frozenset({"kai-resource-reservation", "runai-reservation"})
"""Namespaces in which KAI and Run:ai hold a whole GPU for the pods that share it."""
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Untapped:
    """One such reason: what is told of it, and where to look."""

    sentence: str
    evidence: tuple[Evidence, ...]
    remedy: Remedy


def untapped(pending: Waiting) -> tuple[Untapped, ...]:
    """All that comes before another node, what lies deepest first."""
    return tuple(reason for row in _ROWS for reason in row(pending))


def or_a_node(pending: Waiting, step: Remedy) -> tuple[Remedy, ...]:
    """The steps that look at what comes before another node; ``step``, which adds one, where nothing does."""
    return tuple(dict.fromkeys(reason.remedy for reason in untapped(pending))) or (step,)


def _unoffered(pending: Waiting) -> Iterator[Untapped]:
    snapshot, vendor = pending.snapshot, matching.vendor_of(pending.resource)
    nodes = [node for node in matching.gpu_nodes(snapshot, vendor) if offers_nothing(snapshot, node)]
    if nodes:
        node, more = nodes[0], f" (and {len(nodes) - 1} more)" if len(nodes) > 1 else ""
        whose = vendor or ", ".join(sorted(matching.vendors_of(node, snapshot)))
        yield Untapped(
            f"node {node.name}{more} has {whose} devices and offers none of them",
            (node.cite("metadata.labels"), node.cite("status.allocatable")),
            remedies.ask_doctor(node.name),
        )


def offers_nothing(snapshot: Snapshot, node: Node) -> bool:
    """Whether a node offers none of its devices, neither as a resource nor to claims, and they are for containers."""
    if node.labels.get(names.LABEL_WORKLOAD_CONFIG, "").startswith("vm-"):
        return False
    offers = any(node.allocatable(name) for name in node.resources() if matching.is_accelerator(name))
    return not offers and node.name not in snapshot.once(nodes_with_slices)


def nodes_with_slices(snapshot: Snapshot) -> frozenset[str]:
    """The nodes whose devices are offered to claims."""
    return frozenset(resource_slice.text("spec.nodeName") for resource_slice in snapshot.all("ResourceSlice"))


def _without_pods(pending: Waiting) -> Iterator[Untapped]:
    """The plugin's DaemonSet where it wants no pod. Clouds bring one for each kind of node: one that wants some is
    enough.
    """
    part = matching.PLUGIN if pending.resource else matching.DRA
    sets = matching.daemon_sets_of_part(pending.snapshot, part, vendor=matching.vendor_of(pending.resource))
    idle = [daemons for daemons in sets if daemons.at("status.desiredNumberScheduled") == 0]
    if idle and len(idle) == len(sets):
        yield _idle(idle[0])


def _idle(daemons: Obj) -> Untapped:
    return Untapped(
        f"{daemons}, which offers such devices, wants a pod on no node",
        (daemons.cite("status.desiredNumberScheduled"),),
        remedies.describe(daemons.namespace, "daemonset", daemons.name),
    )


def _undiscovered(pending: Waiting) -> Iterator[Untapped]:
    unwell, unlabelled = discovery_unwell(pending.snapshot), unlabelled_nodes(pending.snapshot)
    if unwell and unlabelled:
        pod = unwell[0]
        yield Untapped(
            f"{pod}, which finds GPU nodes, is not ready, and {named(unlabelled)} has no labels of it",
            (_state(pod), unlabelled[0].cite("metadata.labels")),
            remedies.describe(pod.namespace, "pod", pod.name),
        )


def discovery_unwell(snapshot: Snapshot) -> list[Pod]:
    """The pods of node feature discovery that keep ending, or are not ready after minutes."""
    pods = (pod for part in (matching.NFD_WORKER, matching.NFD_MASTER) for pod in matching.pods_of_part(snapshot, part))
    return [pod for pod in pods if not pod.ready and not pod.ended and not pod.deleting and _fails(snapshot, pod)]


def _fails(snapshot: Snapshot, pod: Pod) -> bool:
    age = snapshot.age(pod.created)
    return matching.failing(pod) is not None or (age is not None and age >= _PATIENCE)


def unlabelled_nodes(snapshot: Snapshot) -> list[Node]:
    """The nodes of which nobody has said whether they have GPUs: no label of discovery, and no other sign of one."""
    return [
        node
        for node in snapshot.nodes.values()
        if not any(key.startswith(names.NFD_PREFIX) for key in node.labels) and not matching.vendors_of(node, snapshot)
    ]


def named(nodes: list[Node]) -> str:
    """The first of these nodes, and how many more there are."""
    more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    return f"node {', '.join(node.name for node in nodes[:_SHOWN])}{more}"


def _state(pod: Pod) -> Evidence:
    at = matching.failing(pod)
    return at.cite_status() if at is not None else pod.cite("status.phase")


def _scheduled_by_another(pending: Waiting) -> Iterator[Untapped]:
    pod, name = pending.pod, pending.pod.scheduler
    if name == DEFAULT_SCHEDULER:
        return
    if runs(pending.snapshot, pod):
        sentence = f"scheduler {name} places it, by queues, gangs or shares of its own"
        step = remedies.describe(pod.namespace, "pod", pod.name)
    else:
        sentence = f"it names the scheduler {name}, and nothing by that name runs here"
        step = Remedy("kubectl get pods -A | grep -i scheduler")
    yield Untapped(sentence, (pod.cite("spec.schedulerName"),), step)


def runs(snapshot: Snapshot, waiter: Pod) -> bool:
    """Whether the scheduler that a pod names has said anything of it, or a pod by its name is Ready."""
    if snapshot.events(waiter) or waiter.condition("PodScheduled"):
        return True
    word = waiter.scheduler.removesuffix("-scheduler")
    others = (pod for pod in snapshot.pods.values() if pod.key != waiter.key and not pod.ended)
    return any(word in pod.name and pod.node and pod.ready for pod in others)


def _shared(pending: Waiting) -> Iterator[Untapped]:
    node = next((node for node in pending.nodes if hami.cards(node) is not None), None)
    if node is not None:
        yield Untapped(
            f"HAMi shares the cards of node {node.name}: what is free of each is counted by its scheduler alone",
            (node.cite(f"metadata.annotations[{hami.REGISTERED}]"),),
            Remedy("kubectl get nodes -o yaml | grep -A 3 hami.io/node"),
        )
    holder = next((pod for pod in pending.holders(100) if pod.namespace in _RESERVED), None)
    if holder is not None:
        yield Untapped(
            f"{holder} holds a GPU for pods that share it: a pod that asks for a part of one may fit",
            (holder.cite("spec.nodeName"),),
            Remedy("kubectl -n {} get pods -o wide", holder.namespace),
        )


_ROWS: Final[tuple[Callable[[Waiting], Iterator[Untapped]], ...]] = (
    _unoffered, _without_pods, _undiscovered, _scheduled_by_another, _shared,
)  # fmt: skip
