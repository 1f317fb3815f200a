"""The label ``nvidia.com/gpu.product`` taken apart: the model, the profile of slices that it stands for, sharing."""

from __future__ import annotations

from typing import Final, NamedTuple

SHARED: Final = "-SHARED"
SLICED: Final = "-MIG-"


class GpuProduct(NamedTuple):
    """``profile`` is "" for whole GPUs. ``shared``: each device is offered several times."""

    model: str
    profile: str = ""
    shared: bool = False

    def __str__(self) -> str:
        return self.model + (f"{SLICED}{self.profile}" if self.profile else "") + (SHARED if self.shared else "")


def gpu_product(label: str) -> GpuProduct:
    """What a value of the label says."""
    plain = label.removesuffix(SHARED)
    model, _, profile = plain.partition(SLICED)
    return GpuProduct(model, profile, plain != label)
