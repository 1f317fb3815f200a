"""The port through which GPUs are cut into slices: read how each is cut, and take one step at a time.

A GPU is named by its UUID, which stays when indexes shift. Numbers of profiles are NVML's enumerations, not the ids
that ``nvidia-smi mig -lgip`` prints. Every call ends in time; what the driver refuses is a ``PartitionError``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from kgpu.base.errors import HwError

GpuReset: TypeAlias = Callable[[str], Awaitable[None]]
"""Resets the GPU of this UUID, which no process has open. Raises HostError or HwError."""


class PartitionError(HwError):
    """The driver did not take a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutCompute:
    """A compute instance. ``start`` is in compute slices of its GPU instance."""

    id: int
    profile: int
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CutInstance:
    """A GPU instance, with or without compute instances. ``start`` is in memory slices; ``used``: by a process."""

    id: int
    profile: int
    start: int
    compute: tuple[CutCompute, ...] = ()
    used: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CutGpu:
    """A GPU and how it is cut.

    ``device`` and ``subsystem`` are packed PCI ids (``0x20B210DE``), 0 if unknown. ``enabled`` is the mode in force,
    ``pending`` the one after the next reset. ``used``: a process is on it. ``problem`` is why it can't be read; nothing
    else but ``index`` is known then.
    """

    index: int
    uuid: str = ""
    product: str = ""
    device: int = 0
    subsystem: int = 0
    capable: bool = False
    enabled: bool = False
    pending: bool = False
    instances: tuple[CutInstance, ...] = ()
    used: bool = False
    problem: HwError | None = None


class Partitioner(Protocol):
    """What can be asked of a driver about slices. Every method raises HwError, PartitionError for a refused step."""

    async def gpus(self) -> tuple[CutGpu, ...]:
        """Every GPU that the driver counts, in the order of indexes; one that can't be read has a ``problem``."""
        ...

    async def gpu(self, uuid: str) -> CutGpu:
        """One GPU as it is now."""
        ...

    async def set_mode(self, uuid: str, enabled: bool, *, resets: bool = True) -> None:
        """Set the mode. It may be only pending afterwards, until a reset: read the GPU again. Without ``resets`` it is
        known that the driver does not reset the GPU for it, so that nothing has to be opened anew.
        """
        ...

    async def reset(self, uuid: str) -> None:
        """Reset the GPU, after which a pending mode is in force and no instance is left."""
        ...

    async def create_instance(self, uuid: str, profile: int, start: int) -> int:
        """Make a GPU instance at a place; returns its id."""
        ...

    async def create_compute(self, uuid: str, instance: int, profile: int, start: int) -> int:
        """Make a compute instance at a place in a GPU instance; returns its id."""
        ...

    async def destroy(self, uuid: str, instance: int, compute: int | None = None) -> None:
        """Remove a compute instance, or without one the GPU instance, which has to be without any."""
        ...

    async def close(self) -> None:
        """Let go of the driver."""
        ...
