"""Restarts a workload on all nodes, or its pod on one, and waits until the new pods are ready."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

from kgpu.base.clock import Clock
from kgpu.base.errors import ConfigError, KubeError
from kgpu.base.printable import counted
from kgpu.kube.port import PODS, KubeApi, Object, Patch
from kgpu.workloads.find import FoundPods, NoPodsError, find
from kgpu.workloads.pods import ServingPod
from kgpu.workloads.rollout import RolloutProgress, progress, replaces_by_itself, restarted
from kgpu.workloads.rows import AGENT, Workload

LOOK: Final = 1.0  # seconds between two looks at how far it is
_NAMED: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarting:
    """What is restarted: the DaemonSet's or Deployment's name, and the pods that it had."""

    row: Workload
    namespace: str
    name: str
    pods: tuple[ServingPod, ...]

    @property
    def shown(self) -> str:
        return f"{self.row.kind.kind} {self.namespace}/{self.name}"


def parts(row: Workload, found: FoundPods) -> tuple[Restarting, ...]:
    """The workloads whose pods do it: its own, and the agent where that does it on some nodes."""
    rows = ((row, [pod for pod in found.pods if not pod.shared]), (AGENT, [pod for pod in found.pods if pod.shared]))
    return tuple(
        Restarting(row=one, namespace=found.namespace, name=one.label[1], pods=tuple(pods))
        for one, pods in rows
        if pods
    )


def check(row: Workload, node: str) -> None:
    """Raises ConfigError for what is not restarted by hand, and for a node of what is not of one."""
    if row.kept:
        raise ConfigError(f"the {row.title} is not restarted by this command: {row.kept}", "another one", row.instead)
    if node and row.kind.kind != "DaemonSet":
        raise ConfigError(f"the {row.title} is not of a node", "--node of what runs on every node", "leave out --node")


async def begin(api: KubeApi, part: Restarting, now: dt.datetime) -> None:
    """Make new pods of all, one after the other as the object's strategy says. Raises KubeError."""
    obj = await _read(api, part)
    if not replaces_by_itself(obj):
        raise KubeError(
            f"{part.shown} replaces no pod by itself: its updateStrategy is OnDelete", "RollingUpdate",
            f"restart its pods one by one: kgpu restart {part.row.name} --node NODE",
        )  # fmt: skip
    await api.patch(part.row.kind, part.name, restarted(now), namespace=part.namespace, kind=Patch.MERGE)


async def follow(api: KubeApi, part: Restarting, clock: Clock) -> AsyncIterator[RolloutProgress]:
    """How far it is, at every change, until it is done. Raises KubeError."""
    last: RolloutProgress | None = None
    while last is None or not last.done:
        now = progress(part.row.kind, await _read(api, part))
        if now != last:
            yield now
        last = now
        if not now.done:
            await clock.sleep(LOOK)


async def _read(api: KubeApi, part: Restarting) -> Object:
    obj = await api.get(part.row.kind, part.name, namespace=part.namespace)
    if obj is None:
        raise KubeError(
            f"there is no {part.shown}, of which {part.pods[0].name} should be", "what has made the pod",
            f"see what made it: kubectl -n {part.namespace} describe pod {part.pods[0].name}",
        )  # fmt: skip
    return obj


async def remove(api: KubeApi, pod: ServingPod) -> bool:
    """Delete that pod and no other of its name; False when it has gone already. Raises KubeError."""
    return await api.delete(PODS, pod.name, namespace=pod.namespace, uid=pod.uid)


async def replaced(api: KubeApi, row: Workload, old: ServingPod, clock: Clock) -> ServingPod:
    """The pod that has come in its place on the node, once it is ready. Raises KubeError."""
    while True:
        with contextlib.suppress(NoPodsError):
            found = await find(api, row, namespace=old.namespace, node=old.node, changes=True)
            for pod in found.pods:
                if pod.uid != old.uid and pod.shared == old.shared and not pod.state:
                    return pod
        await clock.sleep(LOOK)


def late(row: Workload, pods: Sequence[ServingPod], seconds: float) -> KubeError:
    """What is said when the new pods are not ready in time."""
    bad = [pod for pod in pods if pod.state]
    named = ", ".join(f"{pod.shown} ({pod.state})" for pod in bad[:_NAMED]) + (" …" if len(bad) > _NAMED else "")
    where = f": {counted(len(bad), 'pod')} not ready: {named}" if bad else ""
    node = bad[0].node if bad and row.kind.kind == "DaemonSet" else ""
    return KubeError(
        f"the {row.title} was restarted and is not ready after {seconds:g} s{where}", "every pod ready",
        f"see why: kgpu logs {row.name}" + (f" --node {node}" if node else "") + "; it goes on meanwhile",
    )  # fmt: skip
