"""The endpoint and the endpointslice controllers: what a Service's selector finds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kgpu.formats.names import LABEL_ZONE
from kgpu.kube.informer import Key
from kgpu.kube.port import (
    NODES,
    PODS,
    KubeRefusedError,
    Object,
    Resource,
    annotations_of,
    labels_of,
    name_of,
    namespace_of,
)
from kgpu.lab.embedded.controllers.cluster import ControllerContext
from kgpu.lab.embedded.controllers.controller import KeysOf, ObjectController, itself_or_gone
from kgpu.lab.embedded.controllers.endpoints_plan import (
    MANAGED_BY,
    MANAGER,
    SERVICE_NAME,
    TRIGGER,
    address_of,
    has_endpoints,
    plan_endpoints,
    plan_slices,
)
from kgpu.lab.embedded.controllers.kinds import ENDPOINT_SLICES, ENDPOINTS, SERVICES
from kgpu.lab.embedded.controllers.meta import deleting, key_of, spec_of, stamp
from kgpu.lab.embedded.controllers.podcontrol import namespace_is_ending
from kgpu.lab.embedded.controllers.pods import is_ready, is_terminal, node_of

_GATHER = 0.1  # seconds: pods that start together change a Service once


def _shown(pod: Object) -> tuple[object, ...]:
    """The parts of a pod that its endpoint depends on."""
    return labels_of(pod), address_of(pod), is_ready(pod), is_terminal(pod), deleting(pod), node_of(pod)


class _ForServices(ObjectController):
    """Base of controllers keyed by Service, for changes of Services and of the pods that they select."""

    def __init__(self, cluster: ControllerContext) -> None:
        super().__init__(cluster)
        self._services = cluster.cache(SERVICES)
        self._pods = cluster.cache(PODS)

    def pod_keys(self, old: Object | None, new: Object | None) -> Iterable[Key]:
        if old is not None and new is not None and _shown(old) == _shown(new):
            return ()
        pods = [obj for obj in (old, new) if obj is not None and (address_of(obj) or obj is new)]
        if pods:
            for service in self._services.select("namespace", namespace_of(pods[0])):
                selector = spec_of(service).get("selector")
                if selector and any(selector.items() <= labels_of(pod).items() for pod in pods):
                    self.queue.add_after(key_of(service), _GATHER)
        return ()


class EndpointController(_ForServices):
    name = "endpoint-controller"

    def sources(self) -> Mapping[Resource, KeysOf]:
        return {SERVICES: itself_or_gone, PODS: self.pod_keys, ENDPOINTS: self._lost}

    @staticmethod
    def _lost(old: Object | None, new: Object | None) -> Iterable[Key]:
        return [key_of(old)] if old is not None and new is None else ()

    async def sync(self, key: Key) -> None:
        service = self._services.get(key)
        endpoints = self.cluster.cache(ENDPOINTS).get(key)
        if service is None:
            if endpoints is not None and labels_of(endpoints).get("endpoints.kubernetes.io/managed-by") == self.name:
                await self.cluster.delete(ENDPOINTS, endpoints)
            return
        if not has_endpoints(service) or deleting(service):
            return
        wanted = plan_endpoints(service, self._pods.select("namespace", key[0]))
        at = stamp(self.cluster.now())
        if endpoints is None:
            metadata = {"name": key[1], "namespace": key[0], "labels": wanted["labels"], "annotations": {TRIGGER: at}}
            new = {"metadata": metadata, **({"subsets": wanted["subsets"]} if wanted["subsets"] else {})}
            try:
                await self.cluster.create(ENDPOINTS, new)
            except KubeRefusedError as error:
                if not namespace_is_ending(error):
                    raise
            return
        if labels_of(endpoints) == wanted["labels"] and (endpoints.get("subsets") or []) == wanted["subsets"]:
            return
        labels = {**dict.fromkeys(labels_of(endpoints)), **wanted["labels"]}
        change = {
            "metadata": {"labels": labels, "annotations": {**annotations_of(endpoints), TRIGGER: at}},
            "subsets": wanted["subsets"] or None,
        }
        await self.cluster.patch(ENDPOINTS, key, change)


class EndpointSliceController(_ForServices):
    name = "endpoint-slice-controller"

    def __init__(self, cluster: ControllerContext) -> None:
        super().__init__(cluster)
        self._slices = cluster.cache(ENDPOINT_SLICES)
        self._slices.index("service", self._service_of)
        self._nodes = cluster.cache(NODES)

    @staticmethod
    def _service_of(obj: Object) -> Iterable[Key]:
        labels = labels_of(obj)
        if labels.get(MANAGED_BY) != MANAGER or SERVICE_NAME not in labels:
            return ()
        return [(namespace_of(obj), labels[SERVICE_NAME])]

    def sources(self) -> Mapping[Resource, KeysOf]:
        return {SERVICES: itself_or_gone, PODS: self.pod_keys, ENDPOINT_SLICES: self._lost, NODES: lambda *_: ()}

    def _lost(self, old: Object | None, new: Object | None) -> Iterable[Key]:
        return self._service_of(old) if old is not None and new is None else ()

    async def sync(self, key: Key) -> None:
        service = self._services.get(key)
        slices = self._slices.select("service", key)
        if service is None or deleting(service) or not has_endpoints(service):
            # The garbage collector deletes slices of a deleted Service; one that lost its selector keeps its own.
            return
        zones = {name_of(node): zone for node in self._nodes if (zone := labels_of(node).get(LABEL_ZONE))}
        now = self.cluster.now()
        step = plan_slices(service, self._pods.select("namespace", key[0]), slices, zones, now)
        for new_slice in step.create:
            try:
                await self.cluster.create(ENDPOINT_SLICES, new_slice)
            except KubeRefusedError as error:
                if not namespace_is_ending(error):
                    raise
                return
        for old, new in step.change:
            labels = {**dict.fromkeys(labels_of(old)), **new["labels"]}
            metadata = {"labels": labels, "annotations": {TRIGGER: stamp(now)}}
            await self.cluster.patch(
                ENDPOINT_SLICES, key_of(old), {"metadata": metadata, "endpoints": new["endpoints"]}
            )
        for old in step.delete:
            await self.cluster.delete(ENDPOINT_SLICES, old)
