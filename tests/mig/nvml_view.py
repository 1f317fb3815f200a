"""How a GPU of a simulated root is cut, read by another program than kgpu: pynvml in a process of its own."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.hw.simulator.nvml_process import Nvml

HELPERS = """
def instances(h):
    count = 0
    for number in range(18):
        try:
            info = nvmlDeviceGetGpuInstanceProfileInfo(h, number)
        except NVMLError:
            continue
        room, n = (c_nvmlGpuInstance_t * 16)(), ctypes.c_uint()
        nvmlDeviceGetGpuInstances(h, info.id, room, ctypes.byref(n))
        count += n.value
    return count

def slices(h):
    out = []
    for k in range(nvmlDeviceGetMaxMigDeviceCount(h)):
        try:
            m = nvmlDeviceGetMigDeviceHandleByIndex(h, k)
        except NVMLError_NotFound:
            continue
        out.append(nvmlDeviceGetName(m).split(" MIG ")[1])
    return out

def view(index):
    h = nvmlDeviceGetHandleByIndex(index)
    current, pending = nvmlDeviceGetMigMode(h)
    return [current, pending, instances(h) if current else 0, slices(h) if current else []]
"""


def seen(root: Path, index: int = 0) -> tuple[bool, bool, int, Counter[str]]:
    """(mode, pending mode, number of GPU instances, slices by their names)."""
    with Nvml(root) as nvml:
        nvml.run(HELPERS)
        current, pending, instances, slices = nvml(f"view({index})")
        return bool(current), bool(pending), instances, Counter(slices)
