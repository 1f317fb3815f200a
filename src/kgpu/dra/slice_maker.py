"""Makes the slices that claims ask for, at the places that the scheduler has chosen, and destroys them again.

Nothing is moved for it and no GPU is reset: a place that is taken, or a mode that is only pending, is an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from kgpu.dra.records import RecordedSlice
from kgpu.formats.mig_geometry import Geometry, InstanceProfile, geometry_of, places, whole_ci
from kgpu.hw.partitioning import CutGpu, CutInstance, Partitioner, PartitionError


@dataclass(frozen=True, slots=True)
class SliceMaker:
    """Over a driver. Calls raise HwError."""

    driver: Partitioner

    async def refuse_taken(self, slices: Collection[RecordedSlice]) -> None:
        """Refuse places that have a slice already. Asked before slices are recorded: it is somebody else's then, and
        is not destroyed with what was made.
        """
        gpus = {uuid: await self.driver.gpu(uuid) for uuid in {one.gpu for one in slices}}
        for wanted in slices:
            gpu = gpus[wanted.gpu]
            if gpu.problem is not None:
                raise gpu.problem
            _refuse_taken(gpu, wanted)

    async def make(self, slices: Iterable[RecordedSlice]) -> None:
        """Make slices, each with the compute instance that takes all of it. What is made before one fails stays."""
        for wanted in slices:
            gpu = await self._ready(wanted)
            geometry, row = _row(gpu, wanted)
            _refuse_taken(gpu, wanted)
            instance = await self.driver.create_instance(wanted.gpu, wanted.profile, wanted.start)
            await self.driver.create_compute(wanted.gpu, instance, whole_ci(row, geometry), 0)

    async def unmake(self, slices: Iterable[RecordedSlice], *, keep: Collection[str] = ()) -> None:
        """Destroy those of the slices that are there. A GPU without any left gets its mode back, unless it is one to
        ``keep``, where others are being made.
        """
        gpus = set()
        for made in slices:
            gpu = await self.driver.gpu(made.gpu)
            for instance in gpu.instances:
                if (instance.profile, instance.start) == (made.profile, made.start):
                    await self._destroy(made.gpu, instance)
            gpus.add(made.gpu)
        for uuid in gpus - set(keep):
            gpu = await self.driver.gpu(uuid)
            geometry = geometry_of(gpu.product)
            if gpu.enabled and not gpu.instances and geometry is not None and not geometry.needs_reset:
                await self.driver.set_mode(uuid, False, resets=False)

    async def _ready(self, wanted: RecordedSlice) -> CutGpu:
        """The GPU, with MIG mode on."""
        gpu = await self.driver.gpu(wanted.gpu)
        if gpu.problem is not None:
            raise gpu.problem
        if not gpu.enabled:
            geometry, _ = _row(gpu, wanted)
            if not geometry.needs_reset:
                await self.driver.set_mode(wanted.gpu, True, resets=False)
                gpu = await self.driver.gpu(wanted.gpu)
        if not gpu.enabled:
            raise PartitionError(
                f"GPU {gpu.index}: its MIG mode is off", "a GPU in MIG mode, or one whose mode changes without a reset",
                "have the MIG manager turn it on: it resets the GPU for it",
            )  # fmt: skip
        return gpu

    async def _destroy(self, gpu: str, instance: CutInstance) -> None:
        for compute in instance.compute:
            await self.driver.destroy(gpu, instance.id, compute.id)
        await self.driver.destroy(gpu, instance.id)


def _refuse_taken(gpu: CutGpu, wanted: RecordedSlice) -> None:
    geometry, row = _row(gpu, wanted)
    for other in gpu.instances:
        if places(row, wanted.start) & places(_profile(geometry, other.profile), other.start):
            raise PartitionError(
                f"GPU {gpu.index}: the place of the slice {row.name} at {wanted.start} is taken by another one",
                "a place that is free", "see what has it: nvidia-smi mig -lgi",
            )  # fmt: skip


def _row(gpu: CutGpu, wanted: RecordedSlice) -> tuple[Geometry, InstanceProfile]:
    geometry = geometry_of(gpu.product)
    if geometry is None:
        raise PartitionError(
            f"GPU {gpu.index}, {gpu.product}, has no MIG that kgpu knows", "a GPU with MIG", "use the whole GPU"
        )
    return geometry, _profile(geometry, wanted.profile)


def _profile(geometry: Geometry, number: int) -> InstanceProfile:
    found = next((row for row in geometry.rows if row.enum == number), None)
    if found is None:
        raise PartitionError(f"there is no profile {number}", "a profile of the GPU", "look at nvidia-smi mig -lgip")
    return found
