"""The driver's buffer of utilisation samples, several a second for the last 15 seconds or so, integrated over time.

Promises: never waits; a sample counts once, for the time since the one before it and no longer than the driver's
longest period, so that what was overwritten, or lies across a jump of the driver's clock, is not guessed. Part of the
hardware child.
"""

from __future__ import annotations

import ctypes
import math
import struct

from kgpu.hw.nvidia.codes import NOT_FOUND
from kgpu.hw.nvidia.fallbacks import GONE, Nvml, NvmlError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

GPU_UTILIZATION = 1  # nvmlSamplingType_t
AGAIN_S = 60.0
LONGEST_US = 1_000_000
"""A sample is of the last sixth of a second up to a whole one, by the product."""
MOST = 4096
# nvmlSample_t: the driver's clock in microseconds since 1970, and a union of eight bytes.
SAMPLE = struct.Struct("=QQ")
_DOUBLE, _WIDE = 0, frozenset({2, 3})  # nvmlValueType_t; what is neither of these has four bytes


def integrate(samples: Iterable[tuple[int, float]], since_us: int) -> tuple[float, int, float | None]:
    """(percent times microseconds, microseconds that samples are about, the largest), of those after ``since_us``.

    What is no percentage is no sample. The time is at most that from ``since_us`` to the newest sample.
    """
    area, covered, peak, before = 0.0, 0, None, since_us
    # Of two with one time the larger counts: it may only refute that nothing ran.
    for at, percent in sorted(samples, key=lambda one: (one[0], -one[1])):
        if at <= before:
            continue
        if 0 <= percent <= 100:
            length = min(at - before, LONGEST_US)
            area, covered = area + percent * length, covered + length
            peak = percent if peak is None else max(peak, percent)
        before = at
    return area, covered, peak


class SampleBuffers:
    """Reads each GPU's buffer since the time before. ``clock`` gives seconds."""

    def __init__(self, nvml: Nvml, clock: Any) -> None:
        self._nvml = nvml
        self._clock = clock
        self._get: Any = nvml.function("nvmlDeviceGetSamples")
        self._newest: dict[str, int] = {}
        self._absent: dict[str, float] = {}
        self._array: Any = None

    def read(self, handle: Any, uuid: str) -> tuple[float, float, float] | None:
        """(mean, peak, seconds), in percent; None where there is nothing new. Raises NvmlError when the GPU is lost."""
        if self._get is None or self._clock() - self._absent.get(uuid, -math.inf) < AGAIN_S:
            return None
        since = self._newest.get(uuid)
        samples = self._samples(handle, uuid, since or 0)
        if not samples and since:
            # The driver's clock may have gone back.
            samples = self._samples(handle, uuid, 0)
        if not samples:
            return None
        self._newest[uuid] = newest = max(at for at, _ in samples)
        if since is None or newest <= since:
            return None
        area, covered, peak = integrate(samples, since)
        return None if peak is None else (area / covered, peak, covered / 1e6)

    def _samples(self, handle: Any, uuid: str, since: int) -> list[tuple[int, float]]:
        if self._array is None:
            room = ctypes.c_uint(0)
            kind = ctypes.c_int(0)
            code = self._get(
                handle, GPU_UTILIZATION, ctypes.c_ulonglong(0), ctypes.byref(kind), ctypes.byref(room), None
            )
            if not self._answered(code, uuid) or not room.value:
                return []
            self._array = (ctypes.c_ubyte * (SAMPLE.size * min(room.value, MOST)))()
        count, kind = ctypes.c_uint(len(self._array) // SAMPLE.size), ctypes.c_int(0)
        code = self._get(
            handle, GPU_UTILIZATION, ctypes.c_ulonglong(since), ctypes.byref(kind), ctypes.byref(count), self._array
        )
        if not self._answered(code, uuid):
            return []
        rows = SAMPLE.iter_unpack(memoryview(self._array)[: SAMPLE.size * count.value])
        return [(at, value) for at, raw in rows if at and math.isfinite(value := _value(kind.value, raw))]

    def _answered(self, code: int, uuid: str) -> bool:
        """Whether there are samples. What a GPU does not have, as with MIG on, is asked again only after a while."""
        if code in GONE:
            raise NvmlError(code, "samples", self._nvml.error_text(code))
        if code not in (0, NOT_FOUND):
            self._absent[uuid] = self._clock()
            self._newest.pop(uuid, None)
            self._array = None
        return code == 0


def _value(kind: int, raw: int) -> float:
    if kind == _DOUBLE:
        return float(struct.unpack("=d", struct.pack("=Q", raw))[0])
    return raw if kind in _WIDE else raw & 0xFFFFFFFF
