"""The request that a policy is evaluated on, as admission sees it and as the variable ``request``.

Source: CreateAdmissionRequest and CreateNamespaceObject of pkg/admission/plugin/cel of the API server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from kgpu.lab.embedded.core.model import ApiUser, Review
from kgpu.lab.embedded.kinds import ApiKind
from kgpu.lab.embedded.status import Object

NAMESPACES: Final = ("", "namespaces")
_OPTIONS: Final = {"CREATE": "CreateOptions", "UPDATE": "UpdateOptions", "DELETE": "DeleteOptions"}
_OF_NAMESPACE: Final = (
    "name", "generateName", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp",
    "deletionTimestamp", "deletionGracePeriodSeconds", "labels", "annotations", "finalizers",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """``namespace`` of a Namespace is its own name; ``obj`` is None for DELETE, ``old`` for CREATE and CONNECT."""

    operation: str
    kind: ApiKind
    subresource: str
    namespace: str
    name: str
    obj: Object | None
    old: Object | None
    user: ApiUser
    dry_run: bool
    options: Object

    @classmethod
    def of(cls, review: Review) -> AdmissionRequest:
        whole = review.kind.key == NAMESPACES
        return cls(
            review.operation, review.kind, review.subresource, review.name if whole else review.namespace, review.name,
            review.obj or None, review.old, review.call.user, review.call.dry_run, review.call.options,
        )  # fmt: skip

    @property
    def type(self) -> Object:
        """Group, version and kind of the request's object; subresources have their own kinds."""
        return self.type_in(self.kind)

    def type_in(self, kind: ApiKind) -> Object:
        """As ``type``, with the request treated as one for ``kind``."""
        row = kind.subresources.get(self.subresource) or {}
        group = row.get("group", kind.group) if row.get("version") else kind.group
        return {"group": group, "version": row.get("version") or kind.version, "kind": row.get("kind") or kind.kind}

    def shown(self, kind: ApiKind) -> Object:
        """The variable ``request``, with the request treated as one for ``kind``."""
        attributes: Object = {
            "uid": "", "kind": self.type_in(kind), "resource": _resource(kind), "requestKind": self.type,
            "requestResource": _resource(self.kind), "operation": self.operation, "userInfo": self.user.info(),
            "dryRun": self.dry_run, "object": None, "oldObject": None, "options": self._options(),
        }  # fmt: skip
        optional = {
            "subResource": self.subresource, "requestSubResource": self.subresource, "name": self.name,
            "namespace": self.namespace,
        }  # fmt: skip
        return {**attributes, **{key: value for key, value in optional.items() if value}}

    def _options(self) -> Object | None:
        kind = _OPTIONS.get(self.operation)
        if kind is None:
            return None
        dry_run = {"dryRun": ["All"]} if self.dry_run else {}
        return {"kind": kind, "apiVersion": "meta.k8s.io/v1", **self.options, **dry_run}


def namespace_object(namespace: Object) -> Object:
    """The variable ``namespaceObject``."""
    metadata = {name: namespace["metadata"][name] for name in _OF_NAMESPACE if name in namespace["metadata"]}
    return {"metadata": metadata, "spec": namespace.get("spec") or {}, "status": namespace.get("status") or {}}


def _resource(kind: ApiKind) -> Any:
    return {"group": kind.group, "version": kind.version, "resource": kind.plural}
