"""Which pods do a workload's work, and which of a pod's containers has something to say. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kgpu.base.plain import items, mapping, text
from kgpu.kube.port import Object, annotations_of, labels_of, name_of, namespace_of
from kgpu.workloads.rows import AGENT, Workload

DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPod:
    """A pod. ``shared``: it is the agent's, which does the work of others in the same process. ``container`` is whose
    log is shown, ``containers`` are all that it has, those that prepare it first. ``state`` is what keeps it from
    being ready, "" when it is.
    """

    namespace: str
    name: str
    uid: str
    node: str
    container: str
    containers: tuple[str, ...]
    shared: bool = False
    state: str = ""

    @property
    def shown(self) -> str:
        """How its lines are marked among those of others."""
        return self.node or self.name


def serving(row: Workload, pods: Iterable[Object], node: str = "") -> tuple[ServingPod, ...]:
    """The workload's own pods; on nodes without one the agent's, if that does the same work. By node and name.

    ``pods`` are those of one namespace. ``node``: only that one's.
    """
    kept = [pod for pod in pods if not node or _node(pod) == node]
    own = [_serving(pod) for pod in kept if labels_of(pod).get(row.label[0]) == row.label[1]]
    served = {pod.node for pod in own}
    agents = [pod for pod in kept if row.role and labels_of(pod).get(AGENT.label[0]) == AGENT.label[1]]
    shared = [found for pod in agents if (found := _serving(pod, shared=True)).node not in served]
    return tuple(sorted((*own, *shared), key=lambda pod: (pod.node, pod.name)))


def _node(pod: Object) -> str:
    return text(mapping(pod.get("spec")).get("nodeName"))


def _serving(pod: Object, *, shared: bool = False) -> ServingPod:
    spec = mapping(pod.get("spec"))
    before = [text(mapping(one).get("name")) for one in items(spec.get("initContainers"))]
    rest = [text(mapping(one).get("name")) for one in items(spec.get("containers"))]
    return ServingPod(
        namespace=namespace_of(pod), name=name_of(pod), uid=text(mapping(pod.get("metadata")).get("uid")),
        node=_node(pod), container=_speaking(pod, rest), containers=tuple(filter(None, (*before, *rest))),
        shared=shared, state=state(pod),
    )  # fmt: skip


def _speaking(pod: Object, containers: Sequence[str]) -> str:
    """The container that prepares the pod as long as it does; then the one that the pod names, or its first."""
    for status in _statuses(pod, "initContainerStatuses"):
        name, now = text(status.get("name")), mapping(status.get("state"))
        ended = mapping(now.get("terminated"))
        done = bool(ended) and ended.get("exitCode") == 0
        begun = bool("running" in now or ended or status.get("restartCount"))
        if not done and not _stays(pod, name):
            return name if begun else next(iter(containers), "")
    named = annotations_of(pod).get(DEFAULT_CONTAINER, "")
    return named if named in containers else next(iter(containers), "")


def _stays(pod: Object, name: str) -> bool:
    """Whether it is a sidecar, which runs beside the others."""
    rows = map(mapping, items(mapping(pod.get("spec")).get("initContainers")))
    return any(row.get("name") == name and row.get("restartPolicy") == "Always" for row in rows)


def state(pod: Object) -> str:
    """What keeps the pod from being ready, in Kubernetes' words; "" when it is ready."""
    status, metadata = mapping(pod.get("status")), mapping(pod.get("metadata"))
    if metadata.get("deletionTimestamp"):
        return "Terminating"
    conditions = {text(row.get("type")): row for row in map(mapping, items(status.get("conditions")))}
    if mapping(conditions.get("Ready")).get("status") == "True":
        return ""
    for kind in ("initContainerStatuses", "containerStatuses"):
        for row in _statuses(pod, kind):
            waiting = mapping(mapping(row.get("state")).get("waiting"))
            if reason := text(waiting.get("reason")):
                return reason
    placed = mapping(conditions.get("PodScheduled"))
    if placed.get("status") == "False":
        return text(placed.get("reason")) or "Pending"
    return "NotReady" if status.get("phase") == "Running" else text(status.get("phase")) or "Pending"


def _statuses(pod: Object, kind: str) -> Iterable[Mapping[str, Any]]:
    return map(mapping, items(mapping(pod.get("status")).get(kind)))
