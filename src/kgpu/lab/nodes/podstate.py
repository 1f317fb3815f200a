"""What a simulated kubelet knows of a pod's containers, and small questions about a pod's spec; data only."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from kgpu.kube.port import Object

ALWAYS: Final = "Always"
ON_FAILURE: Final = "OnFailure"
NEVER: Final = "Never"
DEFAULT_GRACE_S: Final = 30
CREATING: Final = "ContainerCreating"
INITIALIZING: Final = "PodInitializing"
CRASH_LOOP: Final = "CrashLoopBackOff"


class ContainerRole(enum.Enum):
    """What role a container has in its pod."""

    INIT = "init"
    SIDECAR = "sidecar"
    MAIN = "main"


class Phase(enum.Enum):
    """Where a container is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "terminated"


@dataclass(slots=True, kw_only=True)
class PodContainer:
    """One container of a pod as it is now. Times in seconds since the epoch.

    ``ended`` is the ``terminated`` state of the last run as the API has it; ``previous`` that of the run before it.
    ``started_ok``: its startup probe has passed; ``ready``: also its readiness probe. ``failures`` counts ends that
    led to a back-off.
    """

    name: str
    kind: ContainerRole
    spec: Object
    phase: Phase = Phase.WAITING
    reason: str = CREATING
    message: str = ""
    id: str = ""
    restarts: int = 0
    started: float = 0.0
    finished: float = 0.0
    ended: Object | None = None
    previous: Object | None = None
    started_ok: bool = False
    ready: bool = False
    backoff: float = 0.0
    not_before: float = 0.0
    killing: str = ""
    former: bool = False
    """Its last run was before the machine's reboot, in a sandbox that is gone: the pod begins anew."""

    @property
    def image(self) -> str:
        """The image's name."""
        return str(self.spec.get("image") or "")

    @property
    def failed(self) -> bool:
        """Its last run ended with another exit code than 0."""
        return self.ended is not None and self.ended["exitCode"] != 0

    @property
    def succeeded(self) -> bool:
        """Its last run ended with exit code 0."""
        return self.ended is not None and self.ended["exitCode"] == 0

    @property
    def was_started(self) -> bool:
        """It ran at least once."""
        return bool(self.id)


@dataclass(slots=True, kw_only=True)
class PodState:
    """A pod and its containers, in the order of the spec, init containers first."""

    pod: Object
    containers: list[PodContainer] = field(default_factory=list)
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    start: float = 0.0
    pod_ip: str = ""
    sandbox: bool = False
    initialized: bool = False

    def of(self, kind: ContainerRole) -> list[PodContainer]:
        """The containers of one kind."""
        return [container for container in self.containers if container.kind is kind]

    @property
    def restart_policy(self) -> str:
        return str(self.pod["spec"].get("restartPolicy") or ALWAYS)

    @property
    def terminal(self) -> bool:
        """Nothing of it will run again."""
        return self.phase in {"Succeeded", "Failed"}

    @property
    def deleting(self) -> bool:
        """The API server has been told to delete it."""
        return bool(self.pod["metadata"].get("deletionTimestamp"))

    @property
    def uid(self) -> str:
        return str(self.pod["metadata"]["uid"])

    @property
    def full_name(self) -> str:
        """``NAME_NAMESPACE(UID)``, as the kubelet words it."""
        metadata = self.pod["metadata"]
        return f"{metadata['name']}_{metadata['namespace']}({metadata['uid']})"


def make_containers(pod: Object) -> list[PodContainer]:
    """The containers of a new pod; those that wait for init containers say so."""
    spec = pod["spec"]
    containers = []
    for container in spec.get("initContainers") or ():
        kind = ContainerRole.SIDECAR if container.get("restartPolicy") == ALWAYS else ContainerRole.INIT
        containers.append(PodContainer(name=container["name"], kind=kind, spec=container, reason=INITIALIZING))
    waiting = INITIALIZING if containers else CREATING
    containers += [
        PodContainer(name=container["name"], kind=ContainerRole.MAIN, spec=container, reason=waiting)
        for container in spec["containers"]
    ]
    return containers


def device_names(pod: Object) -> set[str]:
    """The resources of device plugins that containers ask for: those with a domain that is not Kubernetes' own."""
    return {
        name
        for container in (*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"])
        for name in (container.get("resources") or {}).get("limits") or ()
        if is_extended_name(name)
    }


def is_extended_name(name: str) -> bool:
    """Whether a resource's name is one that plugins may offer."""
    domain, slash, rest = name.partition("/")
    if domain == "kubernetes.io" or domain.endswith(".kubernetes.io") or domain.startswith("requests."):
        return False
    return bool(slash and domain and rest)


def grace_seconds(pod: Object) -> int:
    """How long its containers have between TERM and KILL."""
    metadata = pod["metadata"]
    if metadata.get("deletionGracePeriodSeconds") is not None:
        return int(metadata["deletionGracePeriodSeconds"])
    seconds = pod["spec"].get("terminationGracePeriodSeconds")
    return DEFAULT_GRACE_S if seconds is None else int(seconds)


def qos_class(pod: Object) -> str:
    """Guaranteed, Burstable or BestEffort, from CPU and memory of every container."""
    if known := (pod.get("status") or {}).get("qosClass"):
        return str(known)
    rows = list(_resources(pod))
    nonempty = [row for row in rows if row["requests"] or row["limits"]]
    if not nonempty:
        return "BestEffort"
    guaranteed = all(
        {"cpu", "memory"} <= set(row["limits"])
        and all(row["requests"].get(k, v) == v for k, v in row["limits"].items())
        for row in rows
    )
    return "Guaranteed" if guaranteed else "Burstable"


def _resources(pod: Object) -> Iterator[dict[str, dict[str, Any]]]:
    spec = pod["spec"]
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        resources = container.get("resources") or {}
        yield {
            kind: {k: str(v) for k, v in (resources.get(kind) or {}).items() if k in {"cpu", "memory"}}
            for kind in ("requests", "limits")
        }
