"""Who owns which field: managedFields after a plain write, and the functions that ``apply`` shares with it.

The object before a write is compared with the one after it, so that a manager owns what it has changed and not what it
has sent. ``apply.server_side_apply`` does the same for appliers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from kgpu.lab.embedded.kinds import ApiKind
from kgpu.lab.embedded.patch.compare import compared
from kgpu.lab.embedded.patch.fieldset import Fields, difference, of_paths, parsed, union, without_below
from kgpu.lab.embedded.patch.shape import MergeShape, ShapeError, root_shape, zero
from kgpu.lab.embedded.schema import SchemaNode
from kgpu.lab.embedded.status import Object

Path: TypeAlias = tuple[str, ...]

MAX_UPDATERS: Final = 10
_META: Final = ("name", "namespace", "creationTimestamp", "selfLink", "uid", "clusterName", "generation",
                "managedFields", "resourceVersion")  # fmt: skip
_NEVER: Final = of_paths([("apiVersion",), ("kind",), ("metadata",), *(("metadata", name) for name in _META)])
_STATUS: Final[tuple[Path, ...]] = (("status",),)
_SPEC: Final[tuple[Path, ...]] = (("spec",),)
_META_SPEC: Final[tuple[Path, ...]] = (("metadata",), ("spec",))
_RESET: Final[dict[tuple[str, str, str], tuple[Path, ...]]] = {
    # (group, plural, subresource) of strategies that reset other fields than usual.
    ("", "namespaces", "finalize"): _STATUS,
    ("", "pods", "status"): (("spec",), ("metadata", "deletionTimestamp"), ("metadata", "ownerReferences")),
    ("apps", "deployments", "status"): (("spec",), ("metadata", "labels")),
    ("certificates.k8s.io", "certificatesigningrequests", ""): (("spec",), ("status",)),
    ("certificates.k8s.io", "certificatesigningrequests", "status"): (("spec",), ("status", "conditions")),
    ("certificates.k8s.io", "certificatesigningrequests", "approval"): (("spec",), ("status", "certificate")),
    # The real server resets nothing here: it names the group "networking".
    ("networking.k8s.io", "servicecidrs", ""): (),
    ("networking.k8s.io", "servicecidrs", "status"): (),
}
_META_TOO: Final = frozenset(
    {"admissionregistration.k8s.io", "internal.apiserver.k8s.io", "flowcontrol.apiserver.k8s.io", "resource.k8s.io",
     "storage.k8s.io", "storagemigration.k8s.io", "apiextensions.k8s.io"}
)  # fmt: skip


def reset_fields(kind: ApiKind, subresource: str = "") -> tuple[Path, ...]:
    """The fields that a write of ``kind`` (or of its subresource) can't change and so never owns.

    From the registry strategies of Kubernetes 1.35 and, for custom resources, those of apiextensions.
    """
    if not kind.custom and (kind.group, kind.plural, subresource) in _RESET:
        return _RESET[kind.group, kind.plural, subresource]
    if "status" not in kind.subresources:
        return ()
    if subresource == "status":
        return _META_SPEC if kind.group in _META_TOO and not kind.custom else _SPEC
    return () if subresource else _STATUS


class FieldManager(NamedTuple):
    """The key of an entry of managedFields; ``api_version`` is "" for appliers."""

    name: str
    operation: str
    api_version: str
    subresource: str

    @property
    def sort_key(self) -> str:
        """The server's identifier of the manager, by which conflicts are sorted."""
        parts = [("manager", self.name), ("operation", self.operation), ("apiVersion", self.api_version),
                 ("subresource", self.subresource)]  # fmt: skip
        return ",".join(f'"{name}":"{value}"' for name, value in parts if value)

    def __str__(self) -> str:
        words = f'"{self.name}"'
        if self.subresource:
            words += f' with subresource "{self.subresource}"'
        return f"{words} using {self.api_version}" if self.operation == "Update" else words


@dataclass(frozen=True, slots=True)
class ManagedFieldsEntry:
    """The fields of one manager."""

    fields: Fields
    api_version: str
    time: str | None = None


ManagedFields: TypeAlias = dict[FieldManager, ManagedFieldsEntry]


def manager_of(name: str, operation: str, api_version: str, subresource: str) -> FieldManager:
    return FieldManager(name or "unknown", operation, api_version if operation == "Update" else "", subresource)


def decoded(entries: Any, *, trusted: bool = False) -> ManagedFields | None:
    """The entries by manager; None when they are invalid. ``trusted`` ones were encoded by this module."""
    managed: ManagedFields = {}
    for entry in entries or ():
        if not isinstance(entry, dict):
            return None
        operation, version = entry.get("operation"), entry.get("apiVersion")
        if operation not in ("Apply", "Update") or not version or entry.get("fieldsType") != "FieldsV1":
            return None
        fields = entry.get("fieldsV1") or {}
        canonical = fields if trusted else parsed(fields)
        if canonical is None:
            return None
        manager = FieldManager(
            entry.get("manager", ""), operation, version if operation == "Update" else "", entry.get("subresource", "")
        )
        managed[manager] = ManagedFieldsEntry(canonical, version, entry.get("time"))
    return managed


def encoded(managed: ManagedFields) -> list[Object]:
    """The entries of ``metadata.managedFields``, appliers first, then by time."""
    order = sorted(
        managed.items(),
        key=lambda pair: (
            pair[0].operation,
            pair[1].time or "",
            pair[0].name,
            pair[1].api_version,
            pair[0].subresource,
        ),
    )
    return [_entry(manager, entry) for manager, entry in order]


def _entry(manager: FieldManager, entry: ManagedFieldsEntry) -> Object:
    shown: Object = {
        "manager": manager.name, "operation": manager.operation, "apiVersion": entry.api_version, "time": entry.time,
        "fieldsType": "FieldsV1", "fieldsV1": entry.fields, "subresource": manager.subresource,
    }  # fmt: skip
    if entry.time is None:
        del shown["time"]
    if not manager.subresource:
        del shown["subresource"]
    return shown


def managed_fields_of(obj: Object) -> ManagedFields:
    """The managed fields of a stored object."""
    return decoded(obj.get("metadata", {}).get("managedFields"), trusted=True) or {}


def bare(obj: Object) -> Object:
    """``obj`` without managedFields."""
    meta = obj.get("metadata")
    if not isinstance(meta, dict) or "managedFields" not in meta:
        return obj
    return {**obj, "metadata": {key: value for key, value in meta.items() if key != "managedFields"}}


def initial(schema: SchemaNode, obj: Object) -> Object:
    """The object that a new one is compared with."""
    if schema.name:
        return zero(schema)
    return {key: obj[key] for key in ("apiVersion", "kind") if key in obj}


def after_write(
    old: Object | None,
    new: Object,
    schema: SchemaNode,
    *,
    manager: str,
    operation: str = "Update",
    subresource: str = "",
    api_version: str,
    now: str,
    reset: Collection[Path] = (),
) -> list[Object]:
    """The managedFields of ``new`` after ``manager`` has written it; [] when nothing is tracked.

    Call it where the real server does: with ``new`` decoded and defaulted, but before admission and before the kind's
    strategy prepares it; ``old`` is the live object or None on create. ``metadata.managedFields`` of ``new`` are those
    that the writer sent: as in the real server an empty list forgets all owners, and without any those of ``old`` stay.
    ``reset`` is ``reset_fields(kind, subresource)``. Store nothing if ``unchanged`` then says that only times differ.
    """
    managed = _sent(old, new, subresource)
    if old is not None and not managed:
        return []
    shape = root_shape(schema)
    before = initial(schema, new) if old is None else bare(old)
    writer = manager_of(manager, operation, api_version, subresource)
    # The real server copies the owners of a Scale to the scaled object without their times.
    stamp = None if subresource == "scale" else now
    try:
        managed = after_update(managed, shape, before, bare(new), writer, api_version, stamp, of_paths(reset))
    except ShapeError:
        return []
    return encoded(managed)


def _sent(old: Object | None, new: Object, subresource: str) -> ManagedFields:
    """The managed fields before the write: those that the writer sent, else those of the old object."""
    live = {} if old is None else managed_fields_of(old)
    if subresource:
        return live
    sent = new.get("metadata", {}).get("managedFields")
    if sent is None or (old is not None and sent == old["metadata"].get("managedFields")):
        return live
    if sent in ([], [{}]):
        return {}
    return decoded(sent) or live


def after_update(  # noqa: PLR0917
    managed: ManagedFields, shape: MergeShape, old: Object, new: Object, writer: FieldManager, api_version: str,
    now: str | None, reset: Fields,
) -> ManagedFields:  # fmt: skip
    """The managed fields after ``writer`` has changed ``old`` to ``new``; with ``now`` None its entry has no time."""
    touched, removed = (without_below(changed, reset) for changed in compared(shape, old, new))
    managed = without_fields(managed, touched, removed)
    owned = difference(touched, _NEVER)
    if owned:
        before = managed.get(writer)
        managed[writer] = ManagedFieldsEntry(union(owned, before.fields) if before else owned, api_version, now)
    return _capped(managed)


def without_fields(managed: ManagedFields, *removed: Fields, but: FieldManager | None = None) -> ManagedFields:
    """The managed fields without those ``removed`` (except for the manager ``but``) and without empty entries."""
    result: ManagedFields = {}
    for manager, entry in managed.items():
        fields = entry.fields
        for field_set in removed if manager != but else ():
            fields = difference(fields, field_set)
        if fields:
            result[manager] = (
                entry if fields is entry.fields else ManagedFieldsEntry(fields, entry.api_version, entry.time)
            )
    return result


def ownable(fields: Fields) -> Fields:
    """The set without the fields that no manager ever owns, such as name and uid."""
    return difference(fields, _NEVER)


def _capped(managed: ManagedFields) -> ManagedFields:
    """Keep at most ten managers that update: the oldest ones of a version become ``ancient-changes``."""
    updaters = [manager for manager in managed if manager.operation == "Update"]
    surplus = len(updaters) - MAX_UPDATERS
    if surplus <= 0:
        return managed
    updaters.sort(key=lambda manager: (managed[manager].time or "", manager.sort_key))
    first: dict[str, FieldManager] = {}
    for manager in updaters:
        entry = managed[manager]
        bucket = FieldManager("ancient-changes", "Update", entry.api_version, "")
        if surplus <= 0:
            break
        if entry.api_version not in first:
            first[entry.api_version] = manager
            continue
        if bucket not in managed:
            managed[bucket] = managed.pop(first[entry.api_version])
        fields = union(entry.fields, managed[bucket].fields)
        if manager != bucket:
            del managed[manager]
        managed[bucket] = ManagedFieldsEntry(fields, entry.api_version, entry.time)
        surplus -= 1
    return managed


def unchanged(old: Object, new: Object) -> bool:
    """Whether the two differ only in times of managedFields or in resourceVersion, so that nothing must be stored."""
    earlier, afters = (obj.get("metadata", {}).get("managedFields") or [] for obj in (old, new))
    if [_timeless(entry) for entry in earlier] != [_timeless(entry) for entry in afters]:
        return False
    return _compared_part(old) == _compared_part(new)


def _timeless(entry: Object) -> Object:
    return {key: value for key, value in entry.items() if key != "time"}


def _compared_part(obj: Object) -> Object:
    return {**obj, "metadata": _without(obj.get("metadata", {}), ("managedFields", "resourceVersion"))}


def _without(value: Object, names: Iterable[str]) -> Object:
    return {key: member for key, member in value.items() if key not in names}
