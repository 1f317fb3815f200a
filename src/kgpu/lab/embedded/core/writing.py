"""Create, update and patch of whole objects and of their status, in the real server's order.

Decode, default, managed fields, mutating admission, prepare, validate, validating admission, store. Sources: the
apiserver's endpoints/handlers, registry/rest and registry/generic/registry/store.go.
"""

from __future__ import annotations

import dataclasses
import random
import uuid
from typing import Any, Final

from kgpu.lab.embedded.core import patch_errors, sizes
from kgpu.lab.embedded.core.context import VerbContext, now, plain
from kgpu.lab.embedded.core.convert import storage_key
from kgpu.lab.embedded.core.model import Call, Review, StoredObject
from kgpu.lab.embedded.duplicate_fields import StrictError, words
from kgpu.lab.embedded.kinds import ApiKind
from kgpu.lab.embedded.status import (
    MODIFIED,
    ApiError,
    Object,
    already_exists,
    bad_request,
    bad_value,
    conflict,
    invalid,
    not_found,
    shown,
)

APPLY: Final = "application/apply-patch+yaml"
GENERATED_ATTEMPTS: Final = 8
_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
_GENERATED_BASE: Final = 58  # characters of generateName that are kept, so that a name has 63 at most
_SYSTEM: Final = ("creationTimestamp", "uid", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink")
# Kinds whose updates must name a resourceVersion (AllowUnconditionalUpdate false); custom kinds too.
_CONDITIONAL: Final = frozenset({
    ("node.k8s.io", "runtimeclasses"), ("policy", "poddisruptionbudgets"), ("storage.k8s.io", "csidrivers"),
    ("storage.k8s.io", "csistoragecapacities"), ("storage.k8s.io", "volumeattachments"), ("storage.k8s.io", "csinodes"),
    ("coordination.k8s.io", "leases"), ("apiextensions.k8s.io", "customresourcedefinitions"),
    ("apiregistration.k8s.io", "apiservices"), ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"),
    ("admissionregistration.k8s.io", "validatingadmissionpolicybindings"),
})  # fmt: skip
# Kinds that a PUT creates when there is no such object (AllowCreateOnUpdate true).
_PUT_CREATES: Final = frozenset({
    ("node.k8s.io", "runtimeclasses"), ("rbac.authorization.k8s.io", "rolebindings"),
    ("rbac.authorization.k8s.io", "clusterrolebindings"), ("rbac.authorization.k8s.io", "roles"),
    ("rbac.authorization.k8s.io", "clusterroles"), ("coordination.k8s.io", "leases"), ("", "limitranges"),
    ("", "events"), ("", "services"), ("", "endpoints"),
})  # fmt: skip


class WriteVerbs:
    """Works on one ``VerbContext``."""

    def __init__(self, context: VerbContext) -> None:
        self._context = context

    def create(self, kind: ApiKind, namespace: str, obj: Object, call: Call, name: str = "") -> StoredObject:
        """Create an object; ``name`` is the path's, for kinds that a PUT creates."""
        new = obj if call.prepared else self._decoded(kind, obj, call)
        if name:
            _check_name(new, name, namespace)
        for field in _SYSTEM:
            metadata_of(new).pop(field, None)
        return self._retried(kind, namespace, new, call, applied=call.prepared)

    def prepared(self, kind: ApiKind, obj: Object, call: Call, *, new: bool) -> Object:
        """As ``ApiCore.prepared``."""
        decoded = self._decoded(kind, obj, call)
        sizes.check_parts(decoded)
        if new:
            for field in _SYSTEM:
                metadata_of(decoded).pop(field, None)
            self._manage(kind, None, decoded, call, "")
        return decoded

    def _retried(self, kind: ApiKind, namespace: str, new: Object, call: Call, *, applied: bool) -> StoredObject:
        metadata = metadata_of(new)
        generated = metadata.get("generateName") and not metadata.get("name")
        for attempt in range(GENERATED_ATTEMPTS if generated else 1):
            stored = self._created(kind, namespace, new, call, applied=applied, last=attempt == GENERATED_ATTEMPTS - 1)
            if stored is not None:
                return stored
        raise AssertionError("the last attempt raises")

    def _created(
        self, kind: ApiKind, namespace: str, new: Object, call: Call, *, applied: bool, last: bool
    ) -> StoredObject | None:
        context = self._context
        rules = context.rules(kind)
        new = {**new, "metadata": dict(metadata_of(new))}
        _check_namespace(kind, new, namespace)
        if not applied:
            self._manage(kind, None, new, call, "")
        metadata = metadata_of(new)
        review = Review(
            operation="CREATE", kind=kind, namespace=namespace, name=str(metadata.get("name") or ""), obj=new, old=None,
            subresource="", call=call,
        )  # fmt: skip
        context.admit(review)
        new = review.obj
        metadata = metadata_of(new)
        _check_namespace(kind, new, namespace)
        metadata["uid"] = str(uuid.uuid4())
        metadata["creationTimestamp"] = now()
        generated = bool(metadata.get("generateName")) and not metadata.get("name")
        if generated:
            metadata["name"] = f"{metadata['generateName'][:_GENERATED_BASE]}{suffix()}"
        rules.prepare(kind, new, None, "")
        errors = rules.validate(kind, new, None, "")
        name = str(metadata.get("name") or "")
        if errors:
            raise invalid(kind.group, kind.kind, name, errors)
        review.name = name
        context.admitted(review)
        if metadata.get("resourceVersion", "") not in ("", "0"):
            raise plain(500, "resourceVersion should not be set on objects to be created")
        metadata.pop("resourceVersion", None)
        present = context.store.get(storage_key(kind), namespace if kind.namespaced else "", name)
        if present is not None:
            if generated and not last:
                return None
            error = already_exists(kind.group, kind.plural, name)
            if generated:
                error.message = f"{error.message}, the server was not able to generate a unique name for the object"
            if "deletionTimestamp" in present.obj["metadata"]:
                error.message = f"object is being deleted: {error.message}"
            raise error
        return context.commit(kind, new, call)

    def update(
        self, kind: ApiKind, namespace: str, name: str, obj: Object, *, call: Call, subresource: str
    ) -> StoredObject:
        """PUT of an object or of its status."""
        old = self._context.find(kind, namespace, name)
        if old is None:
            if storage_key(kind) in _PUT_CREATES and not subresource:
                return self.create(kind, namespace, obj, dataclasses.replace(call, prepared=False), name)
            raise not_found(kind.group, kind.plural, name)
        new = obj if call.prepared else self._decoded(kind, obj, call)
        _check_name(new, name, namespace)
        return self.replace(kind, old, new, call, subresource)

    def _decoded(self, kind: ApiKind, obj: Object, call: Call) -> Object:
        """The object with its defaults. Empty managedFields stay: they mean that the client cleared them."""
        rules = self._context.rules(kind)
        new = rules.decode(kind, obj, call)
        rules.default(kind, new)
        metadata = obj.get("metadata")
        if isinstance(metadata, dict) and metadata.get("managedFields") == []:
            metadata_of(new)["managedFields"] = []
        return new

    def patch(
        self, kind: ApiKind, namespace: str, name: str, content_type: str, body: Any, *, call: Call, subresource: str
    ) -> tuple[StoredObject, bool]:
        """Return the object, and whether an apply has created it."""
        context = self._context
        old = context.find(kind, namespace, name)
        rules = context.rules(kind)
        if content_type == APPLY:
            return self._apply(kind, namespace, name, old, body, call=call, subresource=subresource)
        if content_type == patch_errors.STRATEGIC and kind.custom:
            from kgpu.lab.embedded.patch import unsupported

            raise unsupported(custom=True)
        if old is None:
            raise not_found(kind.group, kind.plural, name)
        live = context.at(old, kind).obj
        changed = context.patching.apply_patch(content_type, live, body, rules.schema(kind))
        new = self.patched(kind, patch_errors.AppliedPatch.of(content_type, body, changed), call)
        _check_name(new, name, namespace)
        return self.replace(kind, old, new, call, subresource, patched=True), False

    def patched(self, kind: ApiKind, patch: patch_errors.AppliedPatch, call: Call) -> Object:
        """Decode a patched object; errors are worded as about the patch. Raises ApiError."""
        own = patch_errors.complaints(patch, call.repeated) if call.validation != "Ignore" else []
        if call.validation == "Warn":
            call.warnings.extend(own)
        try:
            new = self._decoded(kind, patch.patched, dataclasses.replace(call, repeated=None))
        except StrictError as error:
            raise patch_errors.refused(patch, words([*own, *patch.ordered(error.complaints)])) from None
        except ApiError as error:
            raise patch_errors.undecoded(patch, error) from None
        if own and call.validation == "Strict":
            raise patch_errors.refused(patch, words(own))
        return new

    def _apply(
        self,
        kind: ApiKind,
        namespace: str,
        name: str,
        old: StoredObject | None,
        body: Any,
        *,
        call: Call,
        subresource: str,
    ) -> tuple[StoredObject, bool]:
        if not isinstance(body, dict):
            raise bad_request(
                "error decoding YAML: json: cannot unmarshal it into Go value of type map[string]interface {}"
            )
        context = self._context
        if old is None:
            uid = metadata_of(body).get("uid")
            if subresource:
                raise not_found(kind.group, kind.plural, name)
            if uid:
                why = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
                raise conflict(kind.group, kind.plural, name, why)
        rules = context.rules(kind)
        _check_name({**body, "metadata": {"name": name, **metadata_of(body)}}, name, namespace)
        live = context.at(old, kind).obj if old else None
        merged = context.patching.server_side_apply(
            live, body, rules.schema(kind), manager=call.manager, force=call.force, subresource=subresource, kind=kind,
            now=now(),
        )  # fmt: skip
        if call.repeated is not None:
            patch_errors.settle_applied(call.repeated, call)
        new = rules.decode(kind, merged, dataclasses.replace(call, repeated=None))
        rules.default(kind, new)
        if old is not None:
            return self.replace(kind, old, new, call, subresource, applied=True), False
        for field in _SYSTEM:
            metadata_of(new).pop(field, None)
        return self._retried(kind, namespace, new, call, applied=True), True

    def replace(
        self, kind: ApiKind, old: StoredObject, new: Object, call: Call, subresource: str, *, applied: bool = False,
        patched: bool = False, admitted_as: tuple[Object, Object] | None = None,
    ) -> StoredObject:  # fmt: skip
        """Put ``new`` (decoded; it now belongs to the store) in the place of ``old``.

        ``admitted_as``: the (new, old) that admission sees. An update's uid is a precondition; a patch's is a change,
        which validation refuses.
        """
        context = self._context
        rules = context.rules(kind)
        live = context.at(old, kind).obj
        before, metadata = live["metadata"], metadata_of(new)
        name, namespace = old.name, old.namespace
        uid = metadata.get("uid")
        if uid and uid != before["uid"] and not patched:
            raise conflict(kind.group, kind.plural, name, uid_mismatch(kind, old, uid))
        _check_version(kind, old, str(metadata.get("resourceVersion") or ""))
        metadata["resourceVersion"] = before["resourceVersion"]
        _check_namespace(kind, new, namespace)
        if not applied:
            self._manage(kind, live, new, call, subresource)
        review = Review(
            operation="UPDATE", kind=kind, namespace=namespace if kind.namespaced else "", name=name, obj=new, old=live,
            subresource=subresource, call=call,
        )  # fmt: skip
        if admitted_as is not None:
            review.obj, review.old = admitted_as
        context.admit(review)
        if admitted_as is None:
            new = review.obj
        metadata = metadata_of(new)
        _keep(metadata, before, "generation")
        # A Scale is written with the strategy of the scaled object.
        strategy = "" if subresource == "scale" else subresource
        rules.prepare(kind, new, live, strategy)
        for field in ("uid", "creationTimestamp", "deletionTimestamp"):
            if field != "uid" or not (patched and uid):
                _keep(metadata, before, field)
        if "deletionGracePeriodSeconds" not in metadata:
            _keep(metadata, before, "deletionGracePeriodSeconds")
        errors = rules.validate(kind, new, live, strategy)
        if errors:
            raise invalid(kind.group, kind.kind, name, errors)
        context.admitted(review)
        if _unchanged(live, new) and not context.is_outdated(old, kind):
            return context.at(old, kind)
        if _ends(kind, new, live):
            if not call.dry_run:
                context.store.remove(storage_key(kind), old)
            return StoredObject(new, old.revision)
        return context.commit(kind, new, call, old)

    def _manage(self, kind: ApiKind, live: Object | None, new: Object, call: Call, subresource: str) -> None:
        metadata = metadata_of(new)
        managed = self._context.patching.after_write(
            live, new, self._context.rules(kind).schema(kind), manager=call.manager, subresource=subresource, kind=kind,
            now=now(),
        )  # fmt: skip
        if managed:
            metadata["managedFields"] = managed
        else:
            metadata.pop("managedFields", None)


def metadata_of(obj: Object) -> Object:
    """The object's metadata, added when it is missing."""
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict):
        metadata = obj["metadata"] = {}
    return metadata


def suffix() -> str:
    """Five random characters that spell no words, for generateName."""
    return "".join(random.choices(_ALPHABET, k=5))  # noqa: S311 - no secret


def uid_mismatch(kind: ApiKind, old: StoredObject, uid: str) -> str:
    """The storage's error for an update whose UID is not the object's."""
    where = "/".join(
        filter(None, ("/registry", kind.group if kind.custom else "", kind.plural, old.namespace, old.name))
    )
    why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {old.obj['metadata']['uid']}"
    return f"StorageError: invalid object, Code: 4, Key: {where}, ResourceVersion: 0, AdditionalErrorMsg: {why}"


def _check_version(kind: ApiKind, old: StoredObject, version: str) -> None:
    if version in ("", "0"):
        if storage_key(kind) in _CONDITIONAL or kind.custom:
            error = bad_value("metadata.resourceVersion", 0, "must be specified for an update")
            raise invalid(kind.group, kind.plural, old.name, [error])
        return
    if not version.isascii() or not version.isdigit():
        raise plain(500, f"strconv.ParseUint: parsing {shown(version)}: invalid syntax")
    if version != str(old.revision):
        raise conflict(kind.group, kind.plural, old.name, MODIFIED)


def _check_name(obj: Object, name: str, namespace: str) -> None:
    metadata = metadata_of(obj)
    stated, space = metadata.get("name") or "", metadata.get("namespace") or ""
    if not stated:
        raise bad_request(f"the name of the object ({name} based on URL) was undeterminable: name must be provided")
    if stated != name:
        raise bad_request(f"the name of the object ({stated}) does not match the name on the URL ({name})")
    if namespace and space and space != namespace:
        raise bad_request(
            f"the namespace of the object ({space}) does not match the namespace on the request ({namespace})"
        )


def _check_namespace(kind: ApiKind, obj: Object, namespace: str) -> None:
    metadata = metadata_of(obj)
    stated = metadata.get("namespace") or ""
    wanted = namespace if kind.namespaced else ""
    if stated and wanted and stated != wanted:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    if wanted:
        metadata["namespace"] = wanted
    else:
        metadata.pop("namespace", None)


def _keep(metadata: Object, before: Object, field: str) -> None:
    if field in before:
        metadata[field] = before[field]
    else:
        metadata.pop(field, None)


def _ends(kind: ApiKind, new: Object, live: Object) -> bool:
    """Whether this update removes the last finalizer of an object being deleted (ShouldDeleteDuringUpdate)."""
    before = live["metadata"]
    if new["metadata"].get("finalizers") or "deletionTimestamp" not in before:
        return False
    if before.get("deletionGracePeriodSeconds"):
        return False
    return kind.key != ("", "namespaces") or not (new.get("spec") or {}).get("finalizers")


def _unchanged(old: Object, new: Object) -> bool:
    """Whether they differ at most in the times of managedFields."""
    if old.keys() != new.keys() or any(old[key] != new[key] for key in old if key != "metadata"):
        return False
    before, after = old["metadata"], new["metadata"]
    if before.keys() != after.keys() or any(before[key] != after[key] for key in before if key != "managedFields"):
        return False
    first, second = before.get("managedFields") or (), after.get("managedFields") or ()
    return len(first) == len(second) and all(
        {**left, "time": ""} == {**right, "time": ""} for left, right in zip(first, second, strict=True)
    )
