"""What ``kgpu top`` shows, as data: nodes, their GPUs and MIG instances, who uses them, and what is not known and why.

Values are plain numbers by name, with the unit in the name as in ``hw.port.Reading``; a value that no source gave is
absent. All text has come through ``printable``: nothing from outside can drive a terminal.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUser:
    """A container that holds a GPU or a MIG instance; ``memory_mib`` is None where its processes are not known."""

    namespace: str
    pod: str
    container: str = ""
    memory_mib: float | None = None

    @property
    def name(self) -> str:
        """Namespace and pod."""
        return f"{self.namespace}/{self.pod}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process on a GPU of this node. ``kind`` is ``compute``, ``graphics`` or ``mps``."""

    pid: int
    command: str = ""
    user: str = ""
    kind: str = "compute"
    memory_mib: float | None = None
    sm_percent: float | None = None
    gpu_instance: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInstance:
    """One MIG GPU instance."""

    gpu_instance: int
    profile: str = ""
    values: Mapping[str, float] = field(default_factory=dict)
    users: tuple[GpuUser, ...] = ()


class GpuHealth(enum.StrEnum):
    """What is known of a GPU's health."""

    OK = "ok"
    WARN = "warn"  # it may have work, and somebody should look
    BAD = "bad"  # it answers, and something is to be done
    LOST = "lost"  # it can't be read
    UNKNOWN = "unknown"  # nothing judges it


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownGpu:
    """One GPU as last read. ``action`` is what is to be done about it, ``reason`` why, "" when nothing is."""

    index: int
    uuid: str
    name: str = ""
    values: Mapping[str, float] = field(default_factory=dict)
    health: GpuHealth = GpuHealth.UNKNOWN
    action: str = ""
    reason: str = ""
    users: tuple[GpuUser, ...] = ()
    parts: tuple[GpuInstance, ...] = ()
    processes: tuple[GpuProcess, ...] = ()

    @property
    def everybody(self) -> tuple[GpuUser, ...]:
        """The users of the whole GPU and of its instances."""
        if not self.parts:
            return self.users
        return (*self.users, *(user for part in self.parts for user in part.users))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTrouble:
    """Why a node is not shown, or not as it is now, and what to do."""

    what: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNode:
    """One node as last read. With ``trouble``, ``gpus`` are as they were when it still answered.

    ``remark`` is what is missing of a node that answers. Times are seconds since the epoch, 0 for never: ``at`` when it
    was asked, ``read_at`` when its values were read there, by its own clock. ``through`` is the way by which it was.
    ``devices`` is how many the Node says that it has.
    """

    name: str
    hostname: str = ""
    driver_version: str = ""
    gpus: tuple[ShownGpu, ...] = ()
    trouble: NodeTrouble | None = None
    remark: NodeTrouble | None = None
    at: float = 0.0
    read_at: float = 0.0
    through: str = ""
    devices: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One way to an exporter's text. ``url`` is reached directly; with ``pod`` the API server forwards the request."""

    url: str = ""
    namespace: str = ""
    pod: str = ""
    port: int = 0
    scheme: str = "http"

    @property
    def proxied(self) -> bool:
        return bool(self.pod)

    def __str__(self) -> str:
        return f"pod {self.namespace}/{self.pod}" if self.pod else self.url


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRoutes:
    """A node and the ways to its exporter, the best first; without any, ``trouble`` says why.

    ``devices`` is how many accelerators, slices and replicas the Node says that it has.
    """

    node: str
    devices: int = 0
    routes: tuple[Route, ...] = ()
    trouble: NodeTrouble | None = None
