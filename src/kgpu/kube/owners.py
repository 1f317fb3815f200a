"""What made an object, by the object alone: its controller, of a ReplicaSet's pod the Deployment; and with which other
pods a pod works together or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from kgpu.base.plain import items, mapping, strings, text
from kgpu.formats import names
from kgpu.kube.port import Object

_HASH = "pod-template-hash"
SCHEDULING_GROUP: Final = "scheduling.k8s.io"
"""Kubernetes' own: Workload in 1.35, PodGroup in 1.36 and later."""
VOLCANO_SCHEDULING: Final = "scheduling.volcano.sh"
KAI_SCHEDULING: Final = "scheduling.run.ai"
COSCHEDULING: Final = "scheduling.x-k8s.io"
"""The plugin of that name (scheduler-plugins)."""
WORKING_TOGETHER: Final = frozenset(
    {"PyTorchJob", "MPIJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob", "TrainJob", "RayJob", "JobSet",
     "LeaderWorkerSet"}
)  # fmt: skip
"""Kinds whose pods wait for one another. A Job's do where each has an index, by its annotation."""


def controller_of(metadata: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The reference to the controller among the owners of an object with this metadata, None without one."""
    references = map(mapping, items(metadata.get("ownerReferences")))
    return next((one for one in references if one.get("controller") is True), None)


def kind_and_name(reference: Mapping[str, Any]) -> str:
    """``Kind/name`` of who a reference names."""
    return f"{text(reference.get('kind'))}/{text(reference.get('name'))}"


def owner_of(pod: Object) -> str:
    """Such as ``Deployment/llama``; "" for a pod that nothing would make again.

    A Deployment's ReplicaSets are called after it and the hash that their pods have as a label; what a LeaderWorkerSet
    makes is called after it, too: its leaders' StatefulSet, and that of each leader's workers.
    """
    metadata = mapping(pod.get("metadata"))
    reference = controller_of(metadata)
    if reference is None:
        return ""
    kind, name = text(reference.get("kind")), text(reference.get("name"))
    suffix = f"-{text(mapping(metadata.get('labels')).get(_HASH))}"
    if kind == "ReplicaSet" and len(suffix) > 1 and name.endswith(suffix):
        kind, name = "Deployment", name.removesuffix(suffix)
    if _is_of_leader_worker_set(kind, name, metadata):
        return f"LeaderWorkerSet/{text(mapping(metadata.get('labels')).get(names.LWS_NAME))}"
    return f"{kind}/{name}"


def _is_of_leader_worker_set(kind: str, name: str, metadata: Mapping[str, Any]) -> bool:
    """Whether a pod with this owner is a leader or worker of the set that its label names. The label alone is
    anybody's: the owner has to be called as the set's own are.
    """
    labels, notes = strings(metadata.get("labels")), strings(metadata.get("annotations"))
    leaders = labels.get(names.LWS_NAME, "")
    if not leaders or kind not in {"StatefulSet", "Deployment"}:
        return False
    if name == leaders:
        return True
    workers = {f"{leaders}-{labels.get(names.LWS_GROUP_INDEX, '')}", notes.get(names.LWS_LEADER_NAME, "")}
    return kind == "StatefulSet" and name in workers and name.startswith(f"{leaders}-") and len(name) > len(leaders) + 1


@dataclass(frozen=True, slots=True)
class PodGang:
    """The group of a pod: what names it, in the pod's namespace. ``text`` of it is ``Kind/name``.

    ``scheduled``: its scheduler starts so many of its pods as the object of that API ``group`` says, or none of them;
    others are placed one by one and merely work together. ``pods``: how many it has by the pod's own word, 0 for none.
    """

    kind: str
    name: str
    group: str = ""
    scheduled: bool = False
    pods: int = 0

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


_Row: TypeAlias = Callable[[Mapping[str, Any], Mapping[str, str], Mapping[str, str]], PodGang | None]
"""A pod's spec, labels and annotations."""


def _scheduling_group(spec: Mapping[str, Any], labels: Mapping[str, str], notes: Mapping[str, str]) -> PodGang | None:
    """Kubernetes 1.36 and later."""
    del labels, notes
    name = text(mapping(spec.get("schedulingGroup")).get("podGroupName"))
    return PodGang("PodGroup", name, SCHEDULING_GROUP, scheduled=True) if name else None


def _workload_ref(spec: Mapping[str, Any], labels: Mapping[str, str], notes: Mapping[str, str]) -> PodGang | None:
    """Kubernetes 1.35: a group of a Workload, and with a replica's key each replica of it by itself."""
    del labels, notes
    ref = mapping(spec.get("workloadRef"))
    parts = [text(ref.get(key)) for key in ("name", "podGroup", "podGroupReplicaKey")]
    if not parts[0]:
        return None
    return PodGang("Workload", "/".join(filter(None, parts)), SCHEDULING_GROUP, scheduled=True)


def _named(kind: str, keys: tuple[str, ...], group: str = "", *, by_label: bool = True) -> _Row:
    def find(spec: Mapping[str, Any], labels: Mapping[str, str], notes: Mapping[str, str]) -> PodGang | None:
        del spec
        name = next(filter(None, map((labels if by_label else notes).get, keys)), "")
        return PodGang(kind, name, group, scheduled=bool(group)) if name else None

    return find


def _kueue(spec: Mapping[str, Any], labels: Mapping[str, str], notes: Mapping[str, str]) -> PodGang | None:
    """Kueue's plain pods: admitted together, and then placed by whatever scheduler."""
    del spec
    name, count = labels.get(names.KUEUE_POD_GROUP), notes.get(names.KUEUE_POD_GROUP_COUNT, "")
    pods = int(count) if count.isascii() and count.isdecimal() and len(count) <= 6 else 0
    return PodGang("PodGroup", name, pods=pods) if name else None


def _leader_worker_set(spec: Mapping[str, Any], labels: Mapping[str, str], notes: Mapping[str, str]) -> PodGang | None:
    """Each group of a LeaderWorkerSet by itself: they serve independently."""
    del spec, notes
    name, index = labels.get(names.LWS_NAME), labels.get(names.LWS_GROUP_INDEX, "")
    return PodGang("LeaderWorkerSet", f"{name}/{index}" if index else name) if name else None


_GANG_ROWS: Final[tuple[_Row, ...]] = (
    _scheduling_group,
    _workload_ref,
    _named("PodGroup", names.VOLCANO_POD_GROUP, VOLCANO_SCHEDULING, by_label=False),
    _named("PodGroup", (names.KAI_POD_GROUP,), KAI_SCHEDULING, by_label=False),
    _named("PodGroup", names.COSCHEDULING_POD_GROUP, COSCHEDULING),
    _kueue,
    _leader_worker_set,
    _named("JobSet", (names.JOBSET_NAME,)),
)
"""In this order: who schedules a pod says more than who made it."""


def gang_of(pod: Mapping[str, Any]) -> PodGang | None:
    """The pods that it works together with, None for one that works alone. By metadata alone, all but the two rows of
    Kubernetes' own scheduling groups are known.
    """
    metadata, spec = mapping(pod.get("metadata")), mapping(pod.get("spec"))
    labels, notes = strings(metadata.get("labels")), strings(metadata.get("annotations"))
    for row in _GANG_ROWS:
        found = row(spec, labels, notes)
        if found is not None:
            return found
    owner = mapping(controller_of(metadata))
    kind, name = text(owner.get("kind")), text(owner.get("name"))
    together = kind in WORKING_TOGETHER or (kind == "Job" and names.JOB_INDEX in notes)
    return PodGang(kind, name) if together and name else None
