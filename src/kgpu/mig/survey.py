"""A node's GPUs as the driver reads them, in the terms of plans. Pure.

A GPU of which no table of profiles is known, or that has instances which the table lacks, has a ``problem``: it counts
only where a config is about it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kgpu.base.errors import UserError
from kgpu.formats.mig_geometry import Geometry, geometry_of
from kgpu.hw.partitioning import CutGpu, CutInstance
from kgpu.mig.model import COMPUTE_SLICES, ComputeInstance, ComputeProfile, MigGpu, MigInstance
from kgpu.mig.wanted import LayoutError


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyedGpu:
    """A GPU of the node. ``device`` and ``subsystem`` are packed PCI ids; ``used``: a process is on it. ``problem`` is
    why it can't be cut.
    """

    gpu: MigGpu
    uuid: str = ""
    product: str = ""
    device: int = 0
    subsystem: int = 0
    used: bool = False
    problem: UserError | None = None

    @property
    def name(self) -> str:
        """For people."""
        return f"GPU {self.gpu.index}" + (f" ({self.product})" if self.product else "")


def survey(cut: CutGpu) -> SurveyedGpu:
    """The GPU in the terms of plans."""
    geometry = geometry_of(cut.product) if cut.capable else None
    found = SurveyedGpu(
        gpu=MigGpu(index=cut.index, geometry=geometry, enabled=cut.enabled, pending=cut.pending), uuid=cut.uuid,
        product=cut.product, device=cut.device, subsystem=cut.subsystem, used=cut.used, problem=cut.problem,
    )  # fmt: skip
    if cut.problem is not None or not cut.capable:
        return found
    if geometry is None:
        return replace(found, problem=_unknown(found, f"kgpu has no table of the MIG profiles of {found.name}"))
    instances = [_instance(geometry, one) for one in cut.instances]
    known = tuple(one for one in instances if one is not None)
    if len(known) < len(instances):
        return replace(
            found, problem=_unknown(found, f"{found.name} has instances of profiles that kgpu does not know")
        )
    return replace(found, gpu=replace(found.gpu, instances=known))


def _instance(geometry: Geometry, cut: CutInstance) -> MigInstance | None:
    row = next((row for row in geometry.rows if row.enum == cut.profile), None)
    if row is None or any(one.profile >= len(COMPUTE_SLICES) for one in cut.compute):
        return None
    compute = tuple(
        ComputeInstance(id=one.id, profile=ComputeProfile(one.profile, COMPUTE_SLICES[one.profile]), start=one.start)
        for one in cut.compute
    )
    return MigInstance(id=cut.id, profile=row, start=cut.start, compute=compute, used=cut.used)


def _unknown(found: SurveyedGpu, what: str) -> LayoutError:
    return LayoutError(
        what, "a GPU whose profiles are known",
        f"leave GPU {found.gpu.index} out by devices or device-filter, or update kgpu",
    )  # fmt: skip
