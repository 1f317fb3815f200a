"""The pod that installs and loads the driver of a node, as far as an upgrade depends on it. Pure.

A driver takes its time: its image is large, and its modules may be compiled on the node. So what counts as trouble is
what does not get better by waiting: a container that ends again and again, or one that can't be started.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kgpu.base.plain import items, mapping, number, text
from kgpu.base.printable import one_line
from kgpu.formats import names
from kgpu.formats.driver_revision import DriverRevision, revision_of

MOST_ENDS: Final = 2
"""How often the driver's own containers may have ended: the manager that unloads, and the one that installs."""
MOST_ENDS_OF_OTHERS: Final = 10
"""How often others may have: they wait for the driver, each in its own way."""
NOT_STARTED_SECONDS: Final = 120.0
"""How long the kubelet may fail to start a container: a registry may be away for a moment."""
CRASHES: Final = "CrashesAgain"
MAX_SAID: Final = 500
_MAX_NAME: Final = 63
_OWN: Final = frozenset({names.DRIVER_MANAGER_CONTAINER, names.DRIVER_CONTAINER})
_CANT_START: Final = {
    "ErrImagePull": "ImageNotPulled",
    "ImagePullBackOff": "ImageNotPulled",
    "ErrImageNeverPull": "ImageNotPulled",
    "RegistryUnavailable": "ImageNotPulled",
    "InvalidImageName": "InvalidImageName",
    "ImageInspectError": "ImageNotPulled",
    "CreateContainerConfigError": "ContainerNotCreated",
    "CreateContainerError": "ContainerNotCreated",
    "RunContainerError": "ContainerNotCreated",
}
"""The kubelet's words for a container that it can't start; those that take turns have one name here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverTrouble:
    """What keeps a driver's pod from being Ready. After ``patience`` seconds with the same ``reason`` it has failed."""

    reason: str
    why: str
    patience: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverPod:
    """A driver's pod. ``daemon_set`` is its controller, "" without one. ``doing`` is what it does or waits for, ""
    once it is ``ready``; ``trouble`` is None unless waiting does not help.
    """

    namespace: str
    name: str
    uid: str
    node: str
    daemon_set: str
    created: str = ""
    revision: DriverRevision = field(default_factory=DriverRevision)
    ready: bool = False
    ending: bool = False
    doing: str = ""
    trouble: DriverTrouble | None = None


def read_driver_pod(obj: Mapping[str, Any]) -> DriverPod:
    """Read a Pod from the API server."""
    metadata, status = mapping(obj.get("metadata")), mapping(obj.get("status"))
    owner = next((row for row in map(mapping, items(metadata.get("ownerReferences"))) if row.get("controller")), {})
    conditions = {text(row.get("type")): row.get("status") for row in map(mapping, items(status.get("conditions")))}
    containers = [_read_container(row) for row in _statuses(status)]
    ready = conditions.get("Ready") == "True"
    return DriverPod(
        namespace=text(metadata.get("namespace")), name=text(metadata.get("name")), uid=text(metadata.get("uid")),
        node=text(mapping(obj.get("spec")).get("nodeName")),
        daemon_set=text(owner.get("name")) if owner.get("kind") == "DaemonSet" else "",
        created=text(metadata.get("creationTimestamp")), revision=revision_of(obj), ready=ready,
        ending=bool(metadata.get("deletionTimestamp")), doing="" if ready else _doing(containers, status),
        trouble=None if ready else _trouble(containers),
    )  # fmt: skip


def driver_on(pods: Iterable[DriverPod], node: str, daemon_set: str) -> DriverPod | None:
    """The pod that holds a node's driver: the newest that nobody has deleted, otherwise the newest; None without one.

    One of another DaemonSet, or of none any more, comes first: it has to go before that of ``daemon_set`` can be there.
    """
    there = [pod for pod in pods if pod.node == node]
    return max(
        there, key=lambda pod: (not pod.ending, pod.daemon_set != daemon_set, pod.created, pod.uid), default=None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Container:
    name: str
    ends: int
    waits: str
    said: str
    code: int | None
    running: bool
    done: bool
    ready: bool


def _statuses(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Those of init containers first, as that is the order in which they run."""
    rows = (*items(status.get("initContainerStatuses")), *items(status.get("containerStatuses")))
    return [mapping(row) for row in rows]


def _read_container(row: Mapping[str, Any]) -> _Container:
    state = mapping(row.get("state"))
    waiting, ended = mapping(state.get("waiting")), mapping(state.get("terminated"))
    last = ended or mapping(mapping(row.get("lastState")).get("terminated"))
    code = last.get("exitCode")
    said = text(last.get("message")) or text(last.get("reason"))
    reason = text(waiting.get("reason"))
    return _Container(
        name=one_line(text(row.get("name")), _MAX_NAME), ends=max(0, number(row.get("restartCount"))),
        waits=reason,
        said=one_line((text(waiting.get("message")) or reason) if reason in _CANT_START else said, MAX_SAID),
        code=code if type(code) is int else None, running="running" in state, done=ended.get("exitCode") == 0,
        ready=row.get("ready") is True,
    )  # fmt: skip


def _trouble(containers: Iterable[_Container]) -> DriverTrouble | None:
    """The worst of the containers' troubles."""
    found: list[DriverTrouble] = []
    for container in containers:
        if container.ends > (MOST_ENDS if container.name in _OWN else MOST_ENDS_OF_OTHERS):
            code = f" with exit code {container.code}" if container.code is not None else ""
            said = f": {container.said}" if container.said else "; `kubectl logs --previous` has what it said"
            why = f"its container {container.name} has ended {container.ends} times, last{code}{said}"
            found.append(DriverTrouble(reason=CRASHES, why=why))
        elif container.waits in _CANT_START:
            why = f"its container {container.name} can't be started: {container.said}"
            found.append(DriverTrouble(reason=_CANT_START[container.waits], why=why, patience=NOT_STARTED_SECONDS))
    return min(found, key=lambda trouble: trouble.patience, default=None)


def _doing(containers: Iterable[_Container], status: Mapping[str, Any]) -> str:
    """What the first container does that is neither done nor ready."""
    for container in containers:
        if container.done or (container.ready and container.running):
            continue
        if container.running:
            return f"{container.name} is at work"
        return f"{container.name} waits: {one_line(container.waits or 'to be started', MAX_SAID)}"
    return f"it is {one_line(text(status.get('phase')) or 'Pending', MAX_SAID)}"
