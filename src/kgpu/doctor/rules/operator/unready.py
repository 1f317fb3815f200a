"""Objects of a GPU stack that report themselves as not ready where no other finding could be the reason."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kgpu.base.remedy import Remedy, words
from kgpu.doctor import matching, remedies
from kgpu.doctor.agent_reports import ill
from kgpu.doctor.model import CERTAIN, POSSIBLE, Finding, Level, Place
from kgpu.doctor.objects import Condition, Obj
from kgpu.doctor.rule import rule
from kgpu.doctor.rules.quota.refused import refused
from kgpu.doctor.rules.sharing.time_slicing import no_such_map, wrong_key
from kgpu.doctor.snapshot import Snapshot

_KINDS: Final = ("ClusterPolicy", "NVIDIADriver", "GPUCluster", "DeviceConfig", "ComputeDomain")
_GOOD: Final = re.compile(r"(?:^|[a-z])(?:Ready|Healthy|Available|Validated|Reconciled|Deployed|Applied)$")
"""Conditions that say by False that something is wrong."""
_BAD: Final = re.compile(r"^(?:Error|Errored|Degraded|Failed|Stalled)$")
"""Conditions that say it by True."""
_MEANT: Final = frozenset({"Disabled", "NotProvided", "NotManaged"})
_ASIDE: Final = frozenset({"ignored", "disabled"})
_INVALID: Final = "ValidationError"
"""The reason of the condition Error of a DeviceConfig that can't be followed as it is written."""
_REFUSED: Final = frozenset(
    {"ReconcileFailed", "ApplyFailed", "PrerequisiteNotMet", "PodsNotCreated", "Conflict", "ConflictingNodeSelector"}
    | {"ConfigMapMissing", "ConfigKeyMissing", _INVALID}
)
"""Reasons for which the operator could not make what it wants to make."""
_REFUSAL: Final = re.compile(
    r"admission webhook|failed calling webhook|denied the request|is forbidden|cannot \w+ resource|is invalid:"
    r"|exceeded quota|no matches for kind"
)
_SETTLING: Final = 300.0
_SHOWN: Final = 3


@rule("OBJ-00", "An object of the GPU stack is not ready", Place.CLUSTER, last_resort=True)
def unready(snapshot: Snapshot) -> Iterator[Finding]:
    """The ClusterPolicy, or another object that configures a GPU stack, has a condition that says that it is not ready,
    and neither its pods nor the nodes show why: the finding quotes the condition. Or a DaemonSet of the stack wants
    pods on nodes, none of them is ready, and nobody has seen one that would show why. A DeviceConfig that is not valid
    is told as that at once, whatever else is wrong.
    """
    yield from _without_pods(snapshot)
    for kind in _KINDS:
        for obj in snapshot.all(kind):
            if obj.deleting or obj.text("status.state").lower() in _ASIDE:
                continue
            wrong = _wrong(obj)
            if wrong and not _explained(snapshot, obj, wrong):
                yield _finding(snapshot, obj, wrong)


def _without_pods(snapshot: Snapshot) -> Iterator[Finding]:
    """DaemonSets of the stack without a ready pod and with none to be seen. Whose pods are there, is told by these;
    whose pods are refused, by the refusal.
    """
    lacking = {event.about for event in refused(snapshot)}
    for daemons in snapshot.all("DaemonSet"):
        wanted, ready = (daemons.number(f"status.{field}") for field in ("desiredNumberScheduled", "numberReady"))
        age = snapshot.age(daemons.created)
        if not wanted or ready or (age is not None and age < _SETTLING) or snapshot.pods_of(daemons):
            continue
        if daemons.deleting or ("DaemonSet", *daemons.key) in lacking or not matching.believed(snapshot, daemons):
            continue
        made = int(daemons.number("status.currentNumberScheduled"))
        yield Finding(
            subject=daemons.subject,
            cause=(
                f"{daemons} wants pods on {int(wanted)} nodes and none is ready"
                + (", and its pods were not looked at" if made else ": not one has been made")
            ),
            evidence=tuple(
                daemons.cite(f"status.{field}")
                for field in ("desiredNumberScheduled", "currentNumberScheduled", "numberReady")
            ),
            remedy=(remedies.describe(daemons.namespace, "daemonset", daemons.name),),
            confidence=POSSIBLE,
            since=daemons.created,
        )


def _wrong(obj: Obj) -> list[Condition]:
    """The conditions that report a problem, those about one part before those about the whole."""
    conditions = [
        condition
        for condition in obj.conditions()
        if condition.reason not in _MEANT
        and (
            (condition.status == "False" and _GOOD.search(condition.type))
            or (condition.status == "True" and _BAD.search(condition.type))
        )
    ]
    return sorted(
        conditions,
        key=lambda condition: condition.type in ("Ready", "Available") or _BAD.search(condition.type) is not None,
    )


def _explained(snapshot: Snapshot, obj: Obj, wrong: list[Condition]) -> bool:
    """Whether something is wrong with what the object makes or looks after, of which other rules tell.

    What goes on working is no reason not to be ready, and from no GPU, node or pod does it follow that an object of the
    stack is refused.
    """
    if any(finding.subject == obj.subject for check in (wrong_key, no_such_map) for finding in check(snapshot)):
        return True
    if any(wrong_key(snapshot)):
        return True
    if any(map(_is_refused, wrong)):
        return False
    if ill(snapshot) or any(node.ready is False for node in matching.gpu_nodes(snapshot)):
        return True
    return any(
        not pod.ready and pod.phase != "Succeeded" and matching.is_part(snapshot, pod) for pod in snapshot.pods.values()
    )


def _is_refused(condition: Condition) -> bool:
    return condition.reason in _REFUSED or _REFUSAL.search(condition.message) is not None


def _finding(snapshot: Snapshot, obj: Obj, wrong: list[Condition]) -> Finding:
    invalid = next((condition for condition in wrong if condition.reason == _INVALID), None)
    first = invalid or wrong[0]
    message = ": ".join(word for word in (first.reason, first.message) if word)
    age = snapshot.age(first.since)
    young = age is not None and age < _SETTLING and invalid is None
    space = ("-n", obj.namespace) if obj.namespace else ()
    shown = Remedy("kubectl {}", words(*space, "describe", obj.kind.lower(), obj.name))
    return Finding(
        subject=obj.subject,
        cause=f"{obj} calls itself not ready ({first.type}={first.status})" + (f": {message}" if message else ""),
        evidence=tuple(condition.cite() for condition in wrong[:_SHOWN]),
        remedy=(
            (remedies.edit(obj.namespace, obj.kind.lower(), obj.name), shown)
            if invalid is not None and obj.namespace
            else (shown, Remedy("kgpu status"))
        ),
        confidence=CERTAIN if invalid is not None else POSSIBLE,
        level=Level.WAIT if young else Level.PROBLEM,
        expected="5 minutes after a change; a driver that is built takes up to 20" if young else "",
        since=first.since,
    )
