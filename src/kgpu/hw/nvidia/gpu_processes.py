"""Who uses a GPU: the driver's process lists and its per-process samples, as rows for the wire.

With MIG on each MIG device is asked for its own processes. A list that can't be had is empty; a share that is not
measured is None. Part of the hardware child.
"""

from __future__ import annotations

import ctypes
import time

from kgpu.hw.nvidia.codes import INSUFFICIENT_SIZE, NOT_FOUND
from kgpu.hw.nvidia.fallbacks import CALLS, GONE, Nvml, NvmlError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from kgpu.hw.nvidia.slices import Slice

MIB = 1 << 20
MOST_MIB = 1 << 40  # more than this is NVML_VALUE_NOT_AVAILABLE
# A process in several lists is reported once, by the last: as a client of MPS, else as a computing process.
KINDS = (("graphics_processes", "graphics"), ("compute_processes", "compute"), ("mps_processes", "mps"))
WINDOW_S = 2.0
MOST = 4096
IDLE = (0, 0, 0, 0)
UNKNOWN = (None, None, None, None)


def processes(nvml: Nvml, handle: Any, slices: Iterable[Slice] | None) -> list[list[Any]]:
    """Rows as ``wire.ProcessRow`` has them; ``slices`` are the MIG devices, None without MIG. Raises NvmlError."""
    if slices is None:
        used = shares(nvml, handle)
        return [[*row, *(UNKNOWN if used is None else used.get(row[0], IDLE))] for row in _rows(nvml, handle)]
    return [[*row, *UNKNOWN] for mig, _, gi, ci in slices for row in _rows(nvml, mig, gi, ci)]


def _rows(nvml: Nvml, handle: Any, gi: int | None = None, ci: int | None = None) -> list[list[Any]]:
    by_pid: dict[int, list[Any]] = {}
    for name, kind in KINDS:
        for pid, memory in _listed(nvml, name, handle):
            by_pid[pid] = [pid, kind, memory, gi, ci]
    return list(by_pid.values())


def _listed(nvml: Nvml, name: str, handle: Any) -> list[tuple[int, int | None]]:
    """(pid, MiB or None) of one of the driver's lists."""
    for way in CALLS[name]:
        function = nvml.function(way.symbol)
        if function is None:
            continue
        code, rows = _filled(nvml, function, getattr(nvml.structs, way.outs[0]), handle)
        if code == 0:
            return [(row.pid, _mib(row.usedGpuMemory)) for row in rows]
    return []


def shares(nvml: Nvml, handle: Any, seconds: float = WINDOW_S) -> dict[int, tuple[int, int, int, int]] | None:
    """Parts of the SMs, memory, encoders and decoders by pid, in the newest sample of so many seconds; None when
    not measured.
    """
    function = nvml.function("nvmlDeviceGetProcessUtilization")
    if function is None:
        return None
    # Older samples are of processes that have been idle since.
    since = ctypes.c_ulonglong(int((time.time() - seconds) * 1e6))
    kind = nvml.structs.c_nvmlProcessUtilizationSample_t
    code, rows = _filled(nvml, function, kind, handle, since)
    if code not in (0, NOT_FOUND):
        return None
    newest: dict[int, tuple[int, tuple[int, int, int, int]]] = {}
    for row in rows:
        if row.pid not in newest or row.timeStamp >= newest[row.pid][0]:
            newest[row.pid] = (row.timeStamp, (row.smUtil, row.memUtil, row.encUtil, row.decUtil))
    return {pid: shares for pid, (_, shares) in newest.items()}


def _filled(nvml: Nvml, function: Any, kind: Any, handle: Any, since: Any = None) -> tuple[int, list[Any]]:
    """(code, rows) of a call that takes the array's size; with ``since`` the array is the first argument."""
    room = 32
    for _ in range(3):
        count = ctypes.c_uint(room)
        array = (kind * room)()
        counted = ctypes.byref(count)
        code = function(handle, counted, array) if since is None else function(handle, array, counted, since)
        if code in GONE:
            raise NvmlError(code, "processes", nvml.error_text(code))
        if code != INSUFFICIENT_SIZE:
            return code, list(array[: min(room, count.value)]) if code == 0 else []
        # Between the two calls some may start.
        room = min(count.value, MOST) + 16
    return INSUFFICIENT_SIZE, []


def _mib(used: int) -> int | None:
    return used // MIB if used // MIB < MOST_MIB else None
