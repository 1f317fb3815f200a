"""What is to be shared by MPS on a node, and the control daemons that this takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kgpu.base.advice import Advice, Severity
from kgpu.base.errors import ConfigError
from kgpu.formats import mps_folders


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedGpu:
    """A GPU of which a resource has ``replicas`` shares. ``capability`` is (major, minor), None where unknown.

    ``memory_mib`` is None where the driver can't tell. ``mig``: its MIG mode is on.
    """

    uuid: str
    index: int
    replicas: int
    memory_mib: int | None = None
    capability: tuple[int, int] | None = None
    mig: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsShare:
    """A resource as it is offered, with the GPUs that are shared under that name."""

    resource: str
    gpus: tuple[SharedGpu, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsOrder:
    """What the node's configuration asks for. ``root`` is the MPS root as this process sees it, "" without MPS."""

    root: str = ""
    shares: tuple[MpsShare, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSpec:
    """One control daemon: it serves ``gpus`` (UUIDs), which it numbers in this order.

    ``limits_mib`` are the most pinned memory of one client by GPU, 0 for no limit. ``percentage`` is the part of the
    threads that one client can have active, 1 to 100. ``replicas`` are the shares of each GPU. ``title`` is what it is
    called where that is not the resource.
    """

    root: str
    resource: str
    gpus: tuple[str, ...]
    replicas: tuple[int, ...] = ()
    limits_mib: tuple[int, ...] = ()
    percentage: int = 100
    title: str = ""

    @property
    def subject(self) -> str:
        """Who has it, as users know it."""
        return self.title or self.resource

    @property
    def folder(self) -> str:
        """All that the daemon has on disk."""
        return mps_folders.resource_folder(self.root, self.resource)

    @property
    def pipe(self) -> str:
        """Where its clients find it."""
        return mps_folders.pipe_folder(self.root, self.resource)

    @property
    def log(self) -> str:
        """Where it and its servers write their logs."""
        return mps_folders.log_folder(self.root, self.resource)

    @property
    def started(self) -> str:
        """The file that says that it serves."""
        return mps_folders.started_file(self.root, self.resource)

    @property
    def visible(self) -> str:
        """``CUDA_VISIBLE_DEVICES`` of the daemon: GPUs that are not shared stay out of its server's reach."""
        return ",".join(self.gpus)

    @property
    def commands(self) -> tuple[str, ...]:
        """What the daemon is told before it serves.

        Memory limits are by number: MPS takes no UUID there. The daemon numbers the GPUs that it sees.
        """
        limits = (
            f"set_default_device_pinned_mem_limit {number} {limit}M"
            for number, limit in enumerate(self.limits_mib)
            if limit
        )
        return (*limits, f"set_default_active_thread_percentage {self.percentage}")


IMPOSSIBLE: Final = "MpsImpossible"
"""The reason of what is refused."""


@dataclass(frozen=True, slots=True)
class ShareRefusal:
    """A resource that gets no daemon, and why."""

    resource: str
    error: ConfigError

    @property
    def advice(self) -> Advice:
        return Advice.from_error(self.error, subject=self.resource, reason=IMPOSSIBLE, severity=Severity.ERROR)


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsPlan:
    """The daemons of a node, at most one for each resource, and what was refused."""

    root: str = ""
    daemons: tuple[DaemonSpec, ...] = ()
    refused: tuple[ShareRefusal, ...] = ()

    @property
    def advice(self) -> tuple[Advice, ...]:
        """The refusals as records."""
        return tuple(refusal.advice for refusal in self.refused)
