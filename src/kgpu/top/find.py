"""Pure: which nodes have GPUs, and by which ways each one's exporter can be asked.

An exporter is a pod by one of the labels below, in a namespace that is trusted: kgpu's, or another dcgm-exporter. A
GPU node without one is shown as such. Which way comes first depends on where this runs: pods reach each other directly,
a person's machine reaches them through the API server.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from kgpu.base.printable import one_line
from kgpu.base.quantity import Quantity, QuantityError
from kgpu.formats import names
from kgpu.kube.port import Object, name_of, namespace_of
from kgpu.top.model import NodeRoutes, NodeTrouble, Route

PORT: Final = 9400
PORT_NAMES: Final = ("gpu-metrics", "metrics")
EXPORTER_APP: Final = "nvidia-dcgm-exporter"
SELECTORS: Final[tuple[tuple[str, str], ...]] = (
    ("app", EXPORTER_APP),
    ("app", names.AGENT_DAEMON_SET),
    (names.NAME_LABEL, "dcgm-exporter"),
)
"""Labels of pods that serve GPU metrics, the best first. They are a tenant's to give, too: see ``cluster``."""


_BARE: Final = "kgpu status where kgpu's operator runs; else kgpu exporter on the node, or --exporter-namespace NS"
_SIMULATED: Final = "only a lab's operator runs exporters: kgpu lab down, then kgpu lab up --operator"
"""What to do about a node without an exporter, and about one of a lab."""


_MOST: Final = 10**6  # devices of a resource on one node that are believed


class Via(enum.StrEnum):
    """How exporters are reached; AUTO tries the likelier way first."""

    AUTO = "auto"
    DIRECT = "direct"
    PROXY = "proxy"


def slim_pod(pod: Object) -> Object:
    """The fields of a pod that finding exporters needs."""
    spec, status = _map(pod.get("spec")), _map(pod.get("status"))
    return {
        "metadata": {key: _map(pod.get("metadata")).get(key) for key in ("name", "namespace", "resourceVersion")},
        "node": spec.get("nodeName"),
        "ip": status.get("podIP"),
        "phase": status.get("phase"),
        "port": _port(spec),
        "why": _waiting(status),
    }


def slim_node(node: Object) -> Object:
    """The fields of a Node that finding exporters needs."""
    metadata = _map(node.get("metadata"))
    labels = _map(metadata.get("labels"))
    devices = _devices(_map(_map(node.get("status")).get("capacity")))
    return {
        "metadata": {key: metadata.get(key) for key in ("name", "resourceVersion")},
        "simulated": names.NODE_HOST_LABEL in labels
        and names.LABEL_LIGHT not in labels,  # light ones have no exporter at all
        "gpus": bool(devices) or labels.get(names.LABEL_GPU_PRESENT) == "true",
        "devices": devices,
    }


def targets(
    pods: Iterable[tuple[int, Object]], nodes: Iterable[Object] | None, *, via: Via, inside: bool, scheme: str = "http"
) -> tuple[NodeRoutes, ...]:
    """A target per GPU node. ``pods`` come with the position of their selector; ``nodes`` None: they can't be read.

    ``inside``: this process runs in a pod of the cluster.
    """
    known = None if nodes is None else [node for node in nodes if node["gpus"]]
    gpu_nodes = None if known is None else {name_of(node) for node in known}
    simulated = {name_of(node) for node in known or () if node["simulated"]}
    devices = {name_of(node): node["devices"] for node in known or ()}
    by_node: dict[str, list[tuple[int, Object]]] = {}
    for place, pod in pods:
        by_node.setdefault(str(pod["node"] or ""), []).append((place, pod))
    routes: list[NodeRoutes] = []
    for node, candidates in sorted(by_node.items()):
        agents_only = all(SELECTORS[place][1] == names.AGENT_DAEMON_SET for place, _ in candidates)
        # The agent runs on every node, with GPUs or without.
        if node and (gpu_nodes is None or node in gpu_nodes or not agents_only):
            routes.append(
                _target(node, sorted(candidates, key=lambda pair: pair[0]), via, inside=inside, scheme=scheme)
            )
    for node in sorted((gpu_nodes or set()) - set(by_node)):
        trouble = NodeTrouble(what="no metrics exporter runs there", remedy=_SIMULATED if node in simulated else _BARE)
        routes.append(NodeRoutes(node=one_line(node), trouble=trouble))
    return tuple(replace(route, devices=devices.get(route.node, 0)) for route in routes)


def _target(node: str, pods: list[tuple[int, Object]], via: Via, *, inside: bool, scheme: str) -> NodeRoutes:
    routes: list[Route] = []
    for _, pod in pods:
        if pod["phase"] == "Running" and pod["ip"]:
            routes += _routes(pod, via, inside=inside, scheme=scheme)
    if routes:
        return NodeRoutes(node=one_line(node), routes=tuple(routes))
    pod = pods[0][1]
    why = one_line(str(pod["why"] or pod["phase"] or "not started"), 80)
    where = one_line(f"kubectl -n {namespace_of(pod)} describe pod {name_of(pod)}")
    return NodeRoutes(
        node=one_line(node), trouble=NodeTrouble(what=f"the exporter's pod does not run: {why}", remedy=where)
    )


def _routes(pod: Object, via: Via, *, inside: bool, scheme: str) -> list[Route]:
    port = int(pod["port"] or PORT)
    address = str(pod["ip"])
    host = f"[{address}]" if ":" in address else address
    direct = Route(url=f"{scheme}://{host}:{port}", scheme=scheme)
    proxy = Route(namespace=namespace_of(pod), pod=name_of(pod), port=port, scheme=scheme)
    ways = {Via.DIRECT: [direct], Via.PROXY: [proxy], Via.AUTO: [direct, proxy] if inside else [proxy, direct]}
    return ways[via]


def _port(spec: Mapping[str, Any]) -> int | None:
    for container in spec.get("containers") or ():
        for port in _map(container).get("ports") or ():
            if _map(port).get("name") in PORT_NAMES and isinstance(_map(port).get("containerPort"), int):
                return int(port["containerPort"])
    return None


def _waiting(status: Mapping[str, Any]) -> str:
    for container in status.get("containerStatuses") or ():
        reason = _map(_map(_map(container).get("state")).get("waiting")).get("reason")
        if reason:
            return str(reason)
    return ""


def _devices(capacity: Mapping[str, Any]) -> int:
    return sum(_count(count) for key, count in capacity.items() if key.partition("/")[0] in names.ACCELERATOR_DOMAINS)


def _count(quantity: Any) -> int:
    """A count as Kubernetes writes it: a thousand is "1k". 0 for what is none."""
    try:
        count = Quantity.parse(quantity).value
    except (QuantityError, TypeError):
        return 0
    return count if 0 < count <= _MOST else 0


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
