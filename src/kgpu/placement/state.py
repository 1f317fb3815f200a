"""The cluster that changes are tried on: the scheduler's picture of it, its objects, and the pods that need a node.

Made anew for every question and thrown away; nothing of it is written anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from kgpu.base.plain import mapping, text
from kgpu.fit import ClusterSnapshot, ClusterView, PodView, read
from kgpu.fit.model import VolumeClaimView
from kgpu.fit.outside_scheduler import quota_asks
from kgpu.formats.accelerators import is_accelerator
from kgpu.formats.names import MIRROR_ANNOTATION
from kgpu.kube.owners import PodGang, gang_of
from kgpu.placement.claims import ClaimBook
from kgpu.placement.model import GangWish, Origin, PodToPlace
from kgpu.placement.volumes import VolumeBook, ephemeral_claims, with_class

Object: TypeAlias = Mapping[str, Any]
Key: TypeAlias = tuple[str, str]
Chooser: TypeAlias = Callable[[PodView, Sequence[str], ClusterSnapshot], str]
"""Which of the nodes that a pod fits it gets."""

GROUP_KINDS: Final = ("PodGroup", "Workload")
"""What says how many pods of a group start, kept with its API group, as several have such kinds."""
READS: Final = (
    "Node", "Pod", "Namespace", "Deployment", "ReplicaSet", "StatefulSet", "Job", "ResourceQuota", "LimitRange",
    "PersistentVolumeClaim", "PersistentVolume", "StorageClass", "PriorityClass", "PodDisruptionBudget", "RuntimeClass",
    "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice", "DeviceClass", "DeviceTaintRule", *GROUP_KINDS,
)  # fmt: skip
"""The kinds of objects that matter; others are passed over."""


class PlacementState:
    """Read its attributes; the functions of ``edits`` and ``plan`` change it."""

    def __init__(self, objects: Iterable[Object]) -> None:
        known = list(objects)
        self.objects: dict[str, dict[Key, Object]] = {}
        for obj in known:
            self.keep(obj)
        self.snapshot = ClusterSnapshot.of(ClusterView.of(known))
        self.claims = ClaimBook(self.snapshot, self.objects)
        self.volumes = VolumeBook(self.snapshot)
        self.waiting: list[PodToPlace] = [
            PodToPlace(pod=pod, origin=Origin.WAITING)
            for pod in sorted(self.snapshot.pods.values(), key=lambda pod: (pod.created, pod.key))
            if not pod.node and not pod.deleting
        ]
        self.groups: dict[str, PodGang] = {}
        """The groups of pods, by the pod's id."""
        for pod in self.snapshot.pods.values():
            self._note_group(pod, self.pod_object(pod))
        self.gangs: dict[str, GangWish] = {}
        """The groups of the pods that need a node, by the name that their rows have."""
        self.notes: list[str] = []
        self.unknown_classes: set[str] = set()
        """Names of priority classes that new pods want and that are not known."""
        self.came: dict[str, Object] = {}
        """Nodes that a change adds, as objects."""
        self.went: dict[str, Object] = {}
        """Nodes that a change takes away."""
        self.made = 0
        """How many pods changes have made up, for names and uids."""

    def keep(self, obj: Object) -> None:
        metadata = mapping(obj.get("metadata"))
        key = text(metadata.get("namespace")), text(metadata.get("name"))
        kind = text(obj.get("kind"))
        if kind in GROUP_KINDS:
            kind = f"{kind}.{text(obj.get('apiVersion')).partition('/')[0]}"
        self.objects.setdefault(kind, {})[key] = obj

    def bring(self, obj: Object) -> None:
        """An object that comes with a change, as admission leaves it."""
        if text(obj.get("kind")) == "PersistentVolumeClaim":
            obj = with_class(obj, self.objects.get("StorageClass", {}).values())
        self.keep(obj)
        reader = read.READERS.get(text(obj.get("kind")))
        view = reader(obj) if reader is not None else None
        if view is None:
            return
        self.snapshot.put(view)
        if isinstance(view, VolumeClaimView):
            self.volumes.made(view)

    def get(self, kind: str, name: str, namespace: str = "") -> Object | None:
        return self.objects.get(kind, {}).get((namespace, name))

    def pod_object(self, pod: PodView) -> Object:
        return self.objects.get("Pod", {}).get(pod.key, {})

    def is_mirror(self, pod: PodView) -> bool:
        """Whether a node's kubelet runs it by a file, so that nobody can move it."""
        annotations = mapping(mapping(self.pod_object(pod).get("metadata")).get("annotations"))
        return MIRROR_ANNOTATION in annotations or pod.owner.startswith("Node/")

    # What changes do

    def copy_of(self, pod: PodView, name: str, obj: Object | None = None) -> PodView:
        """A new pod without a node that asks for the same, its claims made from their templates."""
        self.made += 1
        new = replace(
            pod, name=name, uid=f"what-if/{self.made}", node="", nominated="", used=pod.requests, created="",
            started="", deleting=False, being_preempted=False,
        )  # fmt: skip
        known = obj if obj is not None else self.pod_object(pod)
        self._note_group(new, known)
        for claim in ephemeral_claims(mapping(known.get("spec")), name):
            metadata = {**mapping(claim.get("metadata")), "namespace": pod.namespace}
            if (pod.namespace, text(metadata.get("name"))) not in self.snapshot.shelf.volume_claims:
                self.bring({**claim, "metadata": metadata})
        volumes = tuple((_renamed(claim, pod.name, name) if own else claim, own) for claim, own in pod.volume_claims)
        return replace(new, claims=self.claims.made_for(new, known), volume_claims=volumes)

    def _note_group(self, pod: PodView, obj: Object) -> None:
        gang = gang_of(obj)
        if gang is not None:
            self.groups[pod.id] = gang

    def evict(self, pod: PodView, origin: Origin) -> PodToPlace | None:
        """Take a pod off its node. The one that its controller makes instead, None where nobody does.

        Quotas don't count it any more: the new one has to get past them again.
        """
        obj = self.pod_object(pod)
        self.end(pod)
        if not pod.owner or pod.owner.startswith(("DaemonSet/", "Node/")):
            return None
        return PodToPlace(pod=self.copy_of(pod, pod.name, obj), origin=origin, came_from=pod.node)

    def end(self, pod: PodView) -> None:
        """A pod ends, and its claims with it; quotas no longer count it."""
        self.count_in_quotas(pod, -1)
        self.snapshot.drop(pod)
        self.claims.released(pod)
        self.volumes.released(pod)

    def bind(self, pod: PodView, node: str) -> None:
        """The pod gets the node, and its claims devices and volumes there."""
        self.claims.reserved(pod, self.snapshot.nodes[node])
        self.volumes.reserved(pod, self.snapshot.nodes[node])
        self.snapshot.put(replace(pod, node=node))

    def unbind(self, pod: PodView) -> None:
        """Take back what ``bind`` did."""
        self.snapshot.drop(pod)
        self.claims.given_back(pod)
        self.volumes.given_back(pod)

    def count_in_quotas(self, pod: PodView, sign: int) -> None:
        """A pod that quotas count from now on (1), or no longer (-1)."""
        asks = quota_asks(pod)
        for quota in list(self.snapshot.shelf.quotas.values()):
            if quota.namespace == pod.namespace and not quota.scoped:
                used = {key: amount + sign * asks.get(key, 0) for key, amount in quota.used.items()}
                used |= {key: sign * asks[key] for key in quota.hard if key in asks and key not in used}
                self.snapshot.put(replace(quota, used=used))

    def resources(self) -> tuple[str, ...]:
        """The accelerators that nodes offer or pods ask for, by name."""
        offered = {
            name for node in self.snapshot.nodes.values() for name, many in node.view.allocatable.items() if many
        }
        asked = {name for pod in self.snapshot.pods.values() for name, many in pod.requests.items() if many}
        return tuple(sorted(filter(is_accelerator, offered | asked)))


def _renamed(claim: str, pod: str, new: str) -> str:
    """The claim of an ephemeral volume is called after its pod."""
    return new + claim[len(pod) :]
