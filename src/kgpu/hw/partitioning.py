"""The ports through which GPUs are parted: read how each is, and take one step at a time.

There are two, as there are two ways: ``Partitioner`` makes slices (MIG), ``ModePartitioner`` sets the modes by which a
driver parts whole GPUs (AMD). A GPU is named by its UUID, which stays when indexes shift. Numbers of profiles are
NVML's enumerations, not the ids that ``nvidia-smi mig -lgip`` prints. Every call ends in time; what the driver refuses
is a ``PartitionError``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeGpu:
    """A GPU and by which modes it is parted, in the driver's spelling (``CPX``, ``NPS4``); "" for one that can't be.

    ``computes`` and ``memories`` are the modes that it may have. ``problem`` is why it can't be read.
    """

    index: int
    uuid: str
    product: str = ""
    compute: str = ""
    memory: str = ""
    computes: tuple[str, ...] = ()
    memories: tuple[str, ...] = ()
    problem: HwError | None = None


class ModeKernel(Protocol):
    """How the kernel is told. Both calls may block for good."""

    def store(self, path: str, text: str) -> None:
        """Write an attribute of the driver. Raises OSError as the kernel gives it: EBUSY while the GPU is in use,
        EINVAL for a mode that it can't have.
        """

    def reload(self) -> None:
        """Unload the driver, and load it again. Raises HostError or HwError."""


class ModePartitioner(Protocol):
    """What can be asked of a driver about modes. Every method raises HwError, PartitionError for a refused step."""

    async def gpus(self) -> tuple[ModeGpu, ...]:
        """Every GPU that the driver has, in the order of indexes."""
        ...

    async def set_compute(self, uuid: str, mode: str) -> None:
        """Set the compute mode, at once. The GPU has to be unused."""
        ...

    async def set_memory(self, modes: Mapping[str, str]) -> None:
        """Set the memory modes of GPUs, by UUID. They come with the driver's next start, so that it is loaded anew: no
        GPU of the node may be in use, and each has the compute mode that goes with its memory mode afterwards.
        """
        ...

    async def close(self) -> None:
        """Let go of the driver."""
        ...
