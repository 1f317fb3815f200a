"""What every verb uses: the kinds, the store, the rules, admission, patches and the ports that other packages fill."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol

from kgpu.lab.embedded.core.convert import converted, storage_key, storage_kind
from kgpu.lab.embedded.core.model import (
    Admission,
    AllowAll,
    Authority,
    Call,
    Patching,
    Review,
    StoredObject,
    TypeRules,
)
from kgpu.lab.embedded.core.sizes import TooLargeError
from kgpu.lab.embedded.kinds import ApiKind, Kinds
from kgpu.lab.embedded.schema import SchemaNode
from kgpu.lab.embedded.status import ApiError, Object, forbidden, not_found
from kgpu.lab.embedded.store import ObjectStore

IMMORTAL: Final = frozenset({"default", "kube-system", "kube-public"})


class CustomPort(Protocol):
    """What the core needs to know about custom kinds; ``crd.custom_kinds.CustomKinds``."""

    def selectable_fields(self, kind: ApiKind) -> tuple[str, ...]:
        """Field selectors besides metadata.name and metadata.namespace."""
        ...

    def convert(self, kind: ApiKind, obj: Object) -> Object:
        """The object as that version shows it."""
        ...

    def version(self, kind: ApiKind) -> object:
        """An object that identifies the schema of that version; a changed schema has another one."""
        ...

    def scale_of(self, kind: ApiKind, obj: Object) -> Object:
        """The Scale of an object."""
        ...

    def with_scale(self, kind: ApiKind, obj: Object, scale: Object) -> Object:
        """A copy of the object with the replicas of the Scale."""
        ...


class RealPatching:
    """``kgpu.lab.embedded.patch`` as the ``Patching`` port."""

    def apply_patch(self, content_type: str, live: Object, body: Any, schema: SchemaNode) -> Object:
        from kgpu.lab.embedded.patch import apply_patch

        return apply_patch(content_type, live, body, schema)

    def server_side_apply(
        self, live: Object | None, config: Object, schema: SchemaNode, *, manager: str, force: bool, subresource: str,
        kind: ApiKind, now: str,
    ) -> Object:  # fmt: skip
        from kgpu.lab.embedded.patch.apply import server_side_apply
        from kgpu.lab.embedded.patch.managed import reset_fields

        return server_side_apply(
            live, config, schema, manager=manager, force=force, subresource=subresource,
            api_version=kind.api_version, now=now, reset=reset_fields(kind, subresource),
        )  # fmt: skip

    def after_write(
        self,
        old: Object | None,
        new: Object,
        schema: SchemaNode,
        *,
        manager: str,
        subresource: str,
        kind: ApiKind,
        now: str,
    ) -> list[Object]:
        from kgpu.lab.embedded.patch.managed import after_write, reset_fields

        return after_write(
            old, new, schema, manager=manager, subresource=subresource, api_version=kind.api_version, now=now,
            reset=reset_fields(kind, subresource),
        )  # fmt: skip


class VerbContext:
    """What the verbs share. ``custom`` and ``authority`` may be set after construction."""

    def __init__(
        self, kinds: Kinds, store: ObjectStore, rules: Callable[[ApiKind], TypeRules], admission: Sequence[Admission],
        *, patching: Patching | None, authority: Authority | None,
    ) -> None:  # fmt: skip
        self.kinds = kinds
        self.store = store
        self.rules = rules
        self.mutating = tuple(plugin for plugin in admission if getattr(plugin, "mutating", False))
        self.validating = tuple(plugin for plugin in admission if not getattr(plugin, "mutating", False))
        self.patching: Patching = patching or RealPatching()
        self.authority: Authority = authority or AllowAll()
        self.custom: CustomPort | None = None
        self.reads = StoreLookup(store)

    def at(self, stored: StoredObject, kind: ApiKind) -> StoredObject:
        """``stored`` in the version of ``kind``."""
        if kind.custom and self.custom is not None:
            return stored.under(self.custom.version(kind), kind, self.custom.convert)
        return stored.at(kind, lambda kind, obj: converted(obj, kind))

    def is_outdated(self, stored: StoredObject, kind: ApiKind) -> bool:
        """Whether a write now would store it differently, as its kind's schema has changed since."""
        return kind.custom and stored.obj["apiVersion"] == kind.api_version and self.at(stored, kind) is not stored

    def find(self, kind: ApiKind, namespace: str, name: str) -> StoredObject | None:
        """The object as stored, None when there is none."""
        return self.store.get(storage_key(kind), namespace, name)

    def need(self, kind: ApiKind, namespace: str, name: str) -> StoredObject:
        """As ``find``; raises ApiError 404 when there is none."""
        stored = self.find(kind, namespace, name)
        if stored is None:
            raise not_found(kind.group, kind.plural, name)
        return stored

    def commit(self, kind: ApiKind, obj: Object, call: Call, old: StoredObject | None = None) -> StoredObject:
        """Write ``obj`` (in the version of ``kind``; it now belongs to the store), unless it is a dry run."""
        stored_as = storage_kind(self.kinds, kind)
        if stored_as is not kind:
            obj = converted(obj, stored_as)
        if call.dry_run:
            return self.at(StoredObject(obj, old.revision if old else 0), kind)
        try:
            stored = self.store.put(storage_key(kind), obj)
        except TooLargeError:
            # As the real server does: drop managedFields before refusing the object.
            if obj["metadata"].pop("managedFields", None) is None:
                raise
            stored = self.store.put(storage_key(kind), obj)
        if kind.custom and self.custom is not None:
            return stored.written_under(self.custom.version(kind))
        return self.at(stored, kind)

    def admit(self, review: Review) -> None:
        """Run mutating admission, after the NamespaceLifecycle check."""
        self._lifecycle(review)
        for plugin in self.mutating:
            plugin.admit(review, self.reads)

    def admitted(self, review: Review) -> None:
        """Run validating admission."""
        for plugin in self.validating:
            plugin.admit(review, self.reads)

    def _lifecycle(self, review: Review) -> None:
        kind = review.kind
        if kind.key == ("", "namespaces"):
            if review.operation == "DELETE" and review.name in IMMORTAL:
                raise forbidden("", "namespaces", review.name, "this namespace may not be deleted")
            return
        if review.operation != "CREATE" or not review.namespace or kind.plural == "localsubjectaccessreviews":
            return
        space = self.store.get(("", "namespaces"), "", review.namespace)
        if space is None:
            raise not_found("", "namespaces", review.namespace)
        if (space.obj.get("status") or {}).get("phase") != "Terminating":
            return
        metadata = review.obj.get("metadata") or {}
        name = review.name or metadata.get("name") or metadata.get("generateName") or "Unknown"
        why = f"unable to create new content in namespace {review.namespace} because it is being terminated"
        error = forbidden(kind.group, kind.plural, name, why)
        error.details = {**(error.details or {}), "causes": [{
            "reason": "NamespaceTerminating",
            "message": f"namespace {review.namespace} is being terminated",
            "field": "metadata.namespace",
        }]}  # fmt: skip
        raise error


class StoreLookup:
    """``ObjectLookup`` over the store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def get(self, group: str, plural: str, namespace: str, name: str) -> Object | None:
        stored = self._store.get((group, plural), namespace, name)
        return stored.obj if stored else None

    def list(self, group: str, plural: str, namespace: str = "") -> Iterator[Object]:
        return (stored.obj for stored in self._store.table((group, plural)).scan(namespace))


def now() -> str:
    """The time as the API writes it: RFC 3339, whole seconds, UTC."""
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def later(seconds: int) -> str:
    """The time ``seconds`` from now, as ``now`` writes it."""
    return (dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def success(code: int = 0, details: Object | None = None) -> Object:
    """A Status of success."""
    status: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if details:
        status["details"] = details
    return {**status, "code": code} if code else status


def plain(code: int, message: str) -> ApiError:
    """An ApiError without a reason, as the real server sends some."""
    return ApiError(code, "", message)
