"""ControllerRevisions: earlier templates of DaemonSets and StatefulSets, which ``kubectl rollout`` brings back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from kgpu.kube.port import KubeRefusedError, Object, Resource, labels_of, name_of, namespace_of
from kgpu.lab.embedded.controllers.cluster import ControllerContext
from kgpu.lab.embedded.controllers.kinds import CONTROLLER_REVISIONS
from kgpu.lab.embedded.controllers.meta import (
    created_at,
    key_of,
    owner_reference,
    short_hash,
    spec_of,
    status_of,
    uid_of,
)

HASH: Final = "controller-revision-hash"
# The revision's own label, by the owner's kind.
_LABELS: Final = {"DaemonSet": HASH, "StatefulSet": "controller.kubernetes.io/hash"}
_MAX_NAME: Final = 223


def data_of(owner: Object) -> Object:
    """A revision's data: a patch that restores the template."""
    return {"spec": {"template": {**(spec_of(owner).get("template") or {}), "$patch": "replace"}}}


def number_of(revision: Object) -> int:
    return int(revision.get("revision") or 0)


def hash_of(revision: Object) -> str:
    return labels_of(revision).get(HASH) or name_of(revision)


def new_revision(kind: Resource, owner: Object, number: int, collisions: int | None) -> Object:
    """The revision of the owner's present template."""
    data = data_of(owner)
    hashed = short_hash([data, collisions])
    labels = labels_of(spec_of(owner).get("template") or {})
    return {
        "metadata": {
            "name": f"{name_of(owner)[:_MAX_NAME]}-{hashed}",
            "namespace": namespace_of(owner),
            "labels": {**labels, _LABELS[kind.kind]: hashed},
            "annotations": dict(owner["metadata"].get("annotations") or {}),
            "ownerReferences": [owner_reference(kind, owner)],
        },
        # Clients compare it as text with the template as Go encodes it, with sorted keys.
        "data": msgspec.json.decode(msgspec.json.encode(data, order="sorted")),
        "revision": number,
    }


@dataclass(frozen=True, slots=True)
class RevisionHistory:
    """The present revision and the older ones, oldest first."""

    current: Object
    old: tuple[Object, ...]


def sort_out(owner: Object, revisions: Iterable[Object]) -> tuple[Object | None, tuple[Object, ...]]:
    """The revision of the present template if there is one, and the others, oldest first."""
    wanted: Any = data_of(owner)
    ordered = sorted(revisions, key=lambda revision: (number_of(revision), created_at(revision), name_of(revision)))
    same = [revision for revision in ordered if revision.get("data") == wanted]
    current = same[-1] if same else None
    return current, tuple(revision for revision in ordered if revision is not current)


async def sync_history(cluster: ControllerContext, kind: Resource, owner: Object) -> RevisionHistory:
    """Ensure that the present template has the newest revision. Raises KubeError."""
    cache = cluster.cache(CONTROLLER_REVISIONS)
    current, old = sort_out(owner, cache.select("controller", uid_of(owner)))
    number = max((number_of(revision) for revision in old), default=0) + 1
    if current is None:
        new = new_revision(kind, owner, number, status_of(owner).get("collisionCount"))
        try:
            current = await cluster.create(CONTROLLER_REVISIONS, new)
        except KubeRefusedError as refused:
            if refused.reason == "AlreadyExists":
                collisions = int(status_of(owner).get("collisionCount") or 0) + 1
                await cluster.set_status(kind, owner, {**status_of(owner), "collisionCount": collisions})
            raise
    elif number_of(current) < number:
        current = await cluster.patch(CONTROLLER_REVISIONS, key_of(current), {"revision": number})
    return RevisionHistory(current, old)


async def clean_up(cluster: ControllerContext, owner: Object, history: RevisionHistory, pods: Sequence[Object]) -> None:
    """Delete old revisions beyond the limit that no pod uses."""
    limit = int(spec_of(owner).get("revisionHistoryLimit", 10))
    live = {labels_of(pod).get(HASH) for pod in pods}
    surplus = len(history.old) - limit
    for revision in history.old:
        if surplus <= 0:
            return
        if hash_of(revision) not in live:
            await cluster.delete(CONTROLLER_REVISIONS, revision)
            surplus -= 1
