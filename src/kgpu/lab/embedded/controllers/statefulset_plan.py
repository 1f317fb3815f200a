"""Which pod of a StatefulSet comes, goes or is replaced next, in the order of the ordinals, and the status. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kgpu.kube.port import Object, labels_of, name_of
from kgpu.lab.embedded.controllers.deployment_plan import resolve
from kgpu.lab.embedded.controllers.kinds import STATEFUL_SETS
from kgpu.lab.embedded.controllers.meta import copy_of, generation_of, owner_reference, spec_of, status_of, uid_of
from kgpu.lab.embedded.controllers.pods import is_available, is_ready, is_terminal, phase_of, pod_from_template
from kgpu.lab.embedded.controllers.revisions import HASH

POD_NAME = "statefulset.kubernetes.io/pod-name"
POD_INDEX = "apps.kubernetes.io/pod-index"


def ordinal_of(owner: Object, pod: Object) -> int | None:
    """The pod's number; None when its name isn't one of the set's."""
    head, _, tail = name_of(pod).rpartition("-")
    return int(tail) if head == name_of(owner) and tail.isdecimal() else None


def template_of(revision: Object) -> Object:
    """The pod template in a revision."""
    template = ((revision.get("data") or {}).get("spec") or {}).get("template") or {}
    return {key: value for key, value in template.items() if key != "$patch"}


def claim_name(template: Object, pod: str) -> str:
    return f"{name_of(template)}-{pod}"


def new_pod(owner: Object, revision: Object, ordinal: int) -> Object:
    """The pod of that number with the revision's template."""
    name = f"{name_of(owner)}-{ordinal}"
    pod = pod_from_template(template_of(revision), owner, owner_reference(STATEFUL_SETS, owner))
    metadata, spec = pod["metadata"], copy_of(pod["spec"])
    metadata["name"] = name
    metadata["labels"] = {
        **metadata.get("labels", {}), POD_NAME: name, POD_INDEX: str(ordinal), HASH: name_of(revision)
    }  # fmt: skip
    spec["hostname"] = name
    spec["subdomain"] = spec_of(owner).get("serviceName") or ""
    claims = spec_of(owner).get("volumeClaimTemplates") or ()
    if claims:
        own = {name_of(template): {"claimName": claim_name(template, name)} for template in claims}
        rest = [volume for volume in spec.get("volumes") or () if volume.get("name") not in own]
        spec["volumes"] = [*({"name": key, "persistentVolumeClaim": value} for key, value in own.items()), *rest]
    return {**pod, "spec": {key: value for key, value in spec.items() if value != ""}}


def new_claims(owner: Object, ordinal: int) -> list[Object]:
    """The claims of the pod of that number."""
    name = f"{name_of(owner)}-{ordinal}"
    labels = (spec_of(owner).get("selector") or {}).get("matchLabels") or {}
    return [
        {
            "metadata": {
                "annotations": dict(template["metadata"].get("annotations") or {}),
                "name": claim_name(template, name),
                "namespace": owner["metadata"].get("namespace", ""),
                "labels": {**labels_of(template), **labels},
            },
            "spec": copy_of(spec_of(template)),
        }
        for template in spec_of(owner).get("volumeClaimTemplates") or ()
    ]


@dataclass(slots=True)
class StatefulSetStep:
    """Numbers to create, with the name of the revision to take, and pods to delete."""

    create: list[tuple[int, str]] = field(default_factory=list)
    delete: list[Object] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedStatefulSet:
    """The observed state of a StatefulSet. Revisions by name; ``gone`` are the uids of pods being deleted."""

    owner: Object
    pods: Mapping[int, Object]
    gone: frozenset[str]
    current: str
    update: str
    now: dt.datetime

    @property
    def start(self) -> int:
        return int((spec_of(self.owner).get("ordinals") or {}).get("start") or 0)

    @property
    def replicas(self) -> int:
        return int(spec_of(self.owner).get("replicas", 1))

    def numbers(self) -> range:
        """The ordinals that should exist."""
        return range(self.start, self.start + self.replicas)

    def is_up(self, pod: Object | None) -> bool:
        """Whether it is running, ready and available, and not being deleted."""
        return pod is not None and uid_of(pod) not in self.gone and self.is_serving(pod)

    def is_serving(self, pod: Object) -> bool:
        least = int(spec_of(self.owner).get("minReadySeconds") or 0)
        return phase_of(pod) == "Running" and is_available(pod, least, self.now)

    def rolling(self) -> Object:
        strategy = spec_of(self.owner).get("updateStrategy") or {}
        return strategy.get("rollingUpdate") or {}

    @property
    def partition(self) -> int:
        return int(self.rolling().get("partition") or 0)

    def revision_for(self, ordinal: int) -> str:
        """The revision that a new pod gets: below the partition the old one."""
        return self.current if ordinal < self.start + self.partition else self.update


def plan(observed: ObservedStatefulSet) -> StatefulSetStep:
    """The next step: of OrderedReady sets one pod, of Parallel ones all that there is to do."""
    step = StatefulSetStep()
    parallel = spec_of(observed.owner).get("podManagementPolicy") == "Parallel"
    for ordinal in observed.numbers():
        pod = observed.pods.get(ordinal)
        if pod is not None and is_terminal(pod):
            if uid_of(pod) not in observed.gone:
                step.delete.append(pod)
            if not parallel:
                return step
        elif pod is None:
            step.create.append((ordinal, observed.revision_for(ordinal)))
            if not parallel:
                return step
        elif not parallel and not observed.is_up(pod):
            return step
    numbers = observed.numbers()
    surplus = [(ordinal, pod) for ordinal, pod in sorted(observed.pods.items(), reverse=True) if ordinal not in numbers]
    first_down = next((pod for _, pod in reversed(surplus) if not observed.is_up(pod)), None)
    for _, pod in surplus:
        going = uid_of(pod) in observed.gone
        if not parallel and (going or (not observed.is_up(pod) and pod is not first_down)):
            return step
        if not going:
            step.delete.append(pod)
            if not parallel:
                return step
    if step.create or step.delete:
        return step
    return _plan_update(observed)


def _plan_update(observed: ObservedStatefulSet) -> StatefulSetStep:
    """Replace pods of the old template from the highest number down to the partition."""
    step = StatefulSetStep()
    if (spec_of(observed.owner).get("updateStrategy") or {}).get("type") == "OnDelete":
        return step
    most = max(1, resolve(observed.rolling().get("maxUnavailable", 1), observed.replicas, up=False))
    room = most - sum(not observed.is_up(observed.pods.get(ordinal)) for ordinal in observed.numbers())
    for ordinal in reversed(observed.numbers()):
        if room <= 0 or ordinal < observed.start + observed.partition:
            break
        pod = observed.pods.get(ordinal)
        if pod is not None and uid_of(pod) not in observed.gone and labels_of(pod).get(HASH) != observed.update:
            step.delete.append(pod)
            room -= 1
    return step


def plan_status(observed: ObservedStatefulSet, pods: Sequence[Object]) -> Object:
    """The counts, and the end of a rolling update."""
    staying = [pod for pod in pods if uid_of(pod) not in observed.gone]
    ready = sum(phase_of(pod) == "Running" and is_ready(pod) for pod in pods)
    updated = sum(labels_of(pod).get(HASH) == observed.update for pod in staying)
    current = sum(labels_of(pod).get(HASH) == observed.current for pod in staying)
    revision = observed.current
    strategy = (spec_of(observed.owner).get("updateStrategy") or {}).get("type", "RollingUpdate")
    if strategy == "RollingUpdate" and updated == len(pods) == ready:
        current, revision = updated, observed.update
    counts = {"currentReplicas": current, "readyReplicas": ready, "updatedReplicas": updated}
    return {
        "observedGeneration": generation_of(observed.owner),
        "replicas": len(pods),
        "availableReplicas": sum(observed.is_serving(pod) for pod in pods),
        **{key: value for key, value in counts.items() if value},
        "currentRevision": revision,
        "updateRevision": observed.update,
        "collisionCount": int(status_of(observed.owner).get("collisionCount") or 0),
    }
