"""Between the values of ``model`` and the wire messages; every function is pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any, Final

from google.protobuf import message as message_module

from kgpu.kubelet.model import (
    ContainerAllocation,
    DeviceNode,
    DeviceState,
    Mount,
    PreferenceRequest,
    Registration,
)
from kgpu.kubelet.pb import deviceplugin_v1beta1_pb2 as dp

_UNREADABLE = (ValueError, binascii.Error, message_module.DecodeError)

HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"


def device_list(devices: Sequence[DeviceState]) -> Any:
    """A ListAndWatchResponse, in the given order."""
    reply = dp.ListAndWatchResponse()
    add = reply.devices.add
    for device in devices:
        message = add(ID=device.id, health=HEALTHY if device.healthy else UNHEALTHY)
        if device.numa_node is not None:
            message.topology.nodes.add(ID=device.numa_node)
    return reply


def devices_of(reply: Any) -> tuple[DeviceState, ...]:
    """The devices of a ListAndWatchResponse; a device on several NUMA nodes is listed under its first."""
    return tuple(
        DeviceState(
            id=device.ID,
            healthy=device.health == HEALTHY,
            numa_node=device.topology.nodes[0].ID if device.topology.nodes else None,
        )
        for device in reply.devices
    )


def registration_message(registration: Registration) -> Any:
    """A RegisterRequest."""
    return dp.RegisterRequest(
        version=registration.version,
        endpoint=registration.endpoint,
        resource_name=registration.resource,
        options=options_message(registration),
    )


def options_message(registration: Registration) -> Any:
    """The same options as DevicePluginOptions."""
    return dp.DevicePluginOptions(
        pre_start_required=registration.pre_start,
        get_preferred_allocation_available=registration.preferred_allocation,
    )


def registration_of(message: Any) -> Registration:
    """The value of a RegisterRequest."""
    return Registration(
        resource=message.resource_name,
        endpoint=message.endpoint,
        version=message.version,
        preferred_allocation=message.options.get_preferred_allocation_available,
        pre_start=message.options.pre_start_required,
    )


def preference_of(message: Any) -> PreferenceRequest:
    """The value of a ContainerPreferredAllocationRequest."""
    return PreferenceRequest(
        available=tuple(message.available_deviceIDs),
        must_include=tuple(message.must_include_deviceIDs),
        size=message.allocation_size,
    )


def preference_message(request: PreferenceRequest) -> Any:
    """A PreferredAllocationRequest for one container."""
    return dp.PreferredAllocationRequest(
        container_requests=[
            dp.ContainerPreferredAllocationRequest(
                available_deviceIDs=request.available,
                must_include_deviceIDs=request.must_include,
                allocation_size=request.size,
            )
        ]
    )


def add_allocation(reply: Any, allocation: ContainerAllocation) -> None:
    """Append one container's answer to an AllocateResponse."""
    message = reply.container_responses.add()
    message.envs.update(allocation.envs)
    message.annotations.update(allocation.annotations)
    for mount in allocation.mounts:
        message.mounts.add(container_path=mount.container_path, host_path=mount.host_path, read_only=mount.read_only)
    for node in allocation.devices:
        message.devices.add(container_path=node.container_path, host_path=node.host_path, permissions=node.permissions)
    for name in allocation.cdi_devices:
        message.cdi_devices.add(name=name)


def allocation_of(message: Any) -> ContainerAllocation:
    """The value of a ContainerAllocateResponse."""
    return ContainerAllocation(
        envs=dict(message.envs),
        mounts=tuple(
            Mount(container_path=m.container_path, host_path=m.host_path, read_only=m.read_only) for m in message.mounts
        ),
        devices=tuple(
            DeviceNode(container_path=d.container_path, host_path=d.host_path, permissions=d.permissions)
            for d in message.devices
        ),
        annotations=dict(message.annotations),
        cdi_devices=tuple(d.name for d in message.cdi_devices),
    )


def encode_allocation(allocation: ContainerAllocation | None) -> str:
    """One answer as the kubelet's checkpoint keeps it: the message in base64; "" for none."""
    if allocation is None:
        return ""
    reply = dp.AllocateResponse()
    add_allocation(reply, allocation)
    return base64.b64encode(reply.container_responses[0].SerializeToString()).decode()


def decode_allocation(text: str) -> ContainerAllocation | None:
    """The answer of a checkpoint; None for what can't be read."""
    if not text:
        return None
    message = dp.ContainerAllocateResponse()
    try:
        message.ParseFromString(base64.b64decode(text, validate=True))
    except _UNREADABLE:
        return None
    return allocation_of(message)
