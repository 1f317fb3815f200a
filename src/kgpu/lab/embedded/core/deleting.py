"""Delete: preconditions, grace, finalizers and propagation (registry/generic/registry/store.go, rest/delete.go)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kgpu.lab.embedded.core.context import VerbContext, later, now, success
from kgpu.lab.embedded.core.convert import storage_key
from kgpu.lab.embedded.core.model import Call, DeleteOptions, Review, StoredObject, copied
from kgpu.lab.embedded.core.reading import ReadVerbs
from kgpu.lab.embedded.kinds import ApiKind
from kgpu.lab.embedded.status import ApiError, Object, conflict

ORPHAN: Final = "orphan"
FOREGROUND: Final = "foregroundDeletion"
_COLLECTOR: Final = frozenset({ORPHAN, FOREGROUND})
# Kinds whose dependents are orphaned by default; kinds that the garbage collector never touches.
_ORPHANED: Final = frozenset({("batch", "jobs"), ("", "replicationcontrollers")})
_UNCOLLECTED: Final = frozenset({("", "events")})
# Kinds whose delete returns the deleted object instead of a Status (ReturnDeletedObject).
_RETURNED: Final = frozenset({
    ("resource.k8s.io", "resourceclaimtemplates"), ("resource.k8s.io", "resourceslices"),
    ("resource.k8s.io", "resourceclaims"), ("resource.k8s.io", "deviceclasses"), ("storage.k8s.io", "csidrivers"),
    ("storage.k8s.io", "storageclasses"), ("storage.k8s.io", "volumeattachments"), ("storage.k8s.io", "csinodes"),
    ("storage.k8s.io", "volumeattributesclasses"), ("", "resourcequotas"), ("", "persistentvolumes"),
    ("", "serviceaccounts"), ("", "persistentvolumeclaims"), ("", "namespaces"), ("", "pods"), ("", "services"),
    ("", "podtemplates"),
})  # fmt: skip


class DeleteVerbs:
    """Works on one ``VerbContext``."""

    def __init__(self, context: VerbContext, reading: ReadVerbs) -> None:
        self._context = context
        self._reading = reading

    def delete(
        self, kind: ApiKind, namespace: str, name: str, options: DeleteOptions, call: Call, *, named: bool = True
    ) -> tuple[Object, bool]:
        """Return (the object or a Status, whether it is gone). ``named``: the request is for it, not a collection."""
        context = self._context
        old = context.need(kind, namespace, name)
        _check(kind, old, options)
        dry_run = options.dry_run or call.dry_run
        review = Review(
            operation="DELETE", kind=kind, namespace=namespace if kind.namespaced else "", name=name if named else "",
            obj={}, old=context.at(old, kind).obj, subresource="", call=call,
        )  # fmt: skip
        context.admit(review)
        context.admitted(review)
        if kind.key == ("", "namespaces"):
            marked = self._mark_namespace(kind, old, options, dry_run=dry_run)
            if marked is not None:
                return marked, False
        live = self._marked(kind, old.obj)
        metadata = live["metadata"]
        deadline, pending = _grace(kind, live, options)
        if pending:
            return self._answer(kind, old), False
        finalizers = _finalizers(kind, metadata, options)
        if deadline is None and not finalizers:
            return self._gone(kind, old, dry_run=dry_run), True
        changed = dict(metadata)
        if finalizers:
            changed["finalizers"] = finalizers
        else:
            changed.pop("finalizers", None)
        if deadline is None or not deadline[0]:
            changed["deletionGracePeriodSeconds"] = 0
            if changed.get("deletionTimestamp", "9") > now():
                changed["deletionTimestamp"] = now()
        else:
            changed["deletionGracePeriodSeconds"], changed["deletionTimestamp"] = deadline
        if "deletionTimestamp" not in metadata and changed.get("generation"):
            changed["generation"] += 1
        if deadline is not None and not deadline[0] and not finalizers:
            # A pod that goes at once makes two events, as with the real one: it is terminating, and it is gone.
            marked_pod = self._put(kind, old, {**live, "metadata": changed}, dry_run=dry_run)
            return self._gone(kind, marked_pod, dry_run=dry_run), True
        if changed == metadata:
            return context.at(old, kind).obj, False
        return context.at(self._put(kind, old, {**live, "metadata": changed}, dry_run=dry_run), kind).obj, False

    def _marked(self, kind: ApiKind, obj: Object) -> Object:
        """The object as its kind's rules mark it for its first delete: a CRD stays until it has no objects."""
        mark = getattr(self._context.rules(kind), "deleting", None)
        if mark is None or "deletionTimestamp" in obj["metadata"]:
            return obj
        marked = copied(obj)
        mark(kind, marked)
        return marked

    def delete_collection(
        self, kind: ApiKind, namespace: str, options: DeleteOptions, call: Call, *, labels: str, fields: str
    ) -> Iterator[StoredObject]:
        """Delete or mark one object after the other; yields each as it was. An object gone meanwhile is no error."""
        page = self._reading.list(
            kind, namespace, labels=labels, fields=fields, limit=0, token="", version="", match=""
        )
        for stored in page.items:
            try:
                self.delete(kind, stored.namespace, stored.name, options, call, named=False)
            except ApiError as error:
                if error.code != 404:
                    raise
            yield stored

    def _put(self, kind: ApiKind, old: StoredObject, obj: Object, *, dry_run: bool) -> StoredObject:
        if dry_run:
            return StoredObject(obj, old.revision)
        return self._context.store.put(storage_key(kind), {**obj, "metadata": dict(obj["metadata"])})

    def _gone(self, kind: ApiKind, old: StoredObject, *, dry_run: bool) -> Object:
        last = old if dry_run else self._context.store.remove(storage_key(kind), old)
        return self._answer(kind, last)

    def _answer(self, kind: ApiKind, stored: StoredObject) -> Object:
        if kind.key in _RETURNED:
            return self._context.at(stored, kind).obj
        details = {"name": stored.name, "group": kind.group, "kind": kind.plural, "uid": stored.obj["metadata"]["uid"]}
        return success(details={key: value for key, value in details.items() if value})

    def _mark_namespace(
        self, kind: ApiKind, old: StoredObject, options: DeleteOptions, *, dry_run: bool
    ) -> Object | None:
        """Mark a namespace as terminating: its controller empties spec.finalizers. None when it may go now."""
        metadata, spec = old.obj["metadata"], old.obj.get("spec") or {}
        if "deletionTimestamp" in metadata:
            return old.obj if spec.get("finalizers") else None
        changed = {**metadata, "deletionTimestamp": now()}
        finalizers = [finalizer for finalizer in metadata.get("finalizers", ()) if finalizer not in _COLLECTOR]
        finalizers += [ORPHAN] * (options.propagation == "Orphan")
        finalizers += [FOREGROUND] * (options.propagation == "Foreground")
        if finalizers:
            changed["finalizers"] = finalizers
        status = {**(old.obj.get("status") or {}), "phase": "Terminating"}
        return self._put(kind, old, {**old.obj, "metadata": changed, "status": status}, dry_run=dry_run).obj


def _check(kind: ApiKind, old: StoredObject, options: DeleteOptions) -> None:
    metadata = old.obj["metadata"]
    spaces = kind.key == ("", "namespaces")
    about = (kind.group, kind.plural if spaces else kind.kind, old.name)
    if options.uid and options.uid != metadata["uid"]:
        why = (
            f"Precondition failed: UID in precondition: {options.uid}, UID in object meta: {metadata['uid']}"
            if spaces
            else f"the UID in the precondition ({options.uid}) does not match the UID in record ({metadata['uid']}). "
            "The object might have been deleted and then recreated"
        )
        raise conflict(*about, why)
    version = metadata["resourceVersion"]
    if options.version and options.version != version:
        why = (
            f"Precondition failed: ResourceVersion in precondition: {options.version}, "
            f"ResourceVersion in object meta: {version}"
            if spaces
            else f"the ResourceVersion in the precondition ({options.version}) does not match the ResourceVersion in "
            f"record ({version}). The object might have been modified"
        )
        raise conflict(*about, why)


def _grace(kind: ApiKind, obj: Object, options: DeleteOptions) -> tuple[tuple[int, str] | None, bool]:
    """Return ((seconds, deletionTimestamp), None for kinds without grace; whether an earlier delete ends as soon)."""
    if kind.key != ("", "pods"):
        return None, False
    metadata, spec = obj["metadata"], obj.get("spec") or {}
    requested = None if options.grace is None else options.grace if options.grace >= 0 else 1
    if "deletionTimestamp" in metadata:
        left = metadata.get("deletionGracePeriodSeconds") or 0
        if not left:
            return None, False
        if requested is None or requested >= left:
            return None, True
        return _shortened(metadata["deletionTimestamp"], left, requested), False
    seconds = spec.get("terminationGracePeriodSeconds", 0) if requested is None else requested
    if not spec.get("nodeName") or (obj.get("status") or {}).get("phase") in ("Failed", "Succeeded"):
        seconds = 0
    seconds = seconds if seconds >= 0 else 1
    return (seconds, later(seconds)), False


def _shortened(timestamp: str, left: int, requested: int) -> tuple[int, str]:
    import datetime as dt

    ends = dt.datetime.fromisoformat(timestamp) - dt.timedelta(seconds=left - requested)
    if ends < dt.datetime.now(dt.UTC):
        return (1 if requested else 0), now()
    return requested, ends.strftime("%Y-%m-%dT%H:%M:%SZ")


def _finalizers(kind: ApiKind, metadata: Object, options: DeleteOptions) -> list[str]:
    """The object's finalizers after the delete."""
    present: list[str] = list(metadata.get("finalizers") or ())
    orphan = foreground = False
    if kind.key not in _UNCOLLECTED:
        wish = options.propagation
        if not wish:
            held = next((finalizer for finalizer in present if finalizer in _COLLECTOR), "")
            wish = {ORPHAN: "Orphan", FOREGROUND: "Foreground"}.get(held, "")
        orphan = wish == "Orphan" or (not wish and kind.key in _ORPHANED)
        foreground = wish == "Foreground"
    kept = [finalizer for finalizer in present if finalizer not in _COLLECTOR]
    wanted = kept + [ORPHAN] * orphan + [FOREGROUND] * foreground
    return present if set(wanted) == set(present) else wanted
