"""Reading and comparing what every object has: owners, labels, times, conditions. Pure; nothing is changed in place."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from kgpu.base.times import moment_of
from kgpu.kube.port import Object, Resource, name_of, namespace_of

_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"  # of generated names: no vowels, nothing that looks like another
UTC: Final = dt.UTC


def copy_of(value: Any) -> Any:
    """A deep copy of JSON."""
    return msgspec.json.decode(msgspec.json.encode(value))


def uid_of(obj: Object) -> str:
    return str(obj["metadata"].get("uid") or "")


def key_of(obj: Object) -> tuple[str, str]:
    return namespace_of(obj), name_of(obj)


def spec_of(obj: Object) -> Object:
    return obj.get("spec") or {}


def status_of(obj: Object) -> Object:
    return obj.get("status") or {}


def generation_of(obj: Object) -> int:
    return int(obj["metadata"].get("generation") or 0)


def deleting(obj: Object) -> bool:
    return bool(obj["metadata"].get("deletionTimestamp"))


# Owners


def owners_of(obj: Object) -> Sequence[Object]:
    return obj["metadata"].get("ownerReferences") or ()


def controller_of(obj: Object) -> Object | None:
    """The owner reference with ``controller`` set."""
    return next((owner for owner in owners_of(obj) if owner.get("controller")), None)


def owner_reference(resource: Resource, owner: Object) -> Object:
    """A reference as controllers write it: controller and blockOwnerDeletion."""
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": name_of(owner),
        "uid": uid_of(owner),
        "controller": True,
        "blockOwnerDeletion": True,
    }


# Labels


def _requirement(labels: Mapping[str, str], rule: Object) -> bool:
    key, values = rule.get("key", ""), rule.get("values") or ()
    match rule.get("operator"):
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
    return False


def selects(selector: Object | None, labels: Mapping[str, str]) -> bool:
    """A LabelSelector: none selects nothing, an empty one everything."""
    if selector is None:
        return False
    wanted = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _requirement(labels, rule) for rule in selector.get("matchExpressions") or ()
    )


def is_empty_selector(selector: Object | None) -> bool:
    return not selector or not (selector.get("matchLabels") or selector.get("matchExpressions"))


# Times


def stamp(now: dt.datetime) -> str:
    """As ``metav1.Time``: whole seconds."""
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_stamp(now: dt.datetime) -> str:
    """As ``metav1.MicroTime``."""
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def created_at(obj: Object) -> str:
    """The creation time as text; such texts sort as the times do."""
    return str(obj["metadata"].get("creationTimestamp") or "")


def seconds_since(text: Any, now: dt.datetime) -> float:
    """How long ago; 0 when the time is missing."""
    time = moment_of(text)
    return (now - time).total_seconds() if time else 0.0


# Conditions


def condition(obj_or_status: Object, kind: str) -> Object | None:
    """The condition of that type, from an object or its status."""
    status = obj_or_status.get("status") if "metadata" in obj_or_status else obj_or_status
    return next((entry for entry in (status or {}).get("conditions") or () if entry.get("type") == kind), None)


def with_condition(conditions: Iterable[Object], new: Object) -> list[Object]:
    """Apps style: the same status and reason keep the old one; the same status keeps its transition time; a changed
    condition goes to the end.
    """
    rest = [entry for entry in conditions if entry.get("type") != new["type"]]
    old = next((entry for entry in conditions if entry.get("type") == new["type"]), None)
    if old is not None and old.get("status") == new["status"]:
        if old.get("reason") == new.get("reason"):
            return list(conditions)
        new = {**new, "lastTransitionTime": old.get("lastTransitionTime")}
    return [*rest, new]


def set_condition(conditions: Iterable[Object], new: Object) -> list[Object]:
    """In its place, or at the end: the same status keeps its transition time, and whatever else is new is told."""
    rows = list(conditions)
    at = next((at for at, row in enumerate(rows) if row.get("type") == new["type"]), None)
    if at is None:
        return [*rows, new]
    if rows[at].get("status") == new["status"]:
        new = {key: value for key, value in new.items() if key != "lastTransitionTime"}
    rows[at] = {**rows[at], **new}
    return rows


def without_condition(conditions: Iterable[Object], kind: str) -> list[Object]:
    return [entry for entry in conditions if entry.get("type") != kind]


# Patches and names


def merge_patch(old: Object, new: Object) -> Object:
    """The merge patch that turns ``old`` into ``new``; empty when nothing changes. None and absent are the same."""
    change: Object = {}
    for key in old.keys() | new.keys():
        before, after = old.get(key), new.get(key)
        if before == after:
            continue
        if isinstance(before, dict) and isinstance(after, dict):
            inner = merge_patch(before, after)
            if inner:
                change[key] = inner
        else:
            change[key] = after
    return change


def short_hash(value: Any) -> str:
    """Ten characters that follow from the JSON value alone, of the alphabet of generated names."""
    digest = hashlib.sha256(msgspec.json.encode(value, order="sorted")).digest()
    number = int.from_bytes(digest[:8], "big")
    text = ""
    for _ in range(10):
        number, rest = divmod(number, len(_ALPHABET))
        text += _ALPHABET[rest]
    return text
