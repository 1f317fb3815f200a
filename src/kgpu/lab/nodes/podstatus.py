"""The status of a pod as the kubelet (v1.35) writes it: phase, conditions, container statuses; pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from kgpu.kube.port import Object
from kgpu.lab.nodes.objects import stamp
from kgpu.lab.nodes.podstate import ContainerRole, Phase, PodContainer, PodState, qos_class

OWNED: Final = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
MAX_BACKOFF_TEXT_S: Final = 300


def terminated(container_id: str, *, code: int, reason: str, message: str, started: float, finished: float) -> Object:
    """The ``terminated`` state of a container."""
    state: Object = {
        "containerID": full_id(container_id),
        "exitCode": code,
        "finishedAt": stamp(finished) if finished else None,
        "message": message,
        "reason": reason,
        "startedAt": stamp(started) if started else None,
    }
    return {key: value for key, value in state.items() if value not in {None, ""}}


def full_id(container_id: str) -> str:
    """With the runtime's name before it."""
    return f"containerd://{container_id}" if container_id else ""


def container_ids(pod: Object) -> list[str]:
    """The ids of the containers that a pod's status tells of, without the runtime's name."""
    status = pod.get("status") or {}
    rows = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return [str(row["containerID"]).rpartition("/")[2] for row in rows if row.get("containerID")]


def image_id(image: str) -> str:
    """A digest that follows from the name."""
    import hashlib

    return f"sha256:{hashlib.sha256(image.encode()).hexdigest()}"


def container_status(container: PodContainer) -> Object:
    """One entry of ``containerStatuses``."""
    state: Object
    if container.phase is Phase.RUNNING:
        state = {"running": {"startedAt": stamp(container.started)}}
    elif container.phase is Phase.ENDED and container.ended is not None:
        state = {"terminated": container.ended}
    else:
        waiting = {"reason": container.reason, "message": container.message}
        state = {"waiting": {key: value for key, value in waiting.items() if value}}
    last = container.ended if container.phase is not Phase.ENDED else container.previous
    ready = container.ready if container.kind is not ContainerRole.INIT else container.succeeded
    status: Object = {
        "image": container.image,
        "imageID": image_id(container.image) if container.was_started else "",
        "lastState": {"terminated": last} if last is not None else {},
        "name": container.name,
        "ready": ready,
        "restartCount": container.restarts,
        "started": container.started_ok and container.phase is Phase.RUNNING,
        "state": state,
    }
    if container.was_started:
        status["containerID"] = full_id(container.id)
        status["resources"] = container.spec.get("resources") or {}
        mounts = container.spec.get("volumeMounts") or ()
        if mounts:
            status["volumeMounts"] = [_volume_mount(mount) for mount in mounts]
        status["user"] = {"linux": {"gid": 0, "supplementalGroups": [0], "uid": 0}}
    return status


def _volume_mount(mount: Object) -> Object:
    status: Object = {"mountPath": mount["mountPath"], "name": mount["name"]}
    if mount.get("readOnly"):
        status |= {"readOnly": True, "recursiveReadOnly": "Disabled"}
    return status


def conditions(state: PodState, now: float) -> list[Object]:
    """The kubelet's conditions; the time of one that has not changed stays."""
    inits = [container for container in state.containers if container.kind is not ContainerRole.MAIN]
    counted = [container for container in state.containers if container.kind is not ContainerRole.INIT]
    ready = _ready(state, counted)
    gates = _gates(state) if ready[0] == "True" else ready
    wanted = {
        "PodReadyToStartContainers": ("True" if state.sandbox else "False", "", ""),
        "Initialized": _initialized(state, inits),
        "Ready": gates,
        "ContainersReady": ready,
        "PodScheduled": ("True", "", ""),
    }
    old = {condition["type"]: condition for condition in (state.pod.get("status") or {}).get("conditions") or ()}
    generation = state.pod["metadata"].get("generation")
    rows = []
    for kind, (status, reason, message) in wanted.items():
        before = old.get(kind)
        since = before["lastTransitionTime"] if before and before.get("status") == status else stamp(now)
        # A strategic patch keeps what it does not name: reason and message of before must be named to go.
        row: Object = {"type": kind, "status": status, "lastTransitionTime": since, "lastProbeTime": None}
        row |= {"reason": reason or None, "message": message or None}
        if generation is not None:
            row["observedGeneration"] = generation
        rows.append(row)
    return rows


def _go_list(names: Iterable[str]) -> str:
    return f"[{' '.join(names)}]"


def _initialized(state: PodState, inits: list[PodContainer]) -> tuple[str, str, str]:
    open_ones = [
        container.name
        for container in inits
        if not (container.started_ok if container.kind is ContainerRole.SIDECAR else container.succeeded)
    ]  # fmt: skip
    if state.phase == "Succeeded":
        return ("True", "PodCompleted", "")
    if state.initialized or not open_ones:
        return ("True", "", "")
    return ("False", "ContainersNotInitialized", f"containers with incomplete status: {_go_list(open_ones)}")


def _ready(state: PodState, counted: list[PodContainer]) -> tuple[str, str, str]:
    if state.phase in {"Succeeded", "Failed"}:
        return ("False", {"Succeeded": "PodCompleted", "Failed": "PodFailed"}[state.phase], "")
    unready = [container.name for container in counted if not container.ready]
    if unready:
        return ("False", "ContainersNotReady", f"containers with unready status: {_go_list(unready)}")
    return ("True", "", "")


def _gates(state: PodState) -> tuple[str, str, str]:
    known = {
        condition["type"]: condition.get("status")
        for condition in (state.pod.get("status") or {}).get("conditions") or ()
    }
    lines = []
    for gate in state.pod["spec"].get("readinessGates") or ():
        kind = gate["conditionType"]
        if kind not in known:
            lines.append(f'corresponding condition of pod readiness gate "{kind}" does not exist.')
        elif known[kind] != "True":
            lines.append(f'the status of pod readiness gate "{kind}" is not "True", but {known[kind]}')
    return ("False", "ReadinessGatesNotReady", ", ".join(lines)) if lines else ("True", "", "")


def pod_status(state: PodState, *, host_ip: str, now: float) -> Object:
    """The status to write; the conditions of others are not in it."""
    status: dict[str, Any] = {
        "phase": state.phase,
        "conditions": conditions(state, now),
        "containerStatuses": [container_status(container) for container in state.of(ContainerRole.MAIN)],
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}],
        "qosClass": qos_class(state.pod),
        "startTime": stamp(state.start),
    }
    inits = [container_status(container) for container in state.containers if container.kind is not ContainerRole.MAIN]
    if inits:
        status["initContainerStatuses"] = inits
    if state.pod_ip:
        # A strategic patch keeps addresses that it does not name: a new sandbox has none of the old one.
        status |= {"podIP": state.pod_ip, "podIPs": [{"$patch": "replace"}, {"ip": state.pod_ip}]}
    if state.reason:
        status["reason"] = state.reason
    if state.message:
        status["message"] = state.message
    generation = state.pod["metadata"].get("generation")
    if generation is not None:
        status["observedGeneration"] = generation
    return status


def rejected(pod: Object, reason: str, message: str) -> Object:
    """The status of a pod that the node does not admit."""
    status: Object = {
        "phase": "Failed",
        "reason": reason,
        "message": f"Pod was rejected: {message}",
        "qosClass": qos_class(pod),
    }
    if pod["metadata"].get("generation") is not None:
        status["observedGeneration"] = pod["metadata"]["generation"]
    return status
