"""What a GPU, its GPU instances and its processes have done since the time before, by the driver's own record of it.

Performance counters (Hopper and later, also of GPU instances), the buffer of utilisation samples, and processes'
samples; with MIG on the latter two are not there. Loaded when first asked. Part of the hardware child.
"""

from __future__ import annotations

import math
import time

from kgpu.hw.nvidia.fallbacks import Nvml
from kgpu.hw.nvidia.gpm import Gpm
from kgpu.hw.nvidia.gpu_processes import WINDOW_S, shares
from kgpu.hw.nvidia.samples import SampleBuffers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from kgpu.hw.nvidia.slices import GpuSlices, Slice

LONGEST_S = 60.0
"""Longer ago than this no driver remembers what a process did."""


class GpuActivity:
    """Keeps samples of its own, so that who reads telemetry meanwhile takes nothing away."""

    def __init__(self, nvml: Nvml, slices: GpuSlices, clock: Any = time.monotonic) -> None:
        self._nvml = nvml
        self._slices = slices
        self._clock = clock
        self._gpm = Gpm(nvml, clock)
        self._samples = SampleBuffers(nvml, clock)
        self._asked: list[str] = []
        self._changes: dict[str, int] = {}
        self._at: dict[str, float] = {}

    def read(self, handle: Any, uuid: str, keys: list[str], slices: Iterable[Slice] | None) -> dict[str, Any]:
        """For the wire. ``slices`` are the MIG devices, None without MIG. Raises NvmlError when the GPU is lost."""
        if keys != self._asked:
            self._asked = keys
            self._gpm.want(keys)
        if self._changes.setdefault(uuid, self._slices.changes) != self._slices.changes:
            # An instance of the same number may be another one.
            self._changes[uuid] = self._slices.changes
            self._gpm.forget_others(uuid, ())
        units = [self._unit(handle, uuid, None)]
        if slices is None:
            sampled = self._samples.read(handle, uuid)
            if sampled is not None:
                mean, peak, seconds = sampled
                units[0]["values"]["utilization_percent"] = mean
                units[0].update(peak=peak, seconds=seconds)
        instances = dict.fromkeys(gi for _, _, gi, _ in slices or ())
        units += [self._unit(handle, uuid, gi) for gi in instances]
        self._gpm.forget_others(uuid, instances)
        return {"uuid": uuid, "units": units, "processes": self._processes(handle, uuid) if slices is None else None}

    def _unit(self, handle: Any, uuid: str, gi: int | None) -> dict[str, Any]:
        values: dict[str, float] = {}
        self._gpm.read(handle, uuid, gi, values)
        return {"gpu_instance": gi, "values": values}

    def _processes(self, handle: Any, uuid: str) -> list[list[int]] | None:
        """[pid, percent of the multiprocessors]; None where that is not measured."""
        now = self._clock()
        passed = now - self._at.get(uuid, -math.inf)
        self._at[uuid] = now
        seconds = WINDOW_S if passed > LONGEST_S else max(passed + 1.0, WINDOW_S)  # a sample may be a second long
        found = shares(self._nvml, handle, seconds)
        return None if found is None else [[pid, parts[0]] for pid, parts in found.items()]
