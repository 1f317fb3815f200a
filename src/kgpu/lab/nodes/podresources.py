"""A simulated node's pod-resources API (v1): which pod holds which devices and claims, as the kubelet (v1.35) lists it.

List names active pods only (KubeletPodResourcesListUseActivePods), every device in an entry of its own with its NUMA
node; init containers that end are not in it. GetAllocatableResources has the healthy devices, held ones too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from kgpu.base.errors import KubeletError
from kgpu.kube.port import Object
from kgpu.kubelet.methods import POD_RESOURCES
from kgpu.kubelet.model import DeviceState
from kgpu.kubelet.pb import podresources_v1_pb2 as pb
from kgpu.kubelet.rpc import RpcServer, Service
from kgpu.lab.nodes.podstate import ALWAYS

FOLDER = "pod-resources"


class NodeDevices(Protocol):
    """The part of the device manager that this needs."""

    def held(self) -> Mapping[tuple[str, str], Mapping[str, tuple[str, ...]]]:
        """(pod uid, container) to resource to device ids."""
        ...

    def devices(self, resource: str) -> tuple[DeviceState, ...]:
        """The devices of a resource."""
        ...

    def resources(self) -> tuple[str, ...]:
        """Every resource."""
        ...


Claims = Callable[[Object, Object], Iterable[Mapping[str, Any]]]
"""(pod, container) to its prepared claims: name, namespace, and devices (driver, pool, device, share, cdi)."""


class PodResourcesServer:
    """Serves ``FOLDER/kubelet.sock`` of one node; ``pods`` gives the active pods."""

    def __init__(
        self, folder: Path, devices: NodeDevices, pods: Callable[[], Iterable[Object]], claims: Claims | None = None
    ) -> None:
        self.socket = folder / "kubelet.sock"
        self._devices = devices
        self._pods = pods
        self._claims = claims or (lambda _pod, _container: ())
        answers = {"List": self._list, "GetAllocatableResources": self._allocatable, "Get": self._get}
        self._rpc = RpcServer(self.socket, [Service(POD_RESOURCES, answers)])

    async def start(self) -> None:
        """Listen. Raises KubeletError, OSError."""
        self.socket.parent.mkdir(parents=True, exist_ok=True)
        await self._rpc.start()

    async def stop(self) -> None:
        """Hang up."""
        await self._rpc.close()

    async def _list(self, _request: Any) -> Any:
        return pb.ListPodResourcesResponse(pod_resources=[self._pod(pod) for pod in self._pods()])

    async def _get(self, request: Any) -> Any:
        for pod in self._pods():
            metadata = pod["metadata"]
            if (metadata["namespace"], metadata["name"]) == (request.pod_namespace, request.pod_name):
                return pb.GetPodResourcesResponse(pod_resources=self._pod(pod))
        raise KubeletError(
            f"pod {request.pod_name} in namespace {request.pod_namespace} not found", "an active pod of this node",
            "List names them",
        )  # fmt: skip

    async def _allocatable(self, _request: Any) -> Any:
        reply = pb.AllocatableResourcesResponse()
        for resource in sorted(self._devices.resources()):
            _add(reply.devices, resource, [device for device in self._devices.devices(resource) if device.healthy])
        return reply

    def _pod(self, pod: Object) -> Any:
        message = pb.PodResources(name=pod["metadata"]["name"], namespace=pod["metadata"]["namespace"])
        held = self._devices.held()
        for container in listed_containers(pod):
            row = message.containers.add(name=container["name"])
            for resource, ids in sorted(held.get((pod["metadata"]["uid"], container["name"]), {}).items()):
                known = {device.id: device for device in self._devices.devices(resource)}
                _add(
                    row.devices,
                    resource,
                    [known.get(device_id) or DeviceState(id=device_id) for device_id in sorted(ids)],
                )
            for claim in self._claims(pod, container):
                _add_claim(row.dynamic_resources, claim)
        return message


def listed_containers(pod: Object) -> list[Object]:
    """The containers that the API tells of: those that live as long as the pod."""
    spec = pod["spec"]
    sidecars = [container for container in spec.get("initContainers") or () if container.get("restartPolicy") == ALWAYS]
    return [*sidecars, *spec["containers"]]


def _add(rows: Any, resource: str, devices: Iterable[DeviceState]) -> None:
    for device in devices:
        row = rows.add(resource_name=resource, device_ids=[device.id])
        if device.numa_node is not None:
            row.topology.nodes.add(ID=device.numa_node)


def _add_claim(rows: Any, claim: Mapping[str, Any]) -> None:
    row = rows.add(claim_name=claim["name"], claim_namespace=claim["namespace"])
    for device in claim["devices"]:
        resource = row.claim_resources.add(
            driver_name=device["driver"], pool_name=device["pool"], device_name=device["device"]
        )
        if device.get("share"):
            resource.share_id = device["share"]
        for name in device["cdi"]:
            resource.cdi_devices.add(name=name)
