"""Server-side apply: merges a manager's configuration into the live object and tracks who owns which field.

As structured-merge-diff and the API server's field managers around it do, with two of their rules for kubectl: it may
take over what client-side apply owned, and client-side apply's annotation is kept up to date.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, TypeAlias

import msgspec

from kgpu.formats import names
from kgpu.lab.embedded.patch.combine import merged, with_named, without
from kgpu.lab.embedded.patch.compare import compared, field_set
from kgpu.lab.embedded.patch.conform import problems
from kgpu.lab.embedded.patch.fieldset import (
    Fields,
    covers,
    difference,
    intersection,
    of_paths,
    path_text,
    paths,
    union,
    without_below,
)
from kgpu.lab.embedded.patch.managed import (
    FieldManager,
    ManagedFields,
    ManagedFieldsEntry,
    Path,
    after_update,
    bare,
    encoded,
    initial,
    managed_fields_of,
    manager_of,
    ownable,
    without_fields,
)
from kgpu.lab.embedded.patch.shape import MergeRule, MergeShape, ShapeError, root_shape
from kgpu.lab.embedded.patch.values import same
from kgpu.lab.embedded.schema import SchemaNode
from kgpu.lab.embedded.status import ApiError, Object, bad_request

MAX_ANNOTATIONS: Final = 256 * 1024  # bytes of names and values together
_Conflicts: TypeAlias = dict[FieldManager, Fields]


class _ConflictingError(Exception):
    def __init__(self, conflicts: _Conflicts) -> None:
        super().__init__()
        self.conflicts = conflicts


def server_side_apply(
    live: Object | None,
    config: Object,
    schema: SchemaNode,
    *,
    manager: str,
    force: bool = False,
    subresource: str = "",
    api_version: str,
    now: str,
    reset: Collection[Path] = (),
) -> Object:
    """The object that results, with managedFields, before defaulting; ``live`` None creates.

    ``now`` is an RFC 3339 time with seconds; ``reset`` is ``managed.reset_fields(kind, subresource)``. Raises ApiError:
    409 for fields that others own (unless ``force``), 400 for managedFields in ``config``, 500 as the real server for a
    ``config`` that the type does not allow. Neither argument is changed; the result shares parts with both. Store
    nothing when ``managed.unchanged`` then says that only times differ.
    """
    _check(config, schema, api_version, live)
    shape = root_shape(schema)
    complaints = problems(shape, config)
    if complaints:
        raise _untyped(config, complaints)
    current = {} if live is None else bare(live)
    limits = of_paths(reset)
    managed = {} if live is None else managed_fields_of(live)
    if live is not None and not managed:
        first = manager_of("before-first-apply", "Update", api_version, subresource)
        managed = after_update({}, shape, initial(schema, live), current, first, api_version, now, limits)
    applier = manager_of(manager, "Apply", api_version, subresource)
    job = _Apply(shape, current, config, managed, applier, api_version, now, limits)
    try:
        new, managed = job.run(force=force)
    except _ConflictingError as error:
        left = error.conflicts
        if manager == "kubectl" and live is not None:
            allowed = _once_applied(shape, current, api_version)
            left = {key: rest for key, fields in left.items() if (rest := difference(fields, allowed))}
        if left:
            raise _refusal(left) from None
        new, managed = job.run(force=True)
    if schema.name:
        new = _null_free(shape, new)
    if manager == "kubectl":
        new = _with_last_applied(new, config)
    metadata = {**new.get("metadata", {})}
    entries = encoded(managed)
    if entries:
        metadata["managedFields"] = entries
    return {**new, "metadata": metadata}


class _Apply:
    """One apply; it is run again with force if all its conflicts are allowed."""

    def __init__(  # noqa: PLR0917 - made in one place
        self, shape: MergeShape, live: Object, config: Object, managed: ManagedFields, applier: FieldManager,
        version: str, now: str, reset: Fields,
    ) -> None:  # fmt: skip
        self.shape, self.live, self.config = shape, live, config
        self.managed, self.applier, self.version, self.now, self.reset = managed, applier, version, now, reset

    def run(self, *, force: bool) -> tuple[Object, ManagedFields]:
        shape, live = self.shape, self.live
        managed = dict(self.managed)
        owned = without_below(field_set(shape, self.config), self.reset)
        before = managed.get(self.applier)
        managed[self.applier] = ManagedFieldsEntry(owned, self.version, before.time if before else None)
        new = merged(shape, live, self.config)
        if before is not None and not covers(owned, before.fields):
            new = _pruned(shape, new, before.fields, managed)
        touched, removed = (without_below(changed, self.reset) for changed in compared(shape, live, new))
        conflicts = {
            manager: overlap
            for manager, entry in managed.items()
            if manager != self.applier and (overlap := intersection(entry.fields, touched))
        }
        if conflicts and not force:
            raise _ConflictingError(conflicts)
        managed = without_fields(managed, touched, removed, but=self.applier)
        fields = ownable(owned)
        if not fields:
            managed.pop(self.applier, None)
        else:
            # If the object has not changed the time stays; a new co-owner has none.
            time = self.now if not same(new, live) else managed[self.applier].time
            managed[self.applier] = ManagedFieldsEntry(fields, self.version, time)
        return new, managed


def _pruned(shape: MergeShape, new: Object, last: Fields, managed: ManagedFields) -> Object:
    """``new`` without the fields that the applier owned, no longer applies, and no other manager owns."""
    owned: Fields = {}
    for entry in managed.values():
        owned = union(owned, entry.fields)
    present = with_named(shape, field_set(shape, new))
    last = with_named(shape, last)
    first = without(shape, new, last) or {}
    kept = union(with_named(shape, field_set(shape, first)), with_named(shape, owned))
    second = without(shape, new, difference(present, kept)) or {}
    gone = difference(present, with_named(shape, field_set(shape, second)))
    pruned: Object = without(shape, new, intersection(gone, last)) or {}
    return pruned


def _once_applied(shape: MergeShape, live: Object, api_version: str) -> Fields:
    """The fields that client-side apply has set, by its annotation, and that have not changed since."""
    try:
        text = live["metadata"]["annotations"][names.LAST_APPLIED]
        config = msgspec.json.decode(text)
        if config["apiVersion"] != api_version or problems(shape, config):
            return {}
        touched, removed = compared(shape, config, live)
        return difference(difference(field_set(shape, config), touched), removed)
    except (KeyError, TypeError, msgspec.DecodeError, ShapeError):
        return {}


def _with_last_applied(new: Object, config: Object) -> Object:
    annotations = new.get("metadata", {}).get("annotations") or {}
    if not annotations.get(names.LAST_APPLIED):
        return new
    metadata = config.get("metadata", {})
    if "annotations" in metadata:
        sent = {key: value for key, value in (metadata["annotations"] or {}).items() if key != names.LAST_APPLIED}
        metadata = {**metadata, "annotations": sent}
        if not sent:
            del metadata["annotations"]
    text = msgspec.json.encode({**config, "metadata": metadata}, order="sorted").decode()
    escaped = text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e") + "\n"
    annotations = {**annotations, names.LAST_APPLIED: escaped}
    if sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items()) > MAX_ANNOTATIONS:
        del annotations[names.LAST_APPLIED]
    return {**new, "metadata": {**new["metadata"], "annotations": annotations}}


def _null_free(shape: MergeShape, value: Any) -> Any:
    """The value without nulls, which typed objects don't have: applied ones, or ones left of an emptied map, go."""
    if isinstance(value, dict):
        if shape.map is not MergeRule.EACH:
            return value
        return {
            key: _null_free(shape.child(key), member) if isinstance(member, dict | list) else member
            for key, member in value.items()
            if member is not None
        }
    if isinstance(value, list) and shape.list is MergeRule.EACH:
        return [_null_free(shape.item, item) for item in value]
    return value


def _check(config: Object, schema: SchemaNode, api_version: str, live: Object | None) -> None:
    kinds = {gvk["kind"] for gvk in schema.raw.get("x-kubernetes-group-version-kind", ())}
    if live is not None and "kind" in live:
        kinds = {live["kind"]}
    version, kind = config.get("apiVersion", ""), config.get("kind", "")
    if version != api_version or (kinds and kind not in kinds):
        raise bad_request(f"invalid object type: {_gvk(version, kind)}")
    if config.get("metadata", {}).get("managedFields") is not None:
        raise bad_request("metadata.managedFields must be nil")


def _gvk(version: str, kind: str) -> str:
    group = "" if "/" in version else "/"
    return f"{group}{version}, Kind={kind}"


def _untyped(config: Object, complaints: list[str]) -> ApiError:
    metadata = config.get("metadata", {})
    what = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}; {_gvk(config['apiVersion'], config['kind'])}"
    text = (
        complaints[0] if len(complaints) == 1 else "errors:\n" + "\n".join(f"  {complaint}" for complaint in complaints)
    )
    return ApiError(500, "", f"failed to create typed patch object ({what}): {text}")


def _refusal(conflicts: _Conflicts) -> ApiError:
    by_manager = [(manager, [path_text(path) for path in paths(conflicts[manager])]) for manager in
            sorted(conflicts, key=lambda manager: manager.sort_key)]  # fmt: skip
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {manager}", "field": path}
        for manager, descriptions in by_manager
        for path in descriptions
    ]
    if len(causes) == 1:
        message = f"Apply failed with 1 conflict: {causes[0]['message']}: {causes[0]['field']}"
    else:
        lines = [line for manager, descriptions in by_manager for line in
                 (f"conflicts with {manager}:", *(f"- {path}" for path in descriptions))]  # fmt: skip
        message = f"Apply failed with {len(causes)} conflicts: " + "\n".join(lines)
    return ApiError(409, "Conflict", message, {"causes": causes})
