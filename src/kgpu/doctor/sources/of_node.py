"""What a running cluster knows of one node: its Node, the pods on it, their events and logs, and operations on it.

Everything is asked for by selectors, so that it costs the same in a cluster of any size and needs few rights. Where
namespaces are given, no events and logs of pods in others are asked for: a program with few rights does not ask for
what it may not have.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Final

from kgpu.base.errors import ConfigError, KubeError
from kgpu.base.plain import mapping, text
from kgpu.base.printable import counted
from kgpu.doctor.model import Missing, Subject
from kgpu.doctor.objects import lean
from kgpu.doctor.read_kinds import KINDS
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.sources.listing import Api
from kgpu.doctor.sources.live import AT_ONCE, Logs, logs_of, read_logs
from kgpu.doctor.sources.logs import host_gaps, of_ready_holders, worth_reading
from kgpu.kube.kinds import NODE_OPERATIONS
from kgpu.kube.port import EVENTS, NODES, PODS, KubeRefusedError, Object, Resource, Selector

MAX_NAMESPACES: Final = 50
"""Of pods on the node, whose events are asked for."""
_POLICIES: Final = next(row.resource for row in KINDS if row.resource.kind == "ClusterPolicy")


async def collect_of_node(
    api: Api, name: str, *, namespaces: frozenset[str] | None = None, logs: Logs | None = None,
    now: float | None = None,
) -> Snapshot:  # fmt: skip
    """Look once. ``namespaces`` is where events and logs of pods are read, None for everywhere.

    Raises ConfigError when there is no such node, and KubeError when it or its pods can't be read.
    """
    snapshot = Snapshot()
    snapshot.taken, snapshot.timed = (time.time() if now is None else now), True
    node = await api.get(NODES, name)
    if node is None:
        raise ConfigError(f"the cluster has no node {name:.100}", "the name of a node", "see `kubectl get nodes`")
    snapshot.add(lean({**node, "kind": "Node", "apiVersion": "v1"}), leaned=True)
    pods = await api.list(PODS, selector=Selector(fields=(("spec.nodeName", name),)), project=lean)
    for pod in pods.items:
        snapshot.add(pod, leaned=True)
    await _operations(api, name, snapshot)
    await _list(api, _POLICIES, snapshot)
    await _events(api, name, namespaces, snapshot)
    snapshot.sort()
    target = Subject("Node", name)
    holders = itertools.chain.from_iterable(of_ready_holders(snapshot))
    rows = [*worth_reading(snapshot, frozenset({name}), target), *holders]
    wanted = [row for row in rows if namespaces is None or row[0].namespace in namespaces]
    gate = asyncio.Semaphore(AT_ONCE)
    await read_logs(logs if logs is not None else logs_of(api), snapshot, gate, wanted)
    snapshot.missing += host_gaps(snapshot, (name,), "no agent of kgpu has told it")
    _tell_scope(snapshot, name, namespaces, len(rows) - len(wanted))
    return snapshot


def _tell_scope(snapshot: Snapshot, name: str, namespaces: frozenset[str] | None, unread: int) -> None:
    what = f"what is not about node {name}"
    snapshot.missing.append(Missing(what, "only this node was asked for", "kgpu collect, without --node", slight=True))
    if namespaces is not None and unread:
        containers = counted(unread, "container")
        what, why = f"logs of {containers} on {name}", f"only those in {', '.join(sorted(namespaces))} are read"
        snapshot.missing.append(Missing(what, why, "kgpu collect --node, without --namespace", slight=True))


async def _operations(api: Api, name: str, snapshot: Snapshot) -> None:
    def project(obj: Object) -> Object:
        return lean(obj) if text(mapping(obj.get("spec")).get("nodeName")) == name else {}

    await _list(api, NODE_OPERATIONS, snapshot, project=project)


async def _events(api: Api, name: str, namespaces: frozenset[str] | None, snapshot: Snapshot) -> None:
    """Events of Nodes are in ``default``, those of a pod in its namespace."""
    fields = (("involvedObject.kind", "Node"), ("involvedObject.name", name))
    await _list(api, EVENTS, snapshot, namespace="default", selector=Selector(fields=fields))
    on_node = {(pod.namespace, pod.name) for pod in snapshot.pods.values()}
    places = sorted({namespace for namespace, _ in on_node if namespaces is None or namespace in namespaces})

    def project(obj: Object) -> Object:
        about = mapping(obj.get("involvedObject"))
        return lean(obj) if (text(about.get("namespace")), text(about.get("name"))) in on_node else {}

    of_pods = Selector(fields=(("involvedObject.kind", "Pod"),))
    for namespace in places[:MAX_NAMESPACES]:
        await _list(api, EVENTS, snapshot, namespace=namespace, selector=of_pods, project=project)
    if len(places) > MAX_NAMESPACES:
        what = f"events of pods in {len(places) - MAX_NAMESPACES} more namespaces"
        snapshot.missing.append(Missing(what, "too many to read at once", "kubectl -n NAMESPACE get events"))


async def _list(
    api: Api, resource: Resource, snapshot: Snapshot, *, namespace: str = "", selector: Selector | None = None,
    project: object = lean,
) -> None:  # fmt: skip
    """Add what is there; a kind that is not served has no objects, and what may not be read is told as missing."""
    where = f"{resource.plural} in {namespace}" if namespace else f"{resource.plural} of the cluster"
    try:
        listing = await api.list(
            resource, namespace=namespace, selector=selector or Selector(), project=project,  # type: ignore[arg-type]
        )  # fmt: skip
    except KubeRefusedError as error:
        if error.code != 404:
            how = f"give the right to list {resource.plural}: docs/how-to/doctor-rights.yaml has them all"
            snapshot.missing.append(Missing(where, error.what, how))
        return
    except KubeError as error:
        snapshot.missing.append(Missing(where, error.what, error.remedy))
        return
    for obj in listing.items:
        if obj.get("metadata"):
            snapshot.add(obj, leaned=True)
