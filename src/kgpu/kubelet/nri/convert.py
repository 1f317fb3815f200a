"""Between the values of ``model`` and NRI's messages; every function is pure."""

from __future__ import annotations

from typing import Any, Final

from kgpu.kubelet.nri.model import CREATE_CONTAINER, ContainerAdjustment, NriContainer, NriMount, NriPod, RuntimeInfo
from kgpu.kubelet.pb import nri_v1alpha1_pb2 as nri

EVENTS: Final = 1 << (CREATE_CONTAINER - 1)
"""The mask of the only event that is subscribed."""
_REMOVE: Final = "-"
"""NRI's mark before a mount's destination: take it away."""


def runtime_of(request: Any) -> RuntimeInfo:
    """The value of a ConfigureRequest; the runtime speaks milliseconds."""
    return RuntimeInfo(
        name=request.runtime_name,
        version=request.runtime_version,
        request_seconds=max(0, request.request_timeout) / 1000,
    )


def configure_message(runtime: RuntimeInfo) -> Any:
    """A ConfigureRequest."""
    return nri.ConfigureRequest(
        runtime_name=runtime.name,
        runtime_version=runtime.version,
        request_timeout=int(runtime.request_seconds * 1000),
    )


def pod_of(message: Any) -> NriPod:
    """The value of a PodSandbox."""
    return NriPod(
        name=message.name, namespace=message.namespace, uid=message.uid, annotations=dict(message.annotations)
    )


def pod_message(pod: NriPod) -> Any:
    """A PodSandbox."""
    return nri.PodSandbox(name=pod.name, namespace=pod.namespace, uid=pod.uid, annotations=dict(pod.annotations))


def container_of(message: Any) -> NriContainer:
    """The value of a Container."""
    return NriContainer(
        name=message.name,
        id=message.id,
        env=tuple(message.env),
        mounts=tuple(NriMount(destination=mount.destination, source=mount.source) for mount in message.mounts),
        devices=tuple(device.path for device in message.linux.devices),
        cdi_devices=tuple(device.name for device in message.CDI_devices),
    )


def container_message(container: NriContainer) -> Any:
    """A Container."""
    message = nri.Container(name=container.name, id=container.id, env=container.env)
    for mount in container.mounts:
        message.mounts.add(destination=mount.destination, source=mount.source, type="bind")
    for path in container.devices:
        message.linux.devices.add(path=path, type="c")
    for name in container.cdi_devices:
        message.CDI_devices.add(name=name)
    return message


def adjustment_message(adjustment: ContainerAdjustment | None) -> Any:
    """A CreateContainerResponse."""
    response = nri.CreateContainerResponse()
    if adjustment is not None:
        for name in adjustment.cdi_devices:
            response.adjust.CDI_devices.add(name=name)
        for destination in adjustment.without_mounts:
            response.adjust.mounts.add(destination=_REMOVE + destination)
    return response


def adjustment_of(response: Any) -> ContainerAdjustment | None:
    """The value of a CreateContainerResponse; None when nothing is adjusted."""
    adjustment = ContainerAdjustment(
        cdi_devices=tuple(device.name for device in response.adjust.CDI_devices),
        without_mounts=tuple(
            mount.destination.removeprefix(_REMOVE)
            for mount in response.adjust.mounts
            if mount.destination.startswith(_REMOVE)
        ),
    )
    return None if adjustment == ContainerAdjustment() else adjustment
