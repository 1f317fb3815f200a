"""Writes a MIG geometry into a GPU of the state, so that the native library needs no tables of its own."""

from __future__ import annotations

import ctypes
from typing import Any, Final

from kgpu.base.errors import HwError
from kgpu.formats.mig_geometry import GEOMETRIES, Geometry, InstanceProfile, ci_count, ci_rows, memory_mib

CAP_GRAPHICS: Final = 2


def apply(gpu: Any, family: str) -> None:
    """Make a GPU of the state MIG capable with `family`'s profiles. `gpu.mem_total` must be set before."""
    table = GEOMETRIES.get(family)
    if table is None:
        raise HwError(
            f"there is no MIG table {family!r}", f"one of {', '.join(GEOMETRIES)}", "correct the model's `mig`"
        )
    gpu.mig_capable = 1
    gpu.mig_needs_reset = int(table.needs_reset)
    gpu.mig_max_devices = table.max_devices
    gpu.mig_slices = table.units
    gpu.mig_compute_slices = table.slices
    gpu.mig_family = table.number
    gpu.gi_profile_count = len(table.rows)
    ctypes.memset(ctypes.addressof(gpu.gi_profile), 0, ctypes.sizeof(gpu.gi_profile))
    total_mib = int(gpu.mem_total) >> 20
    for out, row in zip(gpu.gi_profile, table.rows, strict=False):
        _fill(out, row, table, total_mib)


def _fill(out: Any, row: InstanceProfile, table: Geometry, total_mib: int) -> None:
    out.used, out.enum_id, out.id, out.slices, out.instances = 1, row.enum, row.id, row.slices, row.count
    out.sm, out.ce, out.dec, out.enc, out.jpeg, out.ofa = row.sm, row.ce, row.dec, row.enc, row.jpeg, row.ofa
    out.caps = CAP_GRAPHICS if row.graphics else 0
    out.memory_mib = memory_mib(row, table, total_mib)
    out.placement_size, out.placement_count = row.units, len(row.starts)
    for index, start in enumerate(row.starts):
        out.placement_start[index] = start
    out.name = row.name.encode()
    for ci, (enum, slices, sm, name) in zip(out.ci, ci_rows(row, table), strict=False):
        ci.used, ci.enum_id, ci.id, ci.slices, ci.sm = 1, enum, enum, slices, sm
        ci.instances = ci_count(slices, row.slices)
        ci.ce, ci.dec, ci.enc, ci.jpeg, ci.ofa = row.ce, row.dec, row.enc, row.jpeg, row.ofa
        ci.name = name.encode()
