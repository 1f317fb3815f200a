"""A kind whose definition in the cluster is older than the operator, on any API server that keeps schemas."""

from __future__ import annotations

import asyncio
import copy
import time

import pytest

from kgpu.formats.crd.definitions import crds
from kgpu.kube.port import KubeApi, KubeRefusedError, Object, Resource
from kgpu.operator.statuses import apply_declared

CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False)
SINCE = ("nodes", "refused")
"""What the status has of kgpu's own, which neither older definitions nor NVIDIA's declare."""

WELL: Object = {"state": "notReady", "namespace": "gpu-operator", "conditions": []}
FULL: Object = {
    **WELL,
    "nodes": {"total": 2, "gpu": 1, "validated": 0},
    "refused": [{"object": "DaemonSet/kgpu-agent", "message": "denied"}],
}


def older(group: str = "") -> Object:
    """The definition of ClusterPolicy without them; in a ``group`` of its own beside the one that is used."""
    crd: Object = copy.deepcopy(next(one for one in crds() if one["spec"]["names"]["kind"] == "ClusterPolicy"))
    for version in crd["spec"]["versions"]:
        fields = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
        for name in SINCE:
            del fields[name]
    if group:
        crd["spec"]["group"] = group
        crd["spec"]["names"].pop("shortNames", None)
        crd["metadata"]["name"] = f"{crd['spec']['names']['plural']}.{group}"
    return crd


async def the_rest_is_written(api: KubeApi, group: str) -> None:
    """Statuses in which all, some and none of the fields are undeclared, and one that is wrong otherwise."""
    crd = older(group)
    resource = Resource(group, "v1", crd["spec"]["names"]["plural"], "ClusterPolicy", namespaced=False)
    await api.create(CRDS, crd)
    try:
        await _made(api, resource, {"metadata": {"name": "one"}, "spec": {"operator": {}}})
        for status, lacks in ((FULL, SINCE), ({**WELL, "nodes": FULL["nodes"]}, ("nodes",)), (WELL, ())):
            made, left = await apply_declared(api, resource, {"metadata": {"name": "one"}, "status": status})
            assert (made["status"], left) == (WELL, frozenset(lacks))
        with pytest.raises(KubeRefusedError):
            await apply_declared(api, resource, {"metadata": {"name": "one"}, "status": {**WELL, "state": 7}})
    finally:
        await api.delete(CRDS, crd["metadata"]["name"])


async def _made(api: KubeApi, resource: Resource, obj: Object) -> None:
    """Create an object of a kind that the server is about to serve."""
    end = time.monotonic() + 60
    sections = ("daemonsets", "driver", "toolkit", "devicePlugin", "dcgm", "dcgmExporter", "gfd", "nodeStatusExporter")
    obj = {**obj, "spec": {**obj["spec"], **{section: {} for section in sections}}}
    while True:
        try:
            await api.create(resource, obj)
        except KubeRefusedError as refused:
            if refused.code != 404 or time.monotonic() > end:
                raise
            await asyncio.sleep(0.1)
        else:
            return
