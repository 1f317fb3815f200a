"""Missing and terminating namespaces, new nodes, volumes in use, storage defaults, and what nodes may write."""

from __future__ import annotations

from typing import Final

from kgpu.formats.names import DEFAULT_STORAGE_CLASS, MIRROR_ANNOTATION, TAINT_NOT_READY
from kgpu.lab.embedded.core.model import ObjectLookup, Review
from kgpu.lab.embedded.status import Object, not_found
from kgpu.lab.embedded.types.admission.base import refused

_KEPT: Final = frozenset({"default", "kube-system", "kube-public"})
_ANYWHERE: Final = frozenset({"localsubjectaccessreviews", "subjectaccessreviews", "selfsubjectaccessreviews"})
_PROTECTION: Final = {
    ("", "persistentvolumeclaims"): "kubernetes.io/pvc-protection",
    ("", "persistentvolumes"): "kubernetes.io/pv-protection",
}
# What a pod's status says of claims is not for its node to change; the words are the real server's.
_NOT_OF_NODES: Final = {
    "resourceClaimStatuses": "resource claim statues",
    "extendedResourceClaimStatus": "extended resource claim status",
}


class NamespaceLifecycle:
    """Nothing is created in a namespace that is missing or terminating; some namespaces are never deleted."""

    mutating = True

    def admit(self, review: Review, reads: ObjectLookup) -> None:
        kind = review.kind
        if kind.key == ("", "namespaces"):
            if review.operation == "DELETE" and review.name in _KEPT:
                raise refused(review, "this namespace may not be deleted")
            return
        if review.operation != "CREATE" or not review.namespace or kind.plural in _ANYWHERE:
            return
        namespace = reads.get("", "namespaces", "", review.namespace)
        if namespace is None:
            raise not_found("", "namespaces", review.namespace)
        if namespace["metadata"].get("deletionTimestamp"):
            why = f"unable to create new content in namespace {review.namespace} because it is being terminated"
            error = refused(review, why)
            cause = {
                "reason": "NamespaceTerminating",
                "message": f"namespace {review.namespace} is being terminated",
                "field": "metadata.namespace",
            }
            error.details = {**(error.details or {}), "causes": [cause]}
            raise error


class TaintNodesByCondition:
    """A new node takes no pods until its controller has seen it ready."""

    mutating = True

    def admit(self, review: Review, reads: ObjectLookup) -> None:
        del reads
        if review.kind.key != ("", "nodes") or review.operation != "CREATE" or review.subresource:
            return
        spec = review.obj.setdefault("spec", {})
        taint = {"key": TAINT_NOT_READY, "effect": "NoSchedule"}
        taints: list[Object] = spec.get("taints") or []
        if not any(
            existing.get("key") == TAINT_NOT_READY and existing.get("effect") == "NoSchedule" for existing in taints
        ):
            spec["taints"] = [*taints, taint]


class StorageObjectInUseProtection:
    """Volumes and claims are deleted only once nothing uses them."""

    mutating = True

    def admit(self, review: Review, reads: ObjectLookup) -> None:
        del reads
        finalizer = _PROTECTION.get(review.kind.key)
        if finalizer is None or review.operation != "CREATE" or review.subresource:
            return
        finalizers = review.obj["metadata"].setdefault("finalizers", [])
        if finalizer not in finalizers:
            finalizers.append(finalizer)


class DefaultStorageClass:
    """A claim that names no class gets the default one; of several the newest."""

    mutating = True

    def admit(self, review: Review, reads: ObjectLookup) -> None:
        if review.kind.key != ("", "persistentvolumeclaims") or review.operation != "CREATE" or review.subresource:
            return
        if review.obj["spec"].get("storageClassName") is not None:
            return
        classes = [
            storage_class
            for storage_class in reads.list("storage.k8s.io", "storageclasses")
            if (storage_class["metadata"].get("annotations") or {}).get(DEFAULT_STORAGE_CLASS) == "true"
        ]
        if classes:
            newest = max(
                classes,
                key=lambda storage_class: (
                    storage_class["metadata"].get("creationTimestamp", ""),
                    storage_class["metadata"]["name"],
                ),
            )
            review.obj["spec"]["storageClassName"] = newest["metadata"]["name"]


class NodeRestriction:
    """A node's own user changes its own Node and pods only."""

    def admit(self, review: Review, reads: ObjectLookup) -> None:
        user = review.call.user
        if "system:nodes" not in user.groups or not user.name.startswith("system:node:"):
            return
        if review.operation == "CONNECT":
            return
        node = user.name.removeprefix("system:node:")
        if review.kind.key == ("", "nodes"):
            name = review.name or (review.obj.get("metadata") or {}).get("name", "")
            if name and name != node:
                verb = "create" if review.operation == "CREATE" else "modify"
                raise refused(review, f'node "{node}" is not allowed to {verb} node "{name}"')
        elif review.kind.key == ("", "pods"):
            self._pod(review, reads, node)
        elif review.kind.key == ("resource.k8s.io", "resourceslices"):
            self._slice(review, reads, node)

    @staticmethod
    def _slice(review: Review, reads: ObjectLookup, node: str) -> None:
        if review.operation == "CREATE":
            verb, found = "create", review.obj
        elif review.operation == "DELETE":
            kind = review.kind
            verb, found = "delete", review.old or reads.get(kind.group, kind.plural, "", review.name) or {}
        else:
            return
        if (found.get("spec") or {}).get("nodeName") != node:
            raise refused(review, f"can only {verb} ResourceSlice with the same NodeName as the requesting node")

    @staticmethod
    def _pod(review: Review, reads: ObjectLookup, node: str) -> None:
        if review.operation == "CREATE":
            annotations = review.obj["metadata"].get("annotations") or {}
            if not review.subresource and MIRROR_ANNOTATION not in annotations:
                why = f'pod does not have "{MIRROR_ANNOTATION}" annotation, node "{node}" can only create mirror pods'
                raise refused(review, why)
            return
        pod = review.old or reads.get("", "pods", review.namespace, review.name)
        if pod is not None and (pod["spec"].get("nodeName") or "") != node:
            verb = "delete pods with" if review.operation == "DELETE" else "update status for pods with"
            raise refused(review, f'node "{node}" can only {verb} spec.nodeName set to itself')
        if review.operation == "UPDATE" and review.subresource == "status" and pod is not None:
            status, before = review.obj.get("status") or {}, pod.get("status") or {}
            for field, words in _NOT_OF_NODES.items():
                if (status.get(field) or None) != (before.get(field) or None):
                    raise refused(review, f'node "{node}" cannot update {words}')
