"""What crosses the kubelet's sockets, as plain values: no protobuf or gRPC type leaves this package.

Field names and meanings are the device plugin API's (v1beta1).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

API_VERSION = "v1beta1"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """One schedulable device of a resource; ``numa_node`` is None when it has no affinity."""

    id: str
    healthy: bool = True
    numa_node: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A bind mount that the runtime makes in the container."""

    container_path: str
    host_path: str
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """A device node that the runtime makes in the container; ``permissions`` are of ``rwm``."""

    container_path: str
    host_path: str
    permissions: str = "rw"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerAllocation:
    """What one container gets for the devices that it was given."""

    envs: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceRequest:
    """Which ``size`` of the ``available`` ids would be best, ``must_include`` among them?"""

    available: tuple[str, ...]
    must_include: tuple[str, ...] = ()
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a plugin tells the kubelet about itself; ``endpoint`` is the socket's name in the plugin folder."""

    resource: str
    endpoint: str
    version: str = API_VERSION
    preferred_allocation: bool = True
    pre_start: bool = False


class PluginLogic(Protocol):
    """What a served plugin decides; called on the event loop, so it must not block.

    Both raise UserError to refuse: the kubelet shows its text in the pod's UnexpectedAdmissionError.
    """

    def allocate(self, ids: Sequence[str]) -> ContainerAllocation:
        """The answer for one container."""
        ...

    def prefer(self, request: PreferenceRequest) -> Sequence[str]:
        """The preferred ids; an empty answer leaves the choice to the kubelet."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRef:
    """A ResourceClaim as the kubelet names it."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimDevice:
    """A device of a prepared claim: for which requests, and under which CDI names a container gets it."""

    requests: tuple[str, ...]
    pool: str
    device: str
    cdi: tuple[str, ...] = ()
    share: str = ""


class DeviceCondition(enum.Enum):
    """How well a device of a DRA driver is, as the kubelet tells it."""

    UNKNOWN = "Unknown"
    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimDeviceHealth:
    """How well a device of a pool is."""

    pool: str
    device: str
    condition: DeviceCondition


class ClaimLogic(Protocol):
    """What a served DRA driver does. Both raise UserError for one claim, and the kubelet tries again; asking for the
    same again does nothing more.
    """

    async def prepare(self, claim: ClaimRef) -> Sequence[ClaimDevice]:
        """Make a claim's devices ready for containers."""
        ...

    async def unprepare(self, claim: ClaimRef) -> None:
        """Take that back."""
        ...
