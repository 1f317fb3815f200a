"""Reads what advice needs of a cluster: its Nodes, its version, and which DRA drivers publish GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from kgpu.advise.model import DraService, ModelOnNode
from kgpu.advise.nodes import gpus_of
from kgpu.base.plain import mapping, strings, text
from kgpu.formats import names
from kgpu.kube.port import NODES, KubeRefusedError, Listing, Object, Project, Resource, ServedResources, name_of

_DRA_GROUP: Final = "resource.k8s.io"
_GPU_DRIVERS: Final = frozenset({names.DRA_GPU_DRIVER})
_LABELS_OF: Final = (names.NVIDIA_DOMAIN, names.KGPU_DOMAIN, names.NFD_PREFIX)


class AdviceApi(Protocol):
    """What of an API server is asked; ``kgpu.kube.client.Client`` is one."""

    async def discover(self) -> ServedResources:
        """What it serves, and its version."""
        ...

    async def list(self, resource: Resource, *, project: Project | None = None) -> Listing:
        """All objects of a kind."""
        ...


@dataclass(frozen=True, slots=True)
class ReadGpus:
    """What was found: the GPUs of every node, the names of all nodes, and what there is of DRA."""

    gpus: tuple[ModelOnNode, ...]
    nodes: frozenset[str]
    dra: DraService


async def read(api: AdviceApi) -> ReadGpus:
    """Read once. Raises KubeError where the API server does not answer, or refuses its Nodes."""
    served = await api.discover()
    nodes = (await api.list(NODES, project=_node)).items
    gpus = tuple(one for node in nodes for one in gpus_of(node))
    return ReadGpus(gpus, frozenset(name_of(node) for node in nodes), await _dra(api, served))


async def _dra(api: AdviceApi, served: ServedResources) -> DraService:
    slices = next((kind for kind in served.resources if (kind.group, kind.kind) == (_DRA_GROUP, "ResourceSlice")), None)
    if slices is None:
        return DraService(kubernetes=served.version)
    try:
        found = (await api.list(slices, project=_slice)).items
    except KubeRefusedError as refused:
        if refused.code == 404:
            return DraService(kubernetes=served.version)  # no right is missing: there is no such thing
        return DraService(kubernetes=served.version, served=slices.version, publishers=None)
    return DraService(kubernetes=served.version, served=slices.version, publishers=_publishers(found))


def _publishers(slices: Iterable[Object]) -> dict[str, frozenset[str]]:
    """The GPU drivers by the node whose devices they publish."""
    found: dict[str, frozenset[str]] = {}
    for one in slices:
        spec = mapping(one.get("spec"))
        node, driver = text(spec.get("nodeName")), text(spec.get("driver"))
        if node and driver in _GPU_DRIVERS:
            found[node] = found.get(node, frozenset()) | {driver}
    return found


def _node(node: Object) -> Object:
    """What counts of a Node; a list of thousands would hold all their images otherwise."""
    metadata, status = mapping(node.get("metadata")), mapping(node.get("status"))
    labels = {key: value for key, value in strings(metadata.get("labels")).items() if key.startswith(_LABELS_OF)}
    info = {"kubeletVersion": mapping(status.get("nodeInfo")).get("kubeletVersion")}
    return {
        "metadata": {**_head(node), "labels": labels},
        "status": {"capacity": status.get("capacity"), "nodeInfo": info},
    }


def _slice(one: Object) -> Object:
    spec = mapping(one.get("spec"))
    return {"metadata": _head(one), "spec": {key: spec.get(key) for key in ("nodeName", "driver")}}


def _head(obj: Object) -> dict[str, Any]:
    metadata = mapping(obj.get("metadata"))
    return {key: metadata.get(key) for key in ("name", "resourceVersion")}
