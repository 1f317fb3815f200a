"""Every NVML call that kgpu makes, as data: symbols in order of preference, and the outputs that each one fills.

Drivers differ in which versions of a function and of its struct they have. ``Nvml.call`` walks a row's ways until
one works; "function not found", "not supported" and "struct version mismatch" mean "try the next way". The module is
part of the hardware child, so it stays clear of dataclasses and typing (2 MB of resident memory).
"""

from __future__ import annotations

import ctypes
from collections import namedtuple

from kgpu.hw.nvidia.codes import FUNCTION_NOT_FOUND, NEXT_WAY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# symbol; outs: "u32", "i32", "u64", "text:<bytes>" or the name of a struct in pynvml, each passed by reference after
# the arguments; version: what to write into the struct's version member, named in pynvml, or "".
Way = namedtuple("Way", ["symbol", "outs", "version"], defaults=[("u32",), ""])  # noqa: PYI024 - typing is too heavy here

_UUID = ("text:96",)

CALLS = {
    "init": (Way("nvmlInitWithFlags", ()), Way("nvmlInit_v2", ()), Way("nvmlInit", ())),
    "shutdown": (Way("nvmlShutdown", ()),),
    "driver_version": (Way("nvmlSystemGetDriverVersion", ("text:80",)),),
    "nvml_version": (Way("nvmlSystemGetNVMLVersion", ("text:80",)),),
    "cuda_version": (
        Way("nvmlSystemGetCudaDriverVersion_v2", ("i32",)),
        Way("nvmlSystemGetCudaDriverVersion", ("i32",)),
    ),
    "count": (Way("nvmlDeviceGetCount_v2"), Way("nvmlDeviceGetCount")),
    "handle": (
        Way("nvmlDeviceGetHandleByIndex_v2", ("c_nvmlDevice_t",)),
        Way("nvmlDeviceGetHandleByIndex", ("c_nvmlDevice_t",)),
    ),
    "uuid": (Way("nvmlDeviceGetUUID", _UUID),),
    "name": (Way("nvmlDeviceGetName", ("text:96",)),),
    "serial": (Way("nvmlDeviceGetSerial", ("text:30",)),),
    "minor": (Way("nvmlDeviceGetMinorNumber"),),
    "pci": (
        Way("nvmlDeviceGetPciInfo_v3", ("nvmlPciInfo_t",)),
        Way("nvmlDeviceGetPciInfo_v2", ("nvmlPciInfo_v2_t",)),
        Way("nvmlDeviceGetPciInfo", ("nvmlPciInfo_v2_t",)),
    ),
    "memory": (
        Way("nvmlDeviceGetMemoryInfo", ("c_nvmlMemory_t",)),
        Way("nvmlDeviceGetMemoryInfo_v2", ("c_nvmlMemory_v2_t",), "nvmlMemory_v2"),
    ),
    # The first generation of v2 leaves out what the driver keeps for itself; telemetry prefers it.
    "memory_detail": (
        Way("nvmlDeviceGetMemoryInfo_v2", ("c_nvmlMemory_v2_t",), "nvmlMemory_v2"),
        Way("nvmlDeviceGetMemoryInfo", ("c_nvmlMemory_t",)),
    ),
    "compute_capability": (Way("nvmlDeviceGetCudaComputeCapability", ("i32", "i32")),),
    "mig_mode": (Way("nvmlDeviceGetMigMode", ("u32", "u32")),),
    "max_mig": (Way("nvmlDeviceGetMaxMigDeviceCount"),),
    "mig_handle": (Way("nvmlDeviceGetMigDeviceHandleByIndex", ("c_nvmlDevice_t",)),),
    "gi_id": (Way("nvmlDeviceGetGpuInstanceId"),),
    "ci_id": (Way("nvmlDeviceGetComputeInstanceId"),),
    "attributes": (
        Way("nvmlDeviceGetAttributes_v2", ("c_nvmlDeviceAttributes",)),
        Way("nvmlDeviceGetAttributes", ("c_nvmlDeviceAttributes",)),
    ),
    "gi": (Way("nvmlDeviceGetGpuInstanceById", ("c_nvmlGpuInstance_t",)),),
    "gi_info": (Way("nvmlGpuInstanceGetInfo", ("c_nvmlGpuInstanceInfo_t",)),),
    "gi_profile": (
        Way("nvmlDeviceGetGpuInstanceProfileInfoV", ("c_nvmlGpuInstanceProfileInfo_v2_t",)),
        Way("nvmlDeviceGetGpuInstanceProfileInfo", ("c_nvmlGpuInstanceProfileInfo_t",)),
    ),
    "ci": (Way("nvmlGpuInstanceGetComputeInstanceById", ("c_nvmlComputeInstance_t",)),),
    "ci_info": (
        Way("nvmlComputeInstanceGetInfo_v2", ("c_nvmlComputeInstanceInfo_t",)),
        Way("nvmlComputeInstanceGetInfo", ("c_nvmlComputeInstanceInfo_t",)),
    ),
    "ci_profile": (
        Way("nvmlGpuInstanceGetComputeInstanceProfileInfoV", ("c_nvmlComputeInstanceProfileInfo_v2_t",)),
        Way("nvmlGpuInstanceGetComputeInstanceProfileInfo", ("c_nvmlComputeInstanceProfileInfo_t",)),
    ),
    "fabric": (
        Way("nvmlDeviceGetGpuFabricInfoV", ("c_nvmlGpuFabricInfo_v3_t",), "nvmlGpuFabricInfo_v3"),
        Way("nvmlDeviceGetGpuFabricInfoV", ("c_nvmlGpuFabricInfo_v2_t",), "nvmlGpuFabricInfo_v2"),
        Way("nvmlDeviceGetGpuFabricInfo", ("c_nvmlGpuFabricInfo_t",)),
    ),
    "addressing": (
        Way("nvmlDeviceGetAddressingMode", ("c_nvmlDeviceAddressingMode_t",), "nvmlDeviceAddressingMode_v1"),
    ),
    "brand": (Way("nvmlDeviceGetBrand"),),
    "topology": (Way("nvmlDeviceGetTopologyCommonAncestor"),),
    "link_state": (Way("nvmlDeviceGetNvLinkState"),),
    "link_remote": (
        Way("nvmlDeviceGetNvLinkRemotePciInfo_v2", ("nvmlPciInfo_t",)),
        Way("nvmlDeviceGetNvLinkRemotePciInfo", ("nvmlPciInfo_v2_t",)),
    ),
    "event_types": (Way("nvmlDeviceGetSupportedEventTypes", ("u64",)),),
    "event_set": (Way("nvmlEventSetCreate", ("c_nvmlEventSet_t",)),),
    "event_set_free": (Way("nvmlEventSetFree", ()),),
    "register_events": (Way("nvmlDeviceRegisterEvents", ()),),
    "temperature": (Way("nvmlDeviceGetTemperature"),),
    "power": (Way("nvmlDeviceGetPowerUsage"),),
    "power_limit": (Way("nvmlDeviceGetEnforcedPowerLimit"), Way("nvmlDeviceGetPowerManagementLimit")),
    "utilization": (Way("nvmlDeviceGetUtilizationRates", ("c_nvmlUtilization_t",)),),
    "clock": (Way("nvmlDeviceGetClockInfo"),),
    "energy": (Way("nvmlDeviceGetTotalEnergyConsumption", ("u64",)),),
}
_SCALARS = {"u32": ctypes.c_uint, "i32": ctypes.c_int, "u64": ctypes.c_ulonglong}


class NvmlError(Exception):
    """One NVML call failed: ``code`` is the nvmlReturn_t, ``call`` the row's name, ``text`` NVML's own words."""

    def __init__(self, code: int, call: str, text: str) -> None:
        super().__init__(f"{call}: {text}")
        self.code = code
        self.call = call
        self.text = text


class Nvml:
    """NVML through one loaded library; ``structs`` is pynvml, or what stands in for it in a test."""

    def __init__(self, library: Any, structs: Any) -> None:
        self.library = library
        self.structs = structs
        self._functions: dict[str, Any] = {}

    def function(self, symbol: str) -> Callable[..., int] | None:
        """The function, or None when this driver doesn't have it."""
        if symbol not in self._functions:
            self._functions[symbol] = getattr(self.library, symbol, None)
        found: Callable[..., int] | None = self._functions[symbol]
        return found

    def call(self, name: str, *arguments: Any) -> Any:
        """The row's outputs: None, one value, or a tuple. Raises NvmlError with the last way's reason."""
        code = FUNCTION_NOT_FOUND
        for way in CALLS[name]:
            function = self.function(way.symbol)
            if function is None:
                continue
            outs = [self._out(kind) for kind in way.outs]
            if way.version:
                outs[0].version = getattr(self.structs, way.version)
            given = (0,) if way.symbol == "nvmlInitWithFlags" else arguments
            code = function(*given, *self._passed(outs))
            if code == 0:
                values = [_value(out) for out in outs]
                return values[0] if len(values) == 1 else tuple(values) or None
            if code not in NEXT_WAY:
                break
        raise NvmlError(code, name, self.error_text(code))

    def error_text(self, code: int) -> str:
        """NVML's own wording, so that log lines and issue threads match."""
        function = self.function("nvmlErrorString")
        if function is None:
            return f"error {code}"
        function.restype = ctypes.c_char_p  # type: ignore[attr-defined]
        text: Any = function(code)
        return bytes(text).decode(errors="replace") if text else f"error {code}"

    def _out(self, kind: str) -> Any:
        if kind.startswith("text:"):
            return ctypes.create_string_buffer(int(kind[5:]))
        return _SCALARS[kind]() if kind in _SCALARS else getattr(self.structs, kind)()

    @staticmethod
    def _passed(outs: list[Any]) -> list[Any]:
        passed: list[Any] = []
        for out in outs:
            if isinstance(out, ctypes.Array):
                passed += [out, ctypes.c_uint(len(out))]
            else:
                passed.append(ctypes.byref(out))
        return passed


def _value(out: Any) -> Any:
    if isinstance(out, ctypes.Array):
        return out.value.decode(errors="replace")
    return out.value if isinstance(out, ctypes._SimpleCData) else out
