"""Status conditions of ClusterPolicy and NVIDIADriver: the pair that scripts wait for, and one per operand.

``Ready`` and ``Error`` are always written together, with the replaced operator's reasons and wordings. A condition
keeps its time of change while its status stays; one without a time has just changed, and ``stamp`` gives it one when
the status is written.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from kgpu.base.plain import items, mapping, text
from kgpu.base.printable import one_line, printable
from kgpu.formats import names
from kgpu.formats.crd.status import MAX_REFUSAL, MAX_REFUSED_NAME
from kgpu.operator.model import ClusterNode, Object

READY: Final = "Ready"
ERROR: Final = "Error"
FIELDS_PROVIDED: Final = "FieldsProvided"
REFUSED: Final = "refused"
MAX_REFUSED: Final = 20
STATE_READY: Final = "ready"
STATE_NOT_READY: Final = "notReady"
STATE_IGNORED: Final = "ignored"
STATE_DISABLED: Final = "disabled"
MAX_MESSAGE: Final = 32_000
"""Characters; the API server takes 32,768."""


def condition(kind: str, status: str, reason: str, message: str) -> Object:
    """One condition, without a time; its message is made printable and cut to ``MAX_MESSAGE``."""
    shown = printable(message)
    cut = shown if len(shown) <= MAX_MESSAGE else shown[: MAX_MESSAGE - 1] + "…"
    return {"type": kind, "status": status, "reason": reason, "message": cut}


def success(reason: str, message: str) -> list[Object]:
    """``Ready`` and ``Error`` of a policy or driver that is ready."""
    return [condition(READY, "True", reason, message), condition(ERROR, "False", READY, "")]


def failure(reason: str, message: str) -> list[Object]:
    """``Ready`` and ``Error`` of a policy or driver that is not ready."""
    return [condition(READY, "False", ERROR, message), condition(ERROR, "True", reason, message)]


def provided(unbuilt: Collection[str], what: str = "policy") -> Object:
    """The condition whether kgpu provides all that ``what`` asks for. ``unbuilt`` are the fields that it does not
    provide; they hold nothing up.
    """
    if not unbuilt:
        return condition(FIELDS_PROVIDED, "True", "Provided", f"kgpu can do all that the {what} asks for")
    fields = ", ".join(sorted(unbuilt))
    return condition(FIELDS_PROVIDED, "Unknown", "NotProvided", f"kgpu can't do what these ask for: {fields}")


def status(state: str, conditions: Iterable[Object], *, namespace: str, generation: int, before: Any = None) -> Object:
    """A whole status; times of conditions that stay are taken from the status ``before``."""
    old = {text(entry.get("type")): entry for entry in map(mapping, items(mapping(before).get("conditions")))}
    written = []
    for entry in conditions:
        new = {**entry, "observedGeneration": generation}
        last = old.pop(entry["type"], None)
        if last is not None and last.get("status") == entry["status"] and text(last.get("lastTransitionTime")):
            new["lastTransitionTime"] = last["lastTransitionTime"]
        written.append(new)
    return {"state": state, "namespace": namespace, "conditions": written}


def counts(total: int, gpu_nodes: Collection[ClusterNode]) -> Object:
    """``status.nodes``: how many Nodes there are, how many have GPUs, and how many of these are validated."""
    validated = sum(
        (verdict := node.conditions.get(names.VALIDATED_CONDITION)) is not None and verdict.status == "True"
        for node in gpu_nodes
    )
    return {"total": total, "gpu": len(gpu_nodes), "validated": validated}


def refused(errors: Mapping[str, str]) -> Object:
    """The status field with objects that the API server refuses, from ``errors`` by ``Kind/name``; {} without any."""
    rows = [_refusal(name, message) for name, message in sorted(errors.items())[:MAX_REFUSED]]
    return {REFUSED: rows} if rows else {}


def refusals(status: Object) -> dict[str, str]:
    """Read what ``refused`` wrote: messages by ``Kind/name``."""
    entries = map(mapping, items(status.get(REFUSED))[:MAX_REFUSED])
    rows = [_refusal(text(row.get("object")), text(row.get("message"))) for row in entries]
    return {row["object"]: row["message"] for row in rows}


def _refusal(name: str, message: str) -> Object:
    return {"object": one_line(name, MAX_REFUSED_NAME), "message": one_line(message, MAX_REFUSAL)}


def stamp(status: Object, now: str) -> Object:
    """Return the status with ``now`` (RFC 3339, in seconds) as lastTransitionTime of every condition without one."""
    stamped = copy.deepcopy(status)
    for entry in stamped.get("conditions", []):
        entry.setdefault("lastTransitionTime", now)
    return stamped
