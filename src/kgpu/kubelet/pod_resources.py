"""Who holds which devices on this node, by the kubelet's own word (its pod resources API, v1)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from kgpu.base.errors import KubeletError
from kgpu.formats.names import POD_RESOURCES_SOCKET
from kgpu.kubelet.methods import LIST_POD_RESOURCES
from kgpu.kubelet.pb import podresources_v1_pb2 as pb
from kgpu.kubelet.rpc import RpcClient

LIST_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class DeviceClaim:
    """The resource claim that a device came by; its namespace is the pod's. ``share`` is for devices that are shared
    by capacity.
    """

    name: str
    pool: str = ""
    share: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Devices of one resource, or one device of a claim, that a container has.

    ``resource`` is the resource's name, for a claim its driver's; ``devices`` are the plugin's or driver's ids;
    ``cdi_devices`` the qualified names of a claim's.
    """

    namespace: str
    pod: str
    container: str
    resource: str
    devices: tuple[str, ...]
    cdi_devices: tuple[str, ...] = ()
    claim: DeviceClaim | None = None


class Holdings(Protocol):
    """Lists which containers hold which devices."""

    async def holdings(self) -> tuple[Holding, ...]:
        """Everything held now. Raises KubeletError when the kubelet can't be asked."""
        ...


class PodResources:
    """Asks the kubelet, each time anew: it may have been restarted in between.

    ``in_pod``: this process is in a pod, so a kubelet that names none at all does not know its pods yet, as for a
    moment after its start.
    """

    def __init__(
        self, socket: Path = Path(POD_RESOURCES_SOCKET), *, seconds: float = LIST_SECONDS, in_pod: bool = False
    ) -> None:
        self._socket = socket
        self._seconds = seconds
        self._in_pod = in_pod

    async def holdings(self) -> tuple[Holding, ...]:
        async with RpcClient(self._socket) as client:
            reply = await client.call(LIST_POD_RESOURCES, pb.ListPodResourcesRequest(), timeout=self._seconds)
        if self._in_pod and not reply.pod_resources:
            raise KubeletError(
                "the kubelet names no pod, and this is one", "a kubelet that knows its pods",
                "nothing: one that was just started does within seconds",
            )  # fmt: skip
        holdings: list[Holding] = []
        for pod in reply.pod_resources:
            for container in pod.containers:
                holdings += [
                    Holding(
                        namespace=pod.namespace, pod=pod.name, container=container.name,
                        resource=row.resource_name, devices=tuple(row.device_ids),
                    )
                    for row in container.devices
                ]  # fmt: skip
                holdings += [
                    Holding(
                        namespace=pod.namespace, pod=pod.name, container=container.name,
                        resource=claimed.driver_name, devices=(claimed.device_name,),
                        cdi_devices=tuple(device.name for device in claimed.cdi_devices),
                        claim=DeviceClaim(claim.claim_name, claimed.pool_name, claimed.share_id),
                    )
                    for claim in container.dynamic_resources
                    for claimed in claim.claim_resources
                ]  # fmt: skip
        return tuple(holdings)


class FakeHoldings:
    """Returns what a test sets, or raises ``problem`` when that is set."""

    def __init__(self, *holdings: Holding) -> None:
        self.now = holdings
        self.problem: Exception | None = None
        self.asked = 0

    async def holdings(self) -> tuple[Holding, ...]:
        self.asked += 1
        if self.problem is not None:
            raise self.problem
        return self.now
