"""GPM, the driver's performance counters (Hopper and later): averages between this reading and the one before.

Promises: never waits. Two samples are kept for each GPU and GPU instance and take turns; two readings that follow each
other faster than NVML's shortest span get the same values. Metrics that the GPU does not have, and values that are no
numbers, are left out.
"""

from __future__ import annotations

import ctypes
import math
import struct

from kgpu.hw.nvidia.codes import (
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    INVALID_ARGUMENT,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    VERSION_MISMATCH,
)
from kgpu.hw.nvidia.fallbacks import Nvml, NvmlError, address
from kgpu.hw.nvidia.telemetry_rows import GPM_KEYS, GPM_SHARED, GPM_WHOLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

SHORTEST_S = 0.1
AGAIN_S = 60.0
VERSION = 1
GONE = frozenset({GPU_IS_LOST, RESET_REQUIRED})
# A field or an argument that is newer than the driver is an invalid argument to it.
ABSENT = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND, VERSION_MISMATCH, INVALID_ARGUMENT})
# nvmlGpmMetric_t: id, return code, value, and three pointers to names. Read as bytes, since attributes are slow.
METRIC = struct.Struct("=IId24x")
HEADER = 24
MOST_REQUESTS = 8
ROOM = 512  # the library's header has a fixed number, fewer than this


class GpmMetricsGet(ctypes.Structure):
    """nvmlGpmMetricsGet_t."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("numMetrics", ctypes.c_uint),
        ("sample1", ctypes.c_void_p),
        ("sample2", ctypes.c_void_p),
        ("metrics", ctypes.c_ubyte * (METRIC.size * ROOM)),
    )


class SamplePair:
    """Two samples of one unit, the values between them, and which metrics it has."""

    __slots__ = ("at", "metrics", "newer", "older", "probed", "values")

    def __init__(self, older: Any, newer: Any) -> None:
        self.older = older
        self.newer = newer
        self.at = -math.inf
        self.probed = -math.inf
        self.metrics: tuple[int, ...] = ()
        self.values: dict[str, float] = {}


class Gpm:
    """``read`` adds values by key; a GPU without GPM adds none."""

    def __init__(self, nvml: Nvml, clock: Any) -> None:
        self._nvml = nvml
        self._clock = clock
        names = ("SampleAlloc", "SampleFree", "SampleGet", "MigSampleGet", "MetricsGet", "QueryDeviceSupport")
        functions = {name: nvml.function(f"nvmlGpm{name}") for name in names}
        self._functions: dict[str, Any] = functions if all(functions.values()) else {}
        self._supported: dict[str, bool] = {}
        self._unsure: dict[str, float] = {}  # when a GPU gave no answer
        self._pairs: dict[tuple[str, int | None], SamplePair] = {}
        self._requests: dict[tuple[int, ...], GpmMetricsGet] = {}
        self._whole: tuple[int, ...] = GPM_WHOLE
        self._shared: tuple[int, ...] = GPM_SHARED

    def want(self, keys: Collection[str] | None) -> None:
        """Compute these from now on, or all."""
        self._whole = tuple(metric for metric in GPM_WHOLE if keys is None or GPM_KEYS[metric] in keys)
        self._shared = tuple(metric for metric in GPM_SHARED if keys is None or GPM_KEYS[metric] in keys)
        for pair in self._pairs.values():
            pair.probed = -math.inf

    def read(self, handle: Any, uuid: str, gi: int | None, into: dict[str, Any]) -> None:
        """Add what happened since the last call about the GPU, or its instance ``gi``. Raises NvmlError when lost."""
        metrics = self._whole if gi is None else self._shared
        if not metrics or not self._functions or not self._has(handle, uuid):
            return
        pair = self._pairs.get((uuid, gi)) or self._new(uuid, gi)
        if pair is None:
            return
        now = self._clock()
        if now - pair.at >= SHORTEST_S:
            self._advance(handle, gi, pair, now)
        into.update(pair.values)

    def forget_others(self, uuid: str, instances: Collection[int]) -> None:
        """Free what is kept for instances of the GPU that are not there any more."""
        for key in [
            unit for unit in self._pairs if unit[0] == uuid and unit[1] is not None and unit[1] not in instances
        ]:
            pair = self._pairs.pop(key)
            for sample in (pair.older, pair.newer):
                self._functions["SampleFree"](sample)

    def _has(self, handle: Any, uuid: str) -> bool:
        """A call that fails says nothing about the GPU: it is made again after ``AGAIN_S``."""
        if uuid not in self._supported:
            now = self._clock()
            if now - self._unsure.get(uuid, -math.inf) < AGAIN_S:
                return False
            support = self._nvml.structs.c_nvmlGpmSupport_t()
            support.version = VERSION
            code = self._checked("QueryDeviceSupport", handle, ctypes.byref(support))
            if code != 0 and code not in ABSENT:
                self._unsure[uuid] = now
                return False
            self._supported[uuid] = code == 0 and bool(support.isSupportedDevice)
        return self._supported[uuid]

    def _new(self, uuid: str, gi: int | None) -> SamplePair | None:
        samples: list[Any] = []
        for _ in range(2):
            sample = self._nvml.structs.c_nvmlGpmSample_t()
            if self._functions["SampleAlloc"](ctypes.byref(sample)) != 0:
                for allocated in samples:
                    self._functions["SampleFree"](allocated)
                return None
            samples.append(sample)
        pair = self._pairs[uuid, gi] = SamplePair(*samples)
        return pair

    def _advance(self, handle: Any, gi: int | None, pair: SamplePair, now: float) -> None:
        before = pair.at
        pair.older, pair.newer = pair.newer, pair.older
        if gi is None:
            code = self._checked("SampleGet", handle, pair.newer)
        else:
            code = self._checked("MigSampleGet", handle, ctypes.c_uint(gi), pair.newer)
        pair.values = {}
        if code != 0:
            pair.at = -math.inf
            return
        pair.at = now
        if math.isfinite(before):
            self._compute(pair, gi, now)

    def _compute(self, pair: SamplePair, gi: int | None, now: float) -> None:
        if now - pair.probed >= AGAIN_S:
            pair.probed = now
            pair.metrics = self._whole if gi is None else self._shared
        metrics = pair.metrics
        if not metrics:
            return
        request = self._request(metrics)
        request.sample1, request.sample2 = address(pair.older), address(pair.newer)
        if self._checked("MetricsGet", ctypes.byref(request)) != 0:
            return
        rows = METRIC.iter_unpack(memoryview(request).cast("B")[HEADER : HEADER + METRIC.size * len(metrics)])
        answered = [(number, value) for number, code, value in rows if code == 0]
        pair.values = {GPM_KEYS[number]: value for number, value in answered if math.isfinite(value)}
        if len(answered) < len(metrics):
            pair.metrics = tuple(number for number, _ in answered)

    def _request(self, metrics: tuple[int, ...]) -> GpmMetricsGet:
        """The request for these metrics; units with the same metrics share it."""
        request = self._requests.get(metrics)
        if request is None:
            if len(self._requests) >= MOST_REQUESTS:
                self._requests.clear()
            request = self._requests[metrics] = GpmMetricsGet()
            request.version, request.numMetrics = VERSION, len(metrics)
            view = memoryview(request).cast("B")
            for place, number in enumerate(metrics):
                METRIC.pack_into(view, HEADER + METRIC.size * place, number, 0, 0.0)
        return request

    def _checked(self, name: str, *arguments: Any) -> int:
        code: int = self._functions[name](*arguments)
        if code in GONE:
            raise NvmlError(code, f"gpm {name}", self._nvml.error_text(code))
        return code
