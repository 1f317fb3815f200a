"""What crosses the NRI socket, as plain values: no protobuf type leaves this package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

CREATE_CONTAINER: Final = 4
"""NRI's number of the event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeInfo:
    """The runtime as it introduces itself; ``request_seconds`` is how long it waits for an answer, 0 when not said."""

    name: str
    version: str
    request_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NriPod:
    """The pod of a container; ``namespace`` is the kubelet's word, not the pod's."""

    name: str
    namespace: str
    uid: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NriMount:
    """A mount that the container will have."""

    destination: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NriContainer:
    """A container that is about to be created, with what CDI devices from the kubelet have already changed in it.

    ``env`` are ``NAME=value``, the image's and the pod's merged; ``devices`` are the paths of its device nodes.
    """

    name: str
    id: str = ""
    env: tuple[str, ...] = ()
    mounts: tuple[NriMount, ...] = ()
    devices: tuple[str, ...] = ()
    cdi_devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerAdjustment:
    """What to change: CDI devices to give (qualified names), mounts to take away again (by where they are mounted).

    The runtime takes mounts away after it has given the devices, so these may be mounts of the same devices.
    """

    cdi_devices: tuple[str, ...] = ()
    without_mounts: tuple[str, ...] = ()


class NriPluginLogic(Protocol):
    """What a plugin decides. Called on the event loop."""

    def configured(self, runtime: RuntimeInfo) -> None:
        """The runtime has introduced itself. Raises UserError to leave: ``serve`` raises it again."""
        ...

    def ready(self) -> None:
        """From now on containers are asked about."""
        ...

    async def create(self, pod: NriPod, container: NriContainer) -> ContainerAdjustment | None:
        """What to change in a container; None for nothing. Raises UserError to refuse the container."""
        ...
