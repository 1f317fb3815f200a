"""What ``kgpu status`` says to whoever may read one namespace alone: its pods with accelerators, and its quotas."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kgpu.base.printable import counted, in_columns, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kgpu.doctor.kinds import Pod
    from kgpu.doctor.snapshot import Snapshot
    from kgpu.doctor.sources.listing import Api
    from kgpu.quota.model import QuotaRow

READS: Final = ("Pod", "ResourceQuota", "LimitRange", "ResourceClaim")
_MOST_ROWS: Final = 40
_ROOM: Final = 300
"""Characters of somebody's reason for waiting."""
_UNSEEN: Final = (
    "nodes, operands and drivers (you may not list nodes; docs/how-to/doctor-rights.yaml has the rights to see them)"
)
_HEAD: Final = ("POD", "ASKS FOR", "STATE", "NODE")


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantPod:
    """A pod that asks for accelerators: by resource how many, and of claims how many. ``why``: what it waits for."""

    name: str
    devices: dict[str, int]
    claims: int
    state: str
    node: str
    why: str = ""

    @property
    def asks(self) -> str:
        parts = [f"{many} {name}" for name, many in sorted(self.devices.items())]
        return ", ".join((*parts, *((counted(self.claims, "claim"),) if self.claims else ())))

    @property
    def well(self) -> bool:
        return self.state == "Running"


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantStatus:
    """A namespace as its owner sees it."""

    namespace: str
    pods: tuple[TenantPod, ...]
    quotas: tuple[QuotaRow, ...]

    @property
    def ready(self) -> bool:
        """Whether every pod that asks for accelerators runs."""
        return all(pod.well for pod in self.pods)

    def text(self) -> str:
        """For a terminal: at most 40 pods, those that wait first."""
        return "\n".join((*self.table(), *self._lines()))

    def table(self) -> tuple[str, ...]:
        """How many there are and what they hold, and a row for each."""
        return self._headline(), *self._rows()

    def _headline(self) -> str:
        if not self.pods:
            return f"Namespace {self.namespace}: no pod asks for accelerators"
        runs = [pod for pod in self.pods if pod.well]
        held: Counter[str] = Counter()
        for pod in self.pods:
            held.update(pod.devices if pod.node else {})
        holding = ", ".join(f"{many} {name}" for name, many in sorted(held.items()))
        words = f"Namespace {self.namespace}: {len(runs)} of {counted(len(self.pods), 'pod')} with accelerators ready"
        return one_line(words + (f"; they hold {holding}" if holding else ""), _ROOM)

    @property
    def _ordered(self) -> list[TenantPod]:
        return sorted(self.pods, key=lambda pod: (pod.well, pod.name))

    def _rows(self) -> Iterator[str]:
        ordered = self._ordered
        if ordered:
            rows = [(pod.name, pod.asks, pod.state, pod.node or "-") for pod in ordered[:_MOST_ROWS]]
            yield from in_columns([_HEAD, *([one_line(cell, 80) for cell in row] for row in rows)])
        if len(ordered) > _MOST_ROWS:
            yield f"and {counted(len(ordered) - _MOST_ROWS, 'more pod')}; kgpu status -o json has them all"

    def _lines(self) -> Iterator[str]:
        for row in self.quotas:
            if row.hard is not None:
                full = " (used up)" if row.full else ""
                words = f"quota {row.quota}: {row.used or 0} of {row.hard} {row.resource} used{full}"
                yield one_line(words, _ROOM)
        for pod in [pod for pod in self._ordered if not pod.well][:_MOST_ROWS]:
            yield one_line(f"✘ pod {pod.name}: {pod.why or pod.state}", 2 * _ROOM)
            yield f"    to do: {one_line(f'kgpu doctor pod {self.namespace}/{pod.name}', _ROOM)}"
        yield f"not known: {_UNSEEN}"

    def data(self) -> dict[str, Any]:
        """For programs."""
        return {
            "ready": self.ready,
            "namespace": self.namespace,
            "pods": [
                {"name": pod.name, "devices": pod.devices, "claims": pod.claims, "state": pod.state,
                 "node": pod.node or None, "why": pod.why or None}
                for pod in self.pods
            ],
            "quotas": [
                {"resource": row.resource, "quota": row.quota, "hard": row.hard, "used": row.used}
                for row in self.quotas if row.hard is not None
            ],
            "unread": [_UNSEEN],
        }  # fmt: skip


async def may_list_nodes(api: Api) -> bool:
    """Whether a list of nodes is not refused; it costs none."""
    from kgpu.kube.port import NODES, KubeRefusedError, Selector

    try:
        await api.list(NODES, selector=Selector.named("-"))
    except KubeRefusedError:
        return False
    return True


async def read_tenant(api: Api, namespace: str) -> TenantStatus:
    """Ask for a namespace alone. Raises KubeError where its pods may not be listed either."""
    from kgpu.base.errors import KubeError
    from kgpu.doctor.read_kinds import KINDS
    from kgpu.doctor.sources.live import collect_objects
    from kgpu.kube.port import KubeRefusedError

    wanted = [row for row in KINDS if row.resource.kind in READS]
    try:
        return tenant_status(await collect_objects(api, wanted, namespace=namespace), namespace)
    except KubeRefusedError as error:
        raise KubeError(
            f"you may list neither nodes nor the pods of namespace {namespace}: {error.what}",
            "the right to read the cluster (docs/how-to/doctor-rights.yaml), or a namespace of yours",
            "name one with -n",
        ) from error


def tenant_status(snapshot: Snapshot, namespace: str) -> TenantStatus:
    """Of what was seen in a namespace. Pods that have ended hold nothing and are left out."""
    from kgpu.cli._cluster_objects import objects_of
    from kgpu.doctor.matching import uses_accelerators
    from kgpu.quota.plan import QuotaBook, rows

    pods = [
        _pod(pod)
        for pod in snapshot.pods.values()
        if pod.namespace == namespace and not pod.ended and uses_accelerators(pod)
    ]
    quotas = rows(QuotaBook(objects_of(snapshot, READS)), namespace)
    return TenantStatus(
        namespace=namespace, pods=tuple(sorted(pods, key=lambda pod: pod.name)), quotas=tuple(quotas)
    )  # fmt: skip


def _pod(pod: Pod) -> TenantPod:
    from kgpu.doctor.matching import accelerators

    state, why = _state(pod)
    return TenantPod(
        name=pod.name, devices=accelerators(pod), claims=len(pod.list("spec.resourceClaims")), state=state,
        node=pod.node, why=one_line(why, _ROOM),
    )  # fmt: skip


def _state(pod: Pod) -> tuple[str, str]:
    """As kubectl's column STATUS has it, and why it is not running."""
    if pod.deleting:
        return "Terminating", "it is being deleted"
    placed = pod.condition("PodScheduled")
    if not pod.node:
        return pod.phase or "Pending", placed.message if placed is not None else ""
    for container in pod.blamed:
        if container.waiting:
            return container.waiting, container.message
    ready = pod.condition("Ready")
    if pod.phase == "Running" and not pod.ready:
        return "NotReady", ready.message if ready is not None else ""
    return pod.phase or "Pending", pod.message
