"""The CRD controllers' part of a CRD's status: accepted names, NamesAccepted, Established, Terminating."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any, Final

from kgpu.lab.embedded.core.model import copied
from kgpu.lab.embedded.status import Object, shown

FINALIZER: Final = "customresourcecleanup.apiextensions.k8s.io"
# Name in spec.names -> the reason when another CRD of the group has it, and with which names it competes.
_NAMES: Final = (
    ("plural", "PluralConflict", "resources"),
    ("singular", "SingularConflict", "resources"),
    ("shortNames", "ShortNamesConflict", "resources"),
    ("kind", "KindConflict", "kinds"),
    ("listKind", "ListKindConflict", "kinds"),
)


def now() -> str:
    return f"{dt.datetime.now(dt.UTC):%Y-%m-%dT%H:%M:%SZ}"


def find(definition: Object, kind: str) -> Object | None:
    """The condition of that type."""
    conditions = (definition.get("status") or {}).get("conditions") or ()
    return next((condition for condition in conditions if condition.get("type") == kind), None)


def is_true(definition: Object, kind: str) -> bool:
    condition = find(definition, kind)
    return condition is not None and condition.get("status") == "True"


def set_condition(definition: Object, kind: str, status: str, reason: str, message: str) -> None:
    """Add or change it, in place; the time is that of the last change of ``status``."""
    rows = definition.setdefault("status", {}).get("conditions") or []
    old = next((condition for condition in rows if condition.get("type") == kind), None)
    when = old["lastTransitionTime"] if old and old.get("status") == status and "lastTransitionTime" in old else now()
    row = {"type": kind, "status": status, "lastTransitionTime": when, "reason": reason, "message": message}
    definition["status"]["conditions"] = (
        [row if condition is old else condition for condition in rows] if old else [*rows, row]
    )


def _taken(others: Iterable[Object]) -> dict[str, set[str]]:
    names_in_use: dict[str, set[str]] = {"resources": set(), "kinds": set()}
    for definition in others:
        names = (definition.get("status") or {}).get("acceptedNames") or {}
        names_in_use["resources"] |= {
            names.get("plural", ""),
            names.get("singular", ""),
            *(names.get("shortNames") or ()),
        }
        names_in_use["kinds"] |= {names.get("kind", ""), names.get("listKind", "")}
    return names_in_use


def _conflicts(wanted: Any, accepted: Any, in_use: set[str]) -> list[str]:
    new = [name for name in wanted if name not in (accepted or ())] if isinstance(wanted, list) else [wanted]
    return [f"{shown(name)} is already in use" for name in new if name and name != accepted and name in in_use]


def update(definition: Object, others: Iterable[Object]) -> Object | None:
    """A copy with the status as the controllers would set it; None when there is nothing to write.

    ``others`` are the group's other CRDs. Names are accepted one by one; a name in use elsewhere isn't changed.
    """
    names, status = definition["spec"]["names"], definition.get("status") or {}
    before = status.get("acceptedNames") or {}
    in_use = _taken(others)
    accepted = {"plural": before.get("plural", ""), "kind": before.get("kind", "")} | before
    refused = ("", "")
    for name, reason, pool in _NAMES:
        wanted = names.get(name)
        complaints = _conflicts(wanted, before.get(name), in_use[pool])
        if complaints:
            words = complaints[0] if len(complaints) == 1 else f"[{', '.join(complaints)}]"
            refused = (reason, words)
        elif wanted:
            accepted[name] = wanted
        else:
            accepted.pop(name, None)
    if names.get("categories"):
        accepted["categories"] = names["categories"]
    else:
        accepted.pop("categories", None)
    changed = copied(definition)
    changed.setdefault("status", {})["acceptedNames"] = accepted
    if refused[0]:
        set_condition(changed, "NamesAccepted", "False", *refused)
        if not is_true(definition, "Established"):
            set_condition(changed, "Established", "False", "NotAccepted", "not all names are accepted")
    else:
        set_condition(changed, "NamesAccepted", "True", "NoConflicts", "no conflicts found")
        if not is_true(definition, "Established"):
            words = "the initial names have been accepted"
            set_condition(changed, "Established", "True", "InitialNamesAccepted", words)
    return changed if changed["status"] != status else None


def mark_dying(definition: Object) -> None:
    """Add the finalizer and the Terminating condition of a first DELETE, in place."""
    finalizers = definition["metadata"].setdefault("finalizers", [])
    if FINALIZER not in finalizers:
        finalizers.append(FINALIZER)
    words = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon"
    set_condition(definition, "Terminating", "True", "InstanceDeletionPending", words)
