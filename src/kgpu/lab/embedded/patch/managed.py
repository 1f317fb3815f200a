"""Who owns which field: managedFields after a plain write, and what that account is made of.

A write is told apart by comparing the object before and after it, so that a manager owns what it has changed and not
what it has sent. ``apply.server_side_apply`` keeps the same account for appliers.
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
    # (group, plural, subresource): where a strategy resets other fields than the usual.
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
    """What tells one entry of managedFields from another; ``api_version`` is "" for appliers."""

    name: str
    operation: str
    api_version: str
    subresource: str

    @property
    def sort_key(self) -> str:
        """Conflicts are told in the order of the server's own identifiers."""
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
    """One manager's fields."""

    fields: Fields
    api_version: str
    time: str | None = None


Account: TypeAlias = dict[FieldManager, ManagedFieldsEntry]


def manager_of(name: str, operation: str, api_version: str, subresource: str) -> FieldManager:
    return FieldManager(name or "unknown", operation, api_version if operation == "Update" else "", subresource)


def decoded(entries: Any, *, trusted: bool = False) -> Account | None:
    """ManagedFields as an account; None when they are invalid. ``trusted`` ones were written by this module."""
    found: Account = {}
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
        found[manager] = ManagedFieldsEntry(canonical, version, entry.get("time"))
    return found


def encoded(account: Account) -> list[Object]:
    """The account as managedFields, appliers first, then by time."""
    order = sorted(
        account.items(),
        key=lambda one: (one[0].operation, one[1].time or "", one[0].name, one[1].api_version, one[0].subresource),
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


def live_account(obj: Object) -> Account:
    """The account that a stored object carries."""
    return decoded(obj.get("metadata", {}).get("managedFields"), trusted=True) or {}


def bare(obj: Object) -> Object:
    """``obj`` without managedFields."""
    meta = obj.get("metadata")
    if not isinstance(meta, dict) or "managedFields" not in meta:
        return obj
    return {**obj, "metadata": {key: value for key, value in meta.items() if key != "managedFields"}}


def blank(schema: SchemaNode, obj: Object) -> Object:
    """What a new object is compared with."""
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
    strategy prepares it; ``old`` is the live object or None on create.
    ``new``'s own ``metadata.managedFields`` says what the writer sent: as in the
    real server an empty list forgets all owners, and none at all keeps those of ``old``. ``reset`` is
    ``reset_fields(kind, subresource)``. Store nothing when ``unchanged`` then says that only times differ.
    """
    account = _sent(old, new, subresource)
    if old is not None and not account:
        return []
    shape = root_shape(schema)
    before = blank(schema, new) if old is None else bare(old)
    writer = manager_of(manager, operation, api_version, subresource)
    # The real server brings the owners of a Scale back to the object that it scales without their times.
    stamp = None if subresource == "scale" else now
    try:
        account = written(account, shape, before, bare(new), writer, api_version, stamp, of_paths(reset))
    except ShapeError:
        return []
    return encoded(account)


def _sent(old: Object | None, new: Object, subresource: str) -> Account:
    """The account to go on from."""
    live = {} if old is None else live_account(old)
    if subresource:
        return live
    sent = new.get("metadata", {}).get("managedFields")
    if sent is None or (old is not None and sent == old["metadata"].get("managedFields")):
        return live
    if sent in ([], [{}]):
        return {}
    return decoded(sent) or live


def written(  # noqa: PLR0917
    account: Account, shape: MergeShape, old: Object, new: Object, writer: FieldManager, api_version: str,
    now: str | None, reset: Fields,
) -> Account:  # fmt: skip
    """The account after ``writer`` has made ``new`` of ``old``; ``now`` None makes an entry without a time."""
    touched, removed = (without_below(one, reset) for one in compared(shape, old, new))
    account = less(account, touched, removed)
    owned = difference(touched, _NEVER)
    if owned:
        before = account.get(writer)
        account[writer] = ManagedFieldsEntry(union(owned, before.fields) if before else owned, api_version, now)
    return _capped(account)


def less(account: Account, *taken: Fields, but: FieldManager | None = None) -> Account:
    """The account without ``taken`` (except for the manager ``but``) and without managers that own nothing."""
    result: Account = {}
    for manager, entry in account.items():
        fields = entry.fields
        for one in taken if manager != but else ():
            fields = difference(fields, one)
        if fields:
            result[manager] = (
                entry if fields is entry.fields else ManagedFieldsEntry(fields, entry.api_version, entry.time)
            )
    return result


def ownable(fields: Fields) -> Fields:
    """Without what nobody ever owns, such as name and uid."""
    return difference(fields, _NEVER)


def _capped(account: Account) -> Account:
    """At most ten managers that update: the oldest of one version become ``ancient-changes``."""
    updaters = [manager for manager in account if manager.operation == "Update"]
    surplus = len(updaters) - MAX_UPDATERS
    if surplus <= 0:
        return account
    updaters.sort(key=lambda manager: (account[manager].time or "", manager.sort_key))
    first: dict[str, FieldManager] = {}
    for manager in updaters:
        entry = account[manager]
        bucket = FieldManager("ancient-changes", "Update", entry.api_version, "")
        if surplus <= 0:
            break
        if entry.api_version not in first:
            first[entry.api_version] = manager
            continue
        if bucket not in account:
            account[bucket] = account.pop(first[entry.api_version])
        fields = union(entry.fields, account[bucket].fields)
        if manager != bucket:
            del account[manager]
        account[bucket] = ManagedFieldsEntry(fields, entry.api_version, entry.time)
        surplus -= 1
    return account


def unchanged(old: Object, new: Object) -> bool:
    """Whether the two differ in nothing but the times of managedFields, so that the write must not be stored.

    resourceVersion does not count either.
    """
    earlier, afters = (obj.get("metadata", {}).get("managedFields") or [] for obj in (old, new))
    if [_timeless(one) for one in earlier] != [_timeless(one) for one in afters]:
        return False
    return _compared_part(old) == _compared_part(new)


def _timeless(entry: Object) -> Object:
    return {key: value for key, value in entry.items() if key != "time"}


def _compared_part(obj: Object) -> Object:
    return {**obj, "metadata": _without(obj.get("metadata", {}), ("managedFields", "resourceVersion"))}


def _without(value: Object, names: Iterable[str]) -> Object:
    return {key: one for key, one in value.items() if key not in names}
