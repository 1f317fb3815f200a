"""An in-memory ``Partitioner``, which refuses what a driver refuses; it keeps the contract of the real one.

``meddle`` is called before and after each step takes effect, with the step's name: what it raises is what the caller
gets, and the step has then been taken or not.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from kgpu.formats.mig_geometry import GEOMETRIES, Geometry, InstanceProfile, ci_rows, fits, places
from kgpu.hw.partitioning import CutCompute, CutGpu, CutInstance, PartitionError

_DEVICES: Final = {"a30": 0x20B710DE, "a100-40gb": 0x20B010DE, "h100-80gb": 0x233010DE}
WITHOUT_MIG: Final = "l4"


class FakePartitioner:
    """GPUs of these families, by name of ``GEOMETRIES``; ``l4`` has no MIG."""

    def __init__(self, *families: str) -> None:
        self.geometries: dict[str, Geometry] = {}
        self.state: dict[str, CutGpu] = {}
        self.resets: list[str] = []
        self.meddle: Callable[[str, bool], None] = lambda _step, _done: None
        for index, family in enumerate(families):
            uuid = f"GPU-0000000{index}-0000-0000-0000-000000000000"
            product = f"NVIDIA {family.upper()}"
            capable = family in GEOMETRIES
            if capable:
                self.geometries[uuid] = GEOMETRIES[family]
            self.state[uuid] = CutGpu(
                index=index, uuid=uuid, product=product, device=_DEVICES.get(family, 0), capable=capable
            )

    async def gpus(self) -> tuple[CutGpu, ...]:
        self.meddle("read", False)
        return tuple(self.state.values())

    async def gpu(self, uuid: str) -> CutGpu:
        self.meddle("read", False)
        return self.state[uuid]

    async def set_mode(self, uuid: str, enabled: bool, *, resets: bool = True) -> None:
        del resets

        def take(gpu: CutGpu) -> CutGpu:
            busy = bool(gpu.instances) or gpu.used
            at_once = gpu.enabled == enabled or not busy
            _refuse(not at_once and not self.geometries[uuid].needs_reset, "In use by another client")
            return replace(gpu, pending=enabled, enabled=enabled if at_once else gpu.enabled)

        _refuse(uuid not in self.geometries, "Not Supported")
        self._step("set-mode", uuid, take)

    async def reset(self, uuid: str) -> None:
        def take(gpu: CutGpu) -> CutGpu:
            _refuse(gpu.used or any(one.used for one in gpu.instances), "In use by another client")
            self.resets.append(uuid)
            return replace(gpu, enabled=gpu.pending, instances=())

        self._step("reset", uuid, take)

    async def create_instance(self, uuid: str, profile: int, start: int) -> int:
        geometry = self.geometries[uuid]
        row = next((row for row in geometry.rows if row.enum == profile), None)
        made = [-1]

        def take(gpu: CutGpu) -> CutGpu:
            _refuse(not gpu.enabled or row is None, "Not Supported")
            assert row is not None
            beside = [(_row(geometry, one.profile), one.start) for one in gpu.instances]
            _refuse(start not in row.starts, "Invalid Argument")
            overlaps = any(places(row, start) & places(*other) for other in beside)
            _refuse(overlaps or not fits(geometry, [row, *(other for other, _ in beside)]), "Insufficient Resources")
            made[0] = geometry.units // row.units - 1 + start // row.units
            return replace(gpu, instances=(*gpu.instances, CutInstance(id=made[0], profile=profile, start=start)))

        self._step("create-instance", uuid, take)
        return made[0]

    async def create_compute(self, uuid: str, instance: int, profile: int, start: int) -> int:
        geometry = self.geometries[uuid]
        made = [-1]

        def take(gpu: CutGpu) -> CutGpu:
            parent = _instance(gpu, instance)
            within = _row(geometry, parent.profile)
            slices = {number: size for number, size, _, _ in ci_rows(within, geometry)}
            _refuse(profile not in slices, "Not Supported")
            taken = {cell for one in parent.compute for cell in range(one.start, one.start + slices[one.profile])}
            mine = set(range(start, start + slices[profile]))
            _refuse(bool(mine & taken) or max(mine) >= within.slices, "Insufficient Resources")
            made[0] = _free(one.id for one in parent.compute)
            compute = CutCompute(id=made[0], profile=profile, start=start)
            return _with(gpu, replace(parent, compute=(*parent.compute, compute)))

        self._step("create-compute", uuid, take)
        return made[0]

    async def destroy(self, uuid: str, instance: int, compute: int | None = None) -> None:
        def take(gpu: CutGpu) -> CutGpu:
            parent = _instance(gpu, instance)
            _refuse(parent.used, "In use by another client")
            if compute is None:
                _refuse(bool(parent.compute), "In use by another client")
                return replace(gpu, instances=tuple(one for one in gpu.instances if one is not parent))
            staying = tuple(one for one in parent.compute if one.id != compute)
            _refuse(len(staying) == len(parent.compute), "Not Found")
            return _with(gpu, replace(parent, compute=staying))

        self._step("destroy-instance" if compute is None else "destroy-compute", uuid, take)

    async def close(self) -> None:
        """Nothing is held."""

    # --- for tests ---

    def use(self, index: int, instance: int | None = None, *, used: bool = True) -> None:
        """A process begins or ends on the GPU, or in one of its instances."""
        gpu = list(self.state.values())[index]
        if instance is None:
            self.state[gpu.uuid] = replace(gpu, used=used)
        else:
            self.state[gpu.uuid] = _with(gpu, replace(_instance(gpu, instance), used=used))

    def _step(self, name: str, uuid: str, take: Callable[[CutGpu], CutGpu]) -> None:
        self.meddle(name, False)
        self.state[uuid] = take(self.state[uuid])
        self.meddle(name, True)


def _refuse(wrong: bool, why: str) -> None:
    if wrong:
        raise PartitionError(f"the driver refuses: {why}", "a step that the driver takes", "read the GPU again")


def _row(geometry: Geometry, enum: int) -> InstanceProfile:
    return next(row for row in geometry.rows if row.enum == enum)


def _instance(gpu: CutGpu, number: int) -> CutInstance:
    found = next((one for one in gpu.instances if one.id == number), None)
    _refuse(found is None, "Not Found")
    assert found is not None
    return found


def _with(gpu: CutGpu, instance: CutInstance) -> CutGpu:
    return replace(gpu, instances=tuple(instance if one.id == instance.id else one for one in gpu.instances))


def _free(taken: Iterable[int]) -> int:
    known = set(taken)
    return next(number for number in itertools.count() if number not in known)
