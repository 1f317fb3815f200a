"""What a Deployment's controller does next: create, scale and remove ReplicaSets, and the status. Pure.

``plan`` follows kube-controller-manager 1.35: maxSurge rounds up, maxUnavailable down, unhealthy old pods go first,
scaling in the middle of a rollout is spread in proportion, one step per call.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kgpu.formats.names import LAST_APPLIED
from kgpu.kube.port import Object, annotations_of, labels_of, name_of
from kgpu.lab.embedded.controllers.deployment_status import (
    DeploymentView,
    plan_status,
    progress_check_in,
    rollout_status,
)
from kgpu.lab.embedded.controllers.meta import (
    condition,
    copy_of,
    created_at,
    deleting,
    generation_of,
    short_hash,
    spec_of,
    stamp,
    status_of,
    uid_of,
    with_condition,
)

HASH: Final = "pod-template-hash"
REVISION: Final = "deployment.kubernetes.io/revision"
HISTORY: Final = "deployment.kubernetes.io/revision-history"
DESIRED: Final = "deployment.kubernetes.io/desired-replicas"
MAX: Final = "deployment.kubernetes.io/max-replicas"
_NOT_COPIED: Final = frozenset(
    {
        LAST_APPLIED,
        "deprecated.deployment.rollback.to",
        REVISION,
        HISTORY,
        DESIRED,
        MAX,
    }
)
_HISTORY_LENGTH: Final = 2000  # characters
_UNLIMITED: Final = 2**31 - 1  # the API's way to say no history limit or no deadline


@dataclass(frozen=True, slots=True)
class CreateSet:
    """Create this ReplicaSet."""

    obj: Object


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """Merge into a ReplicaSet; ``event`` is the Event's message when it has worked, "" for none."""

    rs: Object
    change: Object
    event: str = ""


@dataclass(frozen=True, slots=True)
class DeleteSet:
    """Remove an old ReplicaSet."""

    rs: Object


@dataclass(frozen=True, slots=True)
class Annotate:
    """Set the Deployment's revision."""

    revision: str


@dataclass(frozen=True, slots=True)
class SetStatus:
    """Write this status."""

    status: Object


Action = CreateSet | ChangeSet | DeleteSet | Annotate | SetStatus


@dataclass(frozen=True, slots=True)
class DeploymentPlan:
    """The actions in order, and in how many seconds to sync again."""

    actions: tuple[Action, ...]
    again: float | None = None


def replicas_of(rs: Object) -> int:
    return int(spec_of(rs).get("replicas") or 0)


def resolve(value: Any, total: int, *, up: bool) -> int:
    """An int or a percentage of ``total``."""
    if isinstance(value, str):
        share = int(value.rstrip("%") or 0) * total / 100
        return math.ceil(share) if up else math.floor(share)
    return int(value or 0)


def surge_and_unavailable(deployment: Object) -> tuple[int, int]:
    """The surge rounded up, the unavailable rounded down; both 0 makes the latter 1. (0, 0) for Recreate."""
    strategy = spec_of(deployment).get("strategy") or {}
    if strategy.get("type", "RollingUpdate") != "RollingUpdate":
        return 0, 0
    rolling = strategy.get("rollingUpdate") or {}
    wanted = replicas_of(deployment)
    surge = resolve(rolling.get("maxSurge", "25%"), wanted, up=True)
    unavailable = resolve(rolling.get("maxUnavailable", "25%"), wanted, up=False)
    if surge == 0 and unavailable == 0:
        unavailable = 1
    return surge, min(unavailable, wanted)


def plain_template(template: Object) -> Any:
    """A pod template for comparison: without the hash label and without empty metadata."""
    metadata = {key: value for key, value in (template.get("metadata") or {}).items() if value}
    labels = {key: value for key, value in labels_of(template).items() if key != HASH}
    return {"metadata": {**metadata, "labels": labels}, "spec": template.get("spec") or {}}


def new_set(deployment: Object, sets: Iterable[Object]) -> Object | None:
    """The ReplicaSet of the Deployment's present template, the oldest if there are several."""
    wanted = plain_template(spec_of(deployment).get("template") or {})
    for rs in sorted(sets, key=_by_age):
        if plain_template(spec_of(rs).get("template") or {}) == wanted:
            return rs
    return None


def template_hash(deployment: Object) -> str:
    """The pod-template-hash: follows from the template and the number of collisions alone."""
    return short_hash([spec_of(deployment).get("template"), status_of(deployment).get("collisionCount")])


def revision_of(rs: Object) -> int:
    text = annotations_of(rs).get(REVISION, "")
    return int(text) if text.isdecimal() else 0


def _by_age(rs: Object) -> tuple[str, str]:
    return created_at(rs), name_of(rs)


class Rollout:
    """One look at a Deployment and its ReplicaSets; collects the actions."""

    def __init__(self, deployment: Object, sets: Sequence[Object], owner: Object, now: dt.datetime) -> None:
        """``owner`` is the reference that new sets get."""
        self.deployment = deployment
        self.spec = spec_of(deployment)
        self.wanted = replicas_of(deployment)
        self.surge, self.unavailable = surge_and_unavailable(deployment)
        self.now = now
        self.owner = owner
        self.new = new_set(deployment, sets)
        self.old = [rs for rs in sets if self.new is None or uid_of(rs) != uid_of(self.new)]
        self.size = {uid_of(rs): replicas_of(rs) for rs in sets}
        self.actions: list[Action] = []
        self.conditions: list[Object] = list(status_of(deployment).get("conditions") or ())

    @property
    def all(self) -> list[Object]:
        return [*self.old, *([self.new] if self.new is not None else [])]

    def active(self, sets: Iterable[Object]) -> list[Object]:
        return [rs for rs in sets if self.size[uid_of(rs)] > 0]

    def total(self, sets: Iterable[Object]) -> int:
        return sum(self.size[uid_of(rs)] for rs in sets)

    def view(self, new: Object | None) -> DeploymentView:
        """The input of ``plan_status`` and ``rollout_status``."""
        return DeploymentView(
            deployment=self.deployment,
            sets=self.all,
            new=new,
            conditions=self.conditions,
            max_unavailable=self.unavailable,
            now=self.now,
        )

    # Steps

    def scale(self, rs: Object, to: int, *, always: bool = False) -> bool:
        """Set a ReplicaSet's size and the annotations about the Deployment's size; True when the size changes.

        ``always`` writes the annotations even if the size stays.
        """
        before = self.size[uid_of(rs)]
        remember = {DESIRED: str(self.wanted), MAX: str(self.wanted + self.surge)}
        if before == to and (not always or remember.items() <= annotations_of(rs).items()):
            return False
        self.size[uid_of(rs)] = to
        direction = "up" if before < to else "down"
        event = f"Scaled {direction} replica set {name_of(rs)} from {before} to {to}" if before != to else ""
        change: Object = {"metadata": {"annotations": remember}}
        if before != to:
            change["spec"] = {"replicas": to}
        self.actions.append(ChangeSet(rs, change, event))
        return before != to

    def progress(self, status: str, reason: str, message: str) -> None:
        """Note a Progressing condition, unless there is no deadline."""
        if not has_deadline(self.deployment):
            return
        at = stamp(self.now)
        self.conditions = with_condition(
            self.conditions,
            {
                "type": "Progressing",
                "status": status,
                "lastUpdateTime": at,
                "lastTransitionTime": at,
                "reason": reason,
                "message": message,
            },
        )

    def size_for_new(self, new_size: int) -> int:
        """How large the new ReplicaSet may be now, given the size of the old ones."""
        if (self.spec.get("strategy") or {}).get("type") == "Recreate":
            return self.wanted
        room = self.wanted + self.surge - (self.total(self.old) + new_size)
        return new_size if room <= 0 else new_size + min(room, self.wanted - new_size)

    def sync_revision(self, *, create: bool) -> bool:
        """Update revision and annotations; with ``create`` add a missing new ReplicaSet. False when one was added."""
        revision = max((revision_of(rs) for rs in self.old), default=0) + 1
        if self.new is not None:
            annotations = self._annotations(self.new, revision)
            min_ready = int(self.spec.get("minReadySeconds") or 0)
            change: Object = {"metadata": {"annotations": annotations}} if annotations else {}
            if int(spec_of(self.new).get("minReadySeconds") or 0) != min_ready:
                change["spec"] = {"minReadySeconds": min_ready}
            if change:
                self.actions.append(ChangeSet(self.new, change))
            self._set_revision(annotations.get(REVISION) or annotations_of(self.new).get(REVISION, ""))
            if condition({"conditions": self.conditions}, "Progressing") is None:
                self.progress("True", "FoundNewReplicaSet", f'Found new replica set "{name_of(self.new)}"')
            return True
        if not create:
            return True
        created = self.new_object(revision)
        self.actions.append(CreateSet(created))
        self._set_revision(str(revision))
        self.progress("True", "NewReplicaSetCreated", f'Created new replica set "{name_of(created)}"')
        self.set_status(plan_status(self.view(None)))
        return False

    def new_object(self, revision: int) -> Object:
        """The ReplicaSet of the present template."""
        hashed = template_hash(self.deployment)
        template = copy_of(self.spec.get("template") or {})
        metadata = template.setdefault("metadata", {})
        metadata["labels"] = {**(metadata.get("labels") or {}), HASH: hashed}
        selector = copy_of(self.spec.get("selector") or {})
        selector["matchLabels"] = {**(selector.get("matchLabels") or {}), HASH: hashed}
        name = name_of(self.deployment)[: 253 - 1 - len(hashed)]
        copied = {key: value for key, value in annotations_of(self.deployment).items() if key not in _NOT_COPIED}
        remember = {REVISION: str(revision), DESIRED: str(self.wanted), MAX: str(self.wanted + self.surge)}
        spec: Object = {"replicas": self.size_for_new(0), "selector": selector, "template": template}
        if self.spec.get("minReadySeconds"):
            spec["minReadySeconds"] = self.spec["minReadySeconds"]
        return {
            "metadata": {
                "name": f"{name}-{hashed}",
                "namespace": self.deployment["metadata"].get("namespace", ""),
                "labels": metadata["labels"],
                "annotations": {**copied, **remember},
                "ownerReferences": [self.owner],
            },
            "spec": spec,
        }

    def _annotations(self, rs: Object, revision: int) -> dict[str, str]:
        """The annotations that the new set still lacks."""
        have = annotations_of(rs)
        change = {
            key: value
            for key, value in annotations_of(self.deployment).items()
            if key not in _NOT_COPIED and have.get(key) != value
        }
        before = have.get(REVISION, "")
        if (before == "" or before.isdecimal()) and revision_of(rs) < revision:
            change[REVISION] = str(revision)
            if REVISION in have:
                history = [number for number in have.get(HISTORY, "").split(",") if number]
                history.append(before)
                while len(",".join(history)) > _HISTORY_LENGTH and len(history) > 1:
                    history.pop(0)
                change[HISTORY] = ",".join(history)
        return change

    def _set_revision(self, revision: str) -> None:
        if revision and annotations_of(self.deployment).get(REVISION) != revision:
            self.actions.append(Annotate(revision))

    def set_status(self, status: Object) -> None:
        if status != status_of(self.deployment):
            self.actions.append(SetStatus(status))

    def clean_up(self) -> None:
        """Remove old empty sets beyond the history limit."""
        limit = self.spec.get("revisionHistoryLimit")
        if limit is None or limit == _UNLIMITED:
            return
        alive = sorted((rs for rs in self.old if not deleting(rs)), key=lambda rs: (revision_of(rs), *_by_age(rs)))
        for rs in alive[: max(0, len(alive) - int(limit))]:
            status = status_of(rs)
            observed = int(status.get("observedGeneration") or 0) >= generation_of(rs)
            if not status.get("replicas") and not self.size[uid_of(rs)] and observed:
                self.actions.append(DeleteSet(rs))


def has_deadline(deployment: Object) -> bool:
    limit = spec_of(deployment).get("progressDeadlineSeconds")
    return limit is not None and limit != _UNLIMITED


def finish(rollout: Rollout) -> DeploymentPlan:
    """Close a rollout's step with its status."""
    status = rollout_status(rollout.view(rollout.new))
    rollout.set_status(status)
    return DeploymentPlan(tuple(rollout.actions), progress_check_in(rollout.deployment, status, rollout.now))
