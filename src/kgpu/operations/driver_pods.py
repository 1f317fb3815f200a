"""The pod that installs and loads the driver of a node, as far as an upgrade depends on it. Pure.

A driver takes its time: its image is large, and its modules may be compiled on the node. So what counts as trouble is
what does not get better by waiting: a container that ends again and again, or one that can't be started.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kgpu.base.plain import items, mapping, number, text
from kgpu.base.printable import last_words, one_line
from kgpu.formats import names
from kgpu.formats.driver_revision import DriverRevision, revision_of
from kgpu.formats.pod_origin import controller_of, node_of

MOST_ENDS: Final = 2
"""How often the driver's own containers may have ended: the manager that unloads, and the one that installs."""
MOST_ENDS_OF_OTHERS: Final = 10
"""How often others may have: they wait for the driver, each in its own way."""
NOT_STARTED_SECONDS: Final = 120.0
"""How long the kubelet may fail to start a container: a registry may be away for a moment."""
CRASHES: Final = "CrashesAgain"
MAX_SAID: Final = 500
MAX_LAST_WORDS: Final = 250
"""Characters of what a container said before it ended: others name it, too, in a part of a line."""
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
    """A driver's pod. ``daemon_set`` is its controller (of another kind: ``kind/name``), "" without one. ``placed``: it
    is on the node, and not only meant for it. ``doing`` is what it does or waits for, "" once it is ``ready``;
    ``ends`` is how often the driver's own containers have ended and were started again;
    ``trouble`` is None unless waiting does not help.
    """

    namespace: str
    name: str
    uid: str
    node: str
    daemon_set: str
    created: str = ""
    revision: DriverRevision = field(default_factory=DriverRevision)
    placed: bool = True
    ready: bool = False
    ending: bool = False
    doing: str = ""
    ends: int = 0
    trouble: DriverTrouble | None = None


def read_driver_pod(obj: Mapping[str, Any]) -> DriverPod:
    """Read a Pod from the API server."""
    metadata, status = mapping(obj.get("metadata")), mapping(obj.get("status"))
    node, placed = node_of(obj)
    conditions = {text(row.get("type")): row.get("status") for row in map(mapping, items(status.get("conditions")))}
    containers = [_read_container(row) for row in _statuses(status)]
    ready = conditions.get("Ready") == "True"
    return DriverPod(
        namespace=text(metadata.get("namespace")), name=text(metadata.get("name")), uid=text(metadata.get("uid")),
        node=node, placed=placed, daemon_set=controller_of(obj),
        created=text(metadata.get("creationTimestamp")), revision=revision_of(obj), ready=ready,
        ending=bool(metadata.get("deletionTimestamp")), doing="" if ready else _doing(containers, status),
        ends=sum(row.ends for row in containers if row.name in _OWN), trouble=None if ready else _trouble(containers),
    )  # fmt: skip


def driver_on(pods: Iterable[DriverPod], node: str, daemon_set: str) -> DriverPod | None:
    """The pod that holds a node's driver, or is to: the newest that nobody has deleted, otherwise the newest; None
    without one.

    Where none of the DaemonSet is there, it is the driver's pod of another DaemonSet, or of none any more: that has to
    go first, as they repel each other. The last choice is one that is meant for the node and has no place there.
    """
    found = [
        pod for pod in pods
        if pod.node == node and (pod.daemon_set == daemon_set or (pod.placed and _is_of_before(pod)))
    ]  # fmt: skip
    return max(
        found, key=lambda pod: (pod.placed, pod.daemon_set == daemon_set, not pod.ending, pod.created, pod.uid),
        default=None,
    )  # fmt: skip


def _is_of_before(pod: DriverPod) -> bool:
    """Whether it is a driver's pod of another DaemonSet, or one that nobody owns any more."""
    return "/" not in pod.daemon_set and bool(pod.revision.image)


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
    said = last_words(text(last.get("message")), MAX_LAST_WORDS) or one_line(text(last.get("reason")), MAX_LAST_WORDS)
    reason = text(waiting.get("reason"))
    return _Container(
        name=one_line(text(row.get("name")), _MAX_NAME), ends=max(0, number(row.get("restartCount"))),
        waits=reason,
        said=one_line(text(waiting.get("message")) or reason, MAX_SAID) if reason in _CANT_START else said,
        code=code if type(code) is int else None, running="running" in state, done=ended.get("exitCode") == 0,
        ready=row.get("ready") is True,
    )  # fmt: skip


def _trouble(containers: Iterable[_Container]) -> DriverTrouble | None:
    """The worst of the containers' troubles."""
    found: list[DriverTrouble] = []
    for container in containers:
        if container.ends > (MOST_ENDS if container.name in _OWN else MOST_ENDS_OF_OTHERS):
            why = f"its container {container.name} has ended {container.ends} times, last{_last_words(container)}"
            found.append(DriverTrouble(reason=CRASHES, why=why))
        elif container.waits in _CANT_START:
            why = f"its container {container.name} can't be started: {container.said}"
            found.append(DriverTrouble(reason=_CANT_START[container.waits], why=why, patience=NOT_STARTED_SECONDS))
    return min(found, key=lambda trouble: trouble.patience, default=None)


def _last_words(container: _Container) -> str:
    code = f" with exit code {container.code}" if container.code is not None else ""
    said = f": {container.said}" if container.said else "; `kubectl logs --previous` has what it said"
    return code + said


def _doing(containers: Iterable[_Container], status: Mapping[str, Any]) -> str:
    """What the first container does that is neither done nor ready."""
    for container in containers:
        if container.done or (container.ready and container.running):
            continue
        if container.running:
            return f"{container.name} is at work"
        if container.ends or container.code:
            return f"{container.name} has ended{_last_words(container)}"
        return f"{container.name} waits: {one_line(container.waits or 'to be started', MAX_SAID)}"
    return f"it is {one_line(text(status.get('phase')) or 'Pending', MAX_SAID)}"
