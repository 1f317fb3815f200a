"""Namespaces that are being deleted: pods first, then everything else, with conditions about what is left."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kgpu.base.errors import KubeError
from kgpu.base.times import moment_of
from kgpu.kube.port import PODS, KubeRefusedError, Object, Resource, name_of, namespace_of
from kgpu.lab.embedded.controllers.cluster import ControllerContext
from kgpu.lab.embedded.controllers.controller import KeysOf, ObjectController, itself, refusal_text
from kgpu.lab.embedded.controllers.kinds import NAMESPACES
from kgpu.lab.embedded.controllers.meta import deleting, set_condition, spec_of, stamp, status_of
from kgpu.lab.embedded.controllers.pods import is_terminal
from kgpu.lab.embedded.controllers.served import ServedKinds

FINALIZER: Final = "kubernetes"
_LOOK_AGAIN: Final = 2.0  # seconds, while something remains; the end of a pod is seen at once
# Condition types in the order they are written, with reason and message when all is well.
_FINE: Final = (
    ("NamespaceDeletionDiscoveryFailure", "ResourcesDiscovered", "All resources successfully discovered"),
    ("NamespaceDeletionGroupVersionParsingFailure", "ParsedGroupVersions", "All legacy kube types successfully parsed"),
    (
        "NamespaceDeletionContentFailure",
        "ContentDeleted",
        "All content successfully deleted, may be waiting on finalization",
    ),
    ("NamespaceContentRemaining", "ContentRemoved", "All content successfully removed"),
    ("NamespaceFinalizersRemaining", "ContentHasNoFinalizers", "All content-preserving finalizers finished"),
)


@dataclass(slots=True)
class Remains:
    """What is left in a namespace."""

    objects: Counter[str] = field(default_factory=Counter)  # by "plural.group"
    finalizers: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    estimate: float = 0.0  # seconds until pods may have ended


def conditions(old: list[Object], remains: Remains, *, complete: bool, now: dt.datetime) -> list[Object]:
    """The conditions after a look; ``complete`` is False when only the pods were looked at."""
    news: dict[str, tuple[str, str]] = {}
    if remains.errors:
        text = ", ".join(sorted(remains.errors))
        message = f"Failed to delete all resource types, {len(remains.errors)} remaining: {text}"
        news["NamespaceDeletionContentFailure"] = ("ContentDeletionFailed", message)
    if complete and remains.objects:
        text = ", ".join(sorted(f"{kind} has {count} resource instances" for kind, count in remains.objects.items()))
        news["NamespaceContentRemaining"] = ("SomeResourcesRemain", f"Some resources are remaining: {text}")
    if complete and remains.finalizers:
        text = ", ".join(sorted(f"{name} in {count} resource instances" for name, count in remains.finalizers.items()))
        message = f"Some content in the namespace has finalizers remaining: {text}"
        news["NamespaceFinalizersRemaining"] = ("SomeFinalizersRemain", message)
    current = list(old)
    for kind, fine_reason, fine_message in _FINE:
        reason, message = news.get(kind, (fine_reason, fine_message))
        new = {"type": kind, "status": "True" if kind in news else "False", "reason": reason, "message": message}
        current = set_condition(current, {**new, "lastTransitionTime": stamp(now)})
    return current


def pods_estimate(pods: list[Object], deleted_at: dt.datetime | None, now: dt.datetime) -> float:
    """Seconds that the pods may still take; 0 once they should be gone."""
    longest = max(
        (int(spec_of(pod).get("terminationGracePeriodSeconds") or 0) for pod in pods if not is_terminal(pod)),
        default=0,
    )
    return longest if deleted_at is None or (now - deleted_at).total_seconds() < longest else 0.0


class NamespaceController(ObjectController):
    name = "namespace-controller"

    def __init__(self, cluster: ControllerContext, kinds: ServedKinds) -> None:
        super().__init__(cluster)
        self._kinds = kinds
        self._namespaces = cluster.cache(NAMESPACES)

    def sources(self) -> Mapping[Resource, KeysOf]:
        return {NAMESPACES: itself, PODS: self._pod_gone}

    def _pod_gone(self, old: Object | None, new: Object | None) -> list[tuple[str, str]]:
        if new is not None or old is None:
            return []
        key = ("", namespace_of(old))
        namespace = self._namespaces.get(key)
        return [key] if namespace is not None and deleting(namespace) else []

    async def sync(self, key: tuple[str, str]) -> float | None:
        namespace = self._namespaces.get(key)
        if (
            namespace is None
            or not deleting(namespace)
            or FINALIZER not in (spec_of(namespace).get("finalizers") or ())
        ):
            return None
        await self._kinds.ready()
        status = status_of(namespace)
        if status.get("phase") != "Terminating":
            status = {**status, "phase": "Terminating"}
            await self.cluster.set_status(NAMESPACES, namespace, status)
        remains, complete = await self._delete_all(namespace)
        now = self.cluster.now()
        news = conditions(list(status.get("conditions") or ()), remains, complete=complete, now=now)
        await self.cluster.set_status(NAMESPACES, {**namespace, "status": status}, {**status, "conditions": news})
        if remains.objects or remains.errors:
            return _LOOK_AGAIN
        rest = [finalizer for finalizer in spec_of(namespace).get("finalizers") or () if finalizer != FINALIZER]
        try:
            await self.cluster.patch(NAMESPACES, key, {"spec": {"finalizers": rest}}, subresource="finalize")
        except KubeRefusedError as refused:
            if refused.code != 404:
                raise
        return None

    async def _delete_all(self, namespace: Object) -> tuple[Remains, bool]:
        remains = Remains()
        await self._delete(PODS, namespace, remains)
        if remains.objects:
            return remains, False
        for served in self._kinds:
            resource = served.resource
            if resource.namespaced and resource != PODS and {"list", "delete"} <= served.verbs:
                await self._delete(resource, namespace, remains)
                await asyncio.sleep(0)
        return remains, True

    async def _delete(self, resource: Resource, namespace: Object, remains: Remains) -> None:
        """Delete the objects of a kind and note what stays."""
        name = name_of(namespace)
        try:
            objects = (await self.cluster.api.list(resource, namespace=name)).items
            if not objects:
                return
            for obj in objects:
                if not deleting(obj):
                    await self.cluster.delete(resource, obj, propagation="Background")
            left = (await self.cluster.api.list(resource, namespace=name)).items
        except KubeError as error:
            if getattr(error, "code", 0) not in (404, 405):  # a kind that has just gone
                remains.errors.append(refusal_text(error))
            return
        if not left:
            return
        remains.objects[f"{resource.plural}.{resource.group}"] += len(left)
        finalizers = [finalizer for obj in left for finalizer in obj["metadata"].get("finalizers") or ()]
        remains.finalizers.update(finalizers)
        estimate = 0.0
        if resource == PODS:
            estimate = pods_estimate(
                list(left), moment_of(namespace["metadata"]["deletionTimestamp"]), self.cluster.now()
            )
            remains.estimate = estimate
        if not estimate and not finalizers:
            row = f"{resource.group}/{resource.version}, Resource={resource.plural}"
            remains.errors.append(f"unexpected items still remain in namespace: {name} for gvr: {row}")
