"""How a GPU is cut into MIG slices, and single steps that change it. Part of the hardware child, loaded on first use.

Each function answers one request, whose members are its arguments; GPUs are named by UUID. A driver that can't be told
where a compute instance is to stand places it itself. Raises NvmlError.
"""

from __future__ import annotations

import ctypes

from kgpu.hw.nvidia.codes import FUNCTION_NOT_FOUND, INVALID_ARGUMENT, NEXT_WAY
from kgpu.hw.nvidia.fallbacks import Calls, Nvml, NvmlError
from kgpu.hw.nvidia.gpu_processes import processes
from kgpu.hw.nvidia.slices import GpuSlices

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

GI_PROFILES = 18
CI_PROFILES = 9
MOST_PLACES = 64
SHARED_ENGINES = 0


def state(nvml: Nvml, request: dict[str, Any]) -> dict[str, Any]:
    """The GPU at ``index``, or of ``uuid``."""
    handle = nvml.call("handle", request["index"]) if request.get("uuid") is None else _handle(nvml, request)
    uuid = nvml.call("uuid", handle)
    pci = nvml.call("pci", handle)
    mode = _or_none(nvml, "mig_mode", handle)
    on = mode is not None and mode[0] == 1
    slices, trouble = GpuSlices(nvml, Calls(nvml)).now(handle, uuid) if on else (None, None)
    if trouble is not None:
        raise trouble
    users = processes(nvml, handle, slices)
    busy = {row[3] for row in users}
    return {
        "index": nvml.call("index", handle),
        "uuid": uuid,
        "product": nvml.call("name", handle),
        "device": pci.pciDeviceId,
        "subsystem": pci.pciSubSystemId,
        "capable": mode is not None,
        "enabled": on,
        "pending": mode is not None and mode[1] == 1,
        "instances": [_instance(nvml, number, gi, busy) for number, gi in _instances(nvml, handle)] if on else [],
        "used": bool(users),
    }


def set_mode(nvml: Nvml, request: dict[str, Any]) -> int:
    """The activation status: 0, or why the mode only waits for a reset."""
    status: int = nvml.call("set_mig_mode", _handle(nvml, request), ctypes.c_uint(request["enabled"]))
    return status


def create_instance(nvml: Nvml, request: dict[str, Any]) -> int:
    """The id of the GPU instance that was made at ``start``, in memory slices."""
    handle = _handle(nvml, request)
    profile = nvml.call("gi_profile", handle, request["profile"]).id
    size = next((size for start, size in _places(nvml, handle, profile) if start == request["start"]), None)
    if size is None:
        raise NvmlError(INVALID_ARGUMENT, "gi_create", nvml.error_text(INVALID_ARGUMENT))
    place = nvml.structs.c_nvmlGpuInstancePlacement_t()
    place.start, place.size = request["start"], size
    made = nvml.call("gi_create", handle, profile, ctypes.byref(place))
    number: int = nvml.call("gi_info", made).id
    return number


def create_compute(nvml: Nvml, request: dict[str, Any]) -> int:
    """The id of the compute instance that was made in ``instance``."""
    gi = nvml.call("gi", _handle(nvml, request), request["instance"])
    profile = nvml.call("ci_profile", gi, request["profile"], SHARED_ENGINES)
    place = nvml.structs.c_nvmlComputeInstancePlacement_t()
    place.start, place.size = request["start"], profile.sliceCount
    try:
        made = nvml.call("ci_create_at", gi, profile.id, ctypes.byref(place))
    except NvmlError as error:
        if error.code != FUNCTION_NOT_FOUND:
            raise
        made = nvml.call("ci_create", gi, profile.id)
    number: int = nvml.call("ci_info", made).id
    return number


def destroy(nvml: Nvml, request: dict[str, Any]) -> int:
    """Remove the compute instance, or without one the GPU instance."""
    gi = nvml.call("gi", _handle(nvml, request), request["instance"])
    if request["compute"] is None:
        nvml.call("gi_destroy", gi)
    else:
        nvml.call("ci_destroy", nvml.call("ci", gi, request["compute"]))
    return 0


STEPS = {
    "mig_state": state,
    "mig_set_mode": set_mode,
    "mig_create_instance": create_instance,
    "mig_create_compute": create_compute,
    "mig_destroy": destroy,
}


def _handle(nvml: Nvml, request: dict[str, Any]) -> Any:
    return nvml.call("handle_by_uuid", request["uuid"].encode())


def _or_none(nvml: Nvml, name: str, *arguments: Any) -> Any:
    try:
        return nvml.call(name, *arguments)
    except NvmlError as error:
        if error.code in NEXT_WAY:
            return None
        raise


def _instances(nvml: Nvml, handle: Any) -> Iterator[tuple[int, Any]]:
    """(profile's number, handle) of each GPU instance, with or without compute instances."""
    for number in range(GI_PROFILES):
        profile = _or_none(nvml, "gi_profile", handle, number)
        if profile is not None:
            for gi in _listed(nvml, "nvmlDeviceGetGpuInstances", "c_nvmlGpuInstance_t", handle, profile):
                yield number, gi


def _instance(nvml: Nvml, number: int, gi: Any, busy: set[int | None]) -> dict[str, Any]:
    info = nvml.call("gi_info", gi)
    compute = []
    for ci_number in range(CI_PROFILES):
        profile = _or_none(nvml, "ci_profile", gi, ci_number, SHARED_ENGINES)
        if profile is None:
            continue
        symbol = "nvmlGpuInstanceGetComputeInstances"
        for ci in _listed(nvml, symbol, "c_nvmlComputeInstance_t", gi, profile):
            made = nvml.call("ci_info", ci)
            compute.append({"id": made.id, "profile": ci_number, "start": made.placement.start})
    return {
        "id": info.id,
        "profile": number,
        "start": info.placement.start,
        "compute": sorted(compute, key=lambda one: one["id"]),
        "used": info.id in busy,
    }


def _listed(nvml: Nvml, symbol: str, kind: str, holder: Any, profile: Any) -> list[Any]:
    """The instances of one profile: the driver fills an array of as many as there can be."""
    function = nvml.function(symbol)
    array = (getattr(nvml.structs, kind) * max(1, profile.instanceCount))()
    count = ctypes.c_uint(len(array))
    code = FUNCTION_NOT_FOUND if function is None else function(holder, profile.id, array, ctypes.byref(count))
    if code:
        raise NvmlError(code, symbol, nvml.error_text(code))
    return list(array[: count.value])


def _places(nvml: Nvml, handle: Any, profile: int) -> list[tuple[int, int]]:
    """(start, size) of each place where a GPU instance of this profile can be."""
    symbol = "nvmlDeviceGetGpuInstancePossiblePlacements"
    function = nvml.function(f"{symbol}_v2") or nvml.function(symbol)
    array = (nvml.structs.c_nvmlGpuInstancePlacement_t * MOST_PLACES)()
    count = ctypes.c_uint(MOST_PLACES)
    code = FUNCTION_NOT_FOUND if function is None else function(handle, profile, array, ctypes.byref(count))
    if code:
        raise NvmlError(code, "gi_places", nvml.error_text(code))
    return [(place.start, place.size) for place in array[: count.value]]
