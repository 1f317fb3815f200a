"""Pure: how a workload is stopped so that it can be brought back: one row for each kind of owner.

Pods are climbed from controller to controller; the first row that fits what was found says which object is changed,
how, and what has to be remembered. A kind without a row is told about and never touched.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kgpu.base.times import stamp_of
from kgpu.formats import names
from kgpu.kube.kinds import DEPLOYMENTS, JOBS, REPLICA_SETS, STATEFUL_SETS
from kgpu.kube.owners import WORKING_TOGETHER
from kgpu.kube.port import PODS, Object, Resource, name_of, namespace_of

LEADER_WORKER_SETS: Final = Resource("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "LeaderWorkerSet")
NOTEBOOKS: Final = Resource("kubeflow.org", "v1", "notebooks", "Notebook")
INFERENCE_SERVICES: Final = Resource("serving.kserve.io", "v1beta1", "inferenceservices", "InferenceService")
KUEUE_WORKLOADS: Final = Resource("kueue.x-k8s.io", "v1beta2", "workloads", "Workload")
JOB_SETS: Final = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
CLIMBED: Final = {
    (row.group, row.kind): row
    for row in (
        DEPLOYMENTS, REPLICA_SETS, STATEFUL_SETS, JOBS, LEADER_WORKER_SETS, NOTEBOOKS, INFERENCE_SERVICES, JOB_SETS,
        PODS,  # the leader of a LeaderWorkerSet's group controls the StatefulSet of its workers
        Resource("ray.io", "v1", "rayclusters", "RayCluster"), Resource("ray.io", "v1", "rayjobs", "RayJob"),
        *(Resource("kubeflow.org", "v1", f"{kind.lower()}s", kind)
          for kind in ("PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob")),
        Resource("kubeflow.org", "v2beta1", "mpijobs", "MPIJob"),
        Resource("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob"),
    )
}  # fmt: skip
"""Kinds that own pods, or own what does, by group and kind."""
GANGS: Final = WORKING_TOGETHER | {"Job", "RayCluster"}
"""Kinds whose pods work together, or whose work is lost when they stop."""
KSERVE_LABEL: Final = "serving.kserve.io/inferenceservice"
KSERVE_MODE: Final = "serving.kserve.io/deploymentMode"
KUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
NOTEBOOK_STOPPED: Final = "kubeflow-resource-stopped"
_HUB_USER: Final = frozenset({"hub.jupyter.org/username", "hub.jupyter.org/servername"})


class StopWay(enum.StrEnum):
    """How a workload is stopped; the value of its annotation ``kgpu.dev/reclaim-action``."""

    SCALE = "scale"
    PREDICTOR = "predictor"
    NOTEBOOK = "notebook"
    WORKLOAD = "workload"
    SUSPEND = "suspend"
    EVICT = "evict"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnersFound:
    """A pod and its controllers, the nearest first. ``unknown`` is a controller of a kind that is not known, as
    ``KIND/NAME``, and ``missing`` one that is not there; ``service`` is the InferenceService that the pod's label
    names, and ``admission`` the Kueue Workload of the top, None where there is none.
    """

    pod: Object
    chain: tuple[Object, ...] = ()
    unknown: str = ""
    missing: str = ""
    service: Object | None = None
    admission: Object | None = None

    @property
    def top(self) -> Object:
        """The top of the owners, the pod itself without any."""
        return self.chain[-1] if self.chain else self.pod


@dataclass(frozen=True, slots=True, kw_only=True)
class StopTarget:
    """What would be changed to stop a workload. ``remembered`` is what it has now, as text, "" for nothing."""

    way: StopWay
    resource: Resource
    obj: Object
    remembered: str = ""
    stopped: bool = False

    @property
    def namespace(self) -> str:
        """The object's namespace."""
        return namespace_of(self.obj)

    @property
    def name(self) -> str:
        """The object's name."""
        return name_of(self.obj)

    @property
    def title(self) -> str:
        """Kind, namespace and name."""
        return f"{self.resource.kind} {self.namespace}/{self.name}"

    @property
    def subresource(self) -> str:
        """What of the object is patched; "" for the object itself."""
        return "scale" if self.way is StopWay.SCALE else ""

    def stop(self, now: float) -> Object:
        """The patch that stops it; ``now`` in seconds since 1970."""
        return _WAYS[self.way].stop(now)

    def resume(self, old: str) -> Object | None:
        """The patch that brings it back to what was remembered, None where that is nothing to come back to."""
        return _WAYS[self.way].resume(old)


@dataclass(frozen=True, slots=True)
class WayRow:
    """A way to stop an object. ``read`` gives what it has now, as text, and whether it is stopped already."""

    read: Callable[[Object], tuple[str, bool]]
    stop: Callable[[float], Object]
    resume: Callable[[str], Object | None]


def _path(obj: Object, *path: str) -> Any:
    value: Any = obj
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _count(obj: Object, *path: str) -> tuple[str, bool]:
    """A number of replicas, which is 1 where it is not given."""
    value = _path(obj, *path)
    number = 1 if value is None else int(value)
    return str(number), number == 0


def _number(text: str) -> int | None:
    """A number of replicas to come back to; None for what is none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 7 and int(text) > 0 else None


def _with_count(text: str, *path: str) -> Object | None:
    value: Any = _number(text)
    if value is None:
        return None
    for part in reversed(path):
        value = {part: value}
    return dict(value)


def _mark(obj: Object) -> tuple[str, bool]:
    return "running", NOTEBOOK_STOPPED in (_path(obj, "metadata", "annotations") or {})


_REPLICAS: Final = ("spec", "replicas")
_LEAST: Final = ("spec", "predictor", "minReplicas")
_WAYS: Final = {
    StopWay.SCALE: WayRow(
        read=lambda obj: _count(obj, *_REPLICAS),
        stop=lambda _: {"spec": {"replicas": 0}},
        resume=lambda old: _with_count(old, *_REPLICAS),
    ),
    StopWay.PREDICTOR: WayRow(
        read=lambda obj: _count(obj, *_LEAST),
        stop=lambda _: {"spec": {"predictor": {"minReplicas": 0}}},
        resume=lambda old: _with_count(old, *_LEAST),
    ),
    StopWay.NOTEBOOK: WayRow(
        read=_mark,
        stop=lambda now: {"metadata": {"annotations": {NOTEBOOK_STOPPED: stamp_of(now)}}},
        resume=lambda _: {"metadata": {"annotations": {NOTEBOOK_STOPPED: None}}},
    ),
    StopWay.WORKLOAD: WayRow(
        read=lambda obj: ("active", _path(obj, "spec", "active") is False),
        stop=lambda _: {"spec": {"active": False}},
        resume=lambda _: {"spec": {"active": True}},
    ),
    StopWay.SUSPEND: WayRow(
        read=lambda obj: ("running", _path(obj, "spec", "suspend") is True),
        stop=lambda _: {"spec": {"suspend": True}},
        resume=lambda _: {"spec": {"suspend": False}},
    ),
    StopWay.EVICT: WayRow(
        read=lambda obj: ("", bool(_path(obj, "metadata", "deletionTimestamp"))),
        stop=lambda _: {},
        resume=lambda _: None,
    ),
}


def target_by(way: StopWay, resource: Resource, obj: Object) -> StopTarget:
    """What would be changed, of an object whose way is known."""
    remembered, stopped = _WAYS[way].read(obj)
    return StopTarget(way=way, resource=resource, obj=obj, remembered=remembered, stopped=stopped)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerRow:
    """A kind of owner. ``target`` gives what is changed, None where the row does not fit, or why it can't be done."""

    owner: str
    action: str
    target: Callable[[OwnersFound], StopTarget | str | None]


def _jupyterhub(found: OwnersFound) -> str | None:
    """The hub's pods have no owner; the same labels on those of another are anybody's."""
    labels = _path(found.pod, "metadata", "labels") or {}
    user = {*labels, *(_path(found.pod, "metadata", "annotations") or {})} & _HUB_USER
    if found.chain or found.unknown or labels.get("component") != "singleuser-server" or not user:
        return None
    return "it is a server of JupyterHub, which kgpu can't reach: stop it in the hub, or run its idle culler"


def service_of(found: OwnersFound) -> str:
    """The InferenceService that a pod is of, "" for none. The label alone is anybody's: it counts where the owners end
    at a revision of the service, a kind of Knative that is not climbed, or at the service itself.
    """
    service = str((_path(found.pod, "metadata", "labels") or {}).get(KSERVE_LABEL) or "")
    is_top = found.top.get("kind") == INFERENCE_SERVICES.kind and _path(found.top, "metadata", "name") == service
    return service if service and (is_top or found.unknown.startswith(f"Revision {service}-")) else ""


def _kserve(found: OwnersFound) -> StopTarget | str | None:
    service = service_of(found)
    if not service:
        return None
    if found.service is None:
        return f"its InferenceService {service!s:.100} is not there"
    mode = (_path(found.service, "metadata", "annotations") or {}).get(KSERVE_MODE, "")
    if not found.unknown or (mode and mode not in {"Serverless", "Knative"}):
        return f"its InferenceService is deployed as {mode or 'a Deployment'!s:.40}: nothing would wake it up"
    return target_by(StopWay.PREDICTOR, INFERENCE_SERVICES, found.service)


def _kueue(found: OwnersFound) -> StopTarget | str | None:
    if KUEUE_LABEL not in (_path(found.top, "metadata", "labels") or {}):
        return None
    if found.admission is None:
        return "its Kueue Workload is not there"
    return target_by(StopWay.WORKLOAD, KUEUE_WORKLOADS, found.admission)


def _by_kind(way: StopWay, *resources: Resource) -> Callable[[OwnersFound], StopTarget | None]:
    by_kind = {row.kind: row for row in resources}

    def target(found: OwnersFound) -> StopTarget | None:
        resource = by_kind.get(str(found.top.get("kind"))) if found.chain and not found.unknown else None
        return None if resource is None else target_by(way, resource, found.top)

    return target


def _bare(found: OwnersFound) -> StopTarget | None:
    return None if found.chain or found.unknown else target_by(StopWay.EVICT, PODS, found.pod)


ROWS: Final = (
    OwnerRow(owner="a server of JupyterHub", action="none: only the hub can stop it", target=_jupyterhub),
    OwnerRow(owner="KServe's InferenceService", action="spec.predictor.minReplicas: 0", target=_kserve),
    OwnerRow(owner="what Kueue admits", action="its Workload gets spec.active: false", target=_kueue),
    OwnerRow(
        owner="Kubeflow's Notebook",
        action=f"the annotation {NOTEBOOK_STOPPED}",
        target=_by_kind(StopWay.NOTEBOOK, NOTEBOOKS),
    ),
    OwnerRow(owner="Job", action="spec.suspend: true", target=_by_kind(StopWay.SUSPEND, JOBS)),
    OwnerRow(
        owner="Deployment, ReplicaSet, StatefulSet, LeaderWorkerSet",
        action="replicas 0, by its scale",
        target=_by_kind(StopWay.SCALE, DEPLOYMENTS, REPLICA_SETS, STATEFUL_SETS, LEADER_WORKER_SETS),
    ),
    OwnerRow(owner="no owner", action="eviction, with its grace period", target=_bare),
)
"""In this order: the first that fits decides."""


def stop_target(found: OwnersFound) -> StopTarget | str:
    """What is changed to stop it, or why it can't be stopped by kgpu."""
    if found.missing:
        return f"its owner {found.missing} is not there"
    for row in ROWS:
        target = row.target(found)
        if target is not None:
            return target
    return f"kgpu knows no reversible way to stop a {found.unknown or found.top.get('kind')}"


def resource_of_owner(reference: Mapping[str, Any]) -> Resource | None:
    """The kind of an owner, in the version that it is referred to by; None for one that is not known."""
    group, _, version = str(reference.get("apiVersion") or "").rpartition("/")
    row = CLIMBED.get((group, str(reference.get("kind"))))
    return row and Resource(row.group, version or row.version, row.plural, row.kind)


def admission_of(workloads: Sequence[Object], top: Object) -> Object | None:
    """The Kueue Workload that admits an object, by its owners."""
    uid = _path(top, "metadata", "uid")
    return next(
        (one for one in workloads
         if any(owner.get("uid") == uid for owner in _path(one, "metadata", "ownerReferences") or ())),
        None,
    )  # fmt: skip


def remembered_of(obj: Object) -> tuple[str, str]:
    """The way and the former state that kgpu has written on an object; "" for each that is not there."""
    annotations = _path(obj, "metadata", "annotations") or {}
    return str(annotations.get(names.RECLAIM_ACTION) or ""), str(annotations.get(names.ORIGINAL_REPLICAS) or "")
