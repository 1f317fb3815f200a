"""Every NVML call that kgpu makes, as data: symbols in order of preference, and the outputs that each one fills.

Drivers differ in which versions of a function and of its struct they have. ``Nvml.call`` walks a row's ways until
one works; "function not found", "not supported" and "struct version mismatch" mean "try the next way". The module is
part of the hardware child, so it stays clear of dataclasses and typing (2 MB of resident memory).
"""

from __future__ import annotations

import ctypes
from collections import namedtuple

from kgpu.hw.nvidia.codes import (
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    NEXT_WAY,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    VERSION_MISMATCH,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# symbol; outs: "u32", "i32", "u64", "text:<bytes>" or the name of a struct in pynvml, each passed by reference after
# the arguments; version: what to write into the struct's version member, named in pynvml, or "".
Way = namedtuple("Way", ["symbol", "outs", "version"], defaults=[("u32",), ""])  # noqa: PYI024 - typing is too heavy here

GONE = frozenset({GPU_IS_LOST, RESET_REQUIRED})
DROP_WAY = frozenset({FUNCTION_NOT_FOUND, VERSION_MISMATCH})
_UUID = ("text:96",)


def _processes(kind: str) -> tuple[Way, ...]:
    name = f"nvmlDeviceGet{kind}RunningProcesses"
    return (
        Way(f"{name}_v3", ("c_nvmlProcessInfo_v2_t",)),
        Way(f"{name}_v2", ("c_nvmlProcessInfo_v2_t",)),
    )


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
    "handle_by_uuid": (Way("nvmlDeviceGetHandleByUUID", ("c_nvmlDevice_t",)),),
    "index": (Way("nvmlDeviceGetIndex"),),
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
    "set_mig_mode": (Way("nvmlDeviceSetMigMode"),),
    "gi_create": (Way("nvmlDeviceCreateGpuInstanceWithPlacement", ("c_nvmlGpuInstance_t",)),),
    "gi_destroy": (Way("nvmlGpuInstanceDestroy", ()),),
    "ci_create_at": (Way("nvmlGpuInstanceCreateComputeInstanceWithPlacement", ("c_nvmlComputeInstance_t",)),),
    "ci_create": (Way("nvmlGpuInstanceCreateComputeInstance", ("c_nvmlComputeInstance_t",)),),
    "ci_destroy": (Way("nvmlComputeInstanceDestroy", ()),),
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
    "p2p": (Way("nvmlDeviceGetP2PStatus", ("u32",)),),
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
    "app_clock": (Way("nvmlDeviceGetApplicationsClock"),),
    "max_clock": (Way("nvmlDeviceGetMaxClockInfo"),),
    "clock_reasons": (
        Way("nvmlDeviceGetCurrentClocksEventReasons", ("u64",)),
        Way("nvmlDeviceGetCurrentClocksThrottleReasons", ("u64",)),
    ),
    "energy": (Way("nvmlDeviceGetTotalEnergyConsumption", ("u64",)),),
    "encoder": (Way("nvmlDeviceGetEncoderUtilization", ("u32", "u32")),),
    "decoder": (Way("nvmlDeviceGetDecoderUtilization", ("u32", "u32")),),
    "margin": (Way("nvmlDeviceGetMarginTemperature", ("c_nvmlMarginTemperature_v1_t",), "nvmlMarginTemperature_v1"),),
    "threshold": (Way("nvmlDeviceGetTemperatureThreshold"),),
    "power_limit_set": (Way("nvmlDeviceGetPowerManagementLimit"),),
    "power_limits": (Way("nvmlDeviceGetPowerManagementLimitConstraints", ("u32", "u32")),),
    "power_limit_default": (Way("nvmlDeviceGetPowerManagementDefaultLimit"),),
    "performance_state": (Way("nvmlDeviceGetPerformanceState"),),
    "fan": (Way("nvmlDeviceGetFanSpeed"),),
    "bar1": (Way("nvmlDeviceGetBAR1MemoryInfo", ("c_nvmlBAR1Memory_t",)),),
    "pcie_generation": (Way("nvmlDeviceGetCurrPcieLinkGeneration"),),
    "pcie_width": (Way("nvmlDeviceGetCurrPcieLinkWidth"),),
    "pcie_max_generation": (Way("nvmlDeviceGetMaxPcieLinkGeneration"),),
    "pcie_max_width": (Way("nvmlDeviceGetMaxPcieLinkWidth"),),
    "pcie_replays": (Way("nvmlDeviceGetPcieReplayCounter"),),
    "ecc_mode": (Way("nvmlDeviceGetEccMode", ("u32", "u32")),),
    "ecc_total": (Way("nvmlDeviceGetTotalEccErrors", ("u64",)),),
    "ecc_count": (Way("nvmlDeviceGetMemoryErrorCounter", ("u64",)),),
    "sram_errors": (
        Way("nvmlDeviceGetSramEccErrorStatus", ("c_nvmlEccSramErrorStatus_v1_t",), "nvmlEccSramErrorStatus_v1"),
    ),
    "unrepairable": (Way("nvmlDeviceGetUnrepairableMemoryFlag_v1", ("c_nvmlUnrepairableMemory_v1_t",)),),
    "remap_banks": (Way("nvmlDeviceGetRowRemapperHistogram", ("c_nvmlRowRemapperHistogramValues",)),),
    "compute_mode": (Way("nvmlDeviceGetComputeMode"),),
    "persistence_mode": (Way("nvmlDeviceGetPersistenceMode"),),
    "cc_state": (Way("nvmlSystemGetConfComputeState", ("c_nvmlConfComputeSystemState_t",)),),
    "vbios": (Way("nvmlDeviceGetVbiosVersion", ("text:32",)),),
    "inforom": (Way("nvmlDeviceGetInforomVersion", ("text:32",)),),
    "inforom_image": (Way("nvmlDeviceGetInforomImageVersion", ("text:32",)),),
    "license": (
        Way("nvmlDeviceGetGridLicensableFeatures_v4", ("c_nvmlGridLicensableFeatures_v4_t",)),
        Way("nvmlDeviceGetGridLicensableFeatures_v3", ("c_nvmlGridLicensableFeatures_v3_t",)),
    ),
    # Filled by the caller, who says how much room there is.
    "compute_processes": _processes("Compute"),
    "graphics_processes": _processes("Graphics"),
    "mps_processes": _processes("MPSCompute"),
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
        function: Callable[..., int] | None = self._functions[symbol]
        return function

    def call(self, name: str, *arguments: Any) -> Any:
        """The row's outputs: None, one value, or a tuple. Raises NvmlError with the last way's reason."""
        code = FUNCTION_NOT_FOUND
        for way in CALLS[name]:
            function = self.function(way.symbol)
            if function is None:
                continue
            outs = self.outputs(way)
            inputs = (0,) if way.symbol == "nvmlInitWithFlags" else arguments
            code = function(*inputs, *self.passed(outs))
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

    def outputs(self, way: Way) -> list[Any]:
        """Fresh outputs of one way, the struct's version written in."""
        outs = [self._out(kind) for kind in way.outs]
        if way.version:
            outs[0].version = getattr(self.structs, way.version)
        return outs

    def _out(self, kind: str) -> Any:
        if kind.startswith("text:"):
            return ctypes.create_string_buffer(int(kind[5:]))
        return _SCALARS[kind]() if kind in _SCALARS else getattr(self.structs, kind)()

    @staticmethod
    def passed(outs: list[Any]) -> list[Any]:
        """What to give the function for its outputs, after the arguments."""
        passed: list[Any] = []
        for out in outs:
            if isinstance(out, ctypes.Array):
                passed += [out, ctypes.c_uint(len(out))]
            else:
                passed.append(ctypes.byref(out))
        return passed


class BoundCall:
    """One row of CALLS with its outputs made once: ``ask``, then read ``outs`` before the next call."""

    __slots__ = ("_ways", "name", "nvml", "outs")

    def __init__(self, nvml: Nvml, name: str) -> None:
        self.nvml = nvml
        self.name = name
        self.outs: list[Any] = []
        self._ways: list[tuple[Any, list[Any], list[Any]]] = []
        for way in CALLS[name]:
            function = nvml.function(way.symbol)
            if function is not None:
                outs = nvml.outputs(way)
                self._ways.append((function, outs, nvml.passed(outs)))

    def ask(self, *arguments: Any) -> int:
        """The return code of the first way that this GPU has."""
        code: int = FUNCTION_NOT_FOUND
        for way in tuple(self._ways):
            function, self.outs, passed = way
            code = function(*arguments, *passed)
            if code == 0 or (code != NOT_SUPPORTED and code not in DROP_WAY):
                return code
            if code in DROP_WAY:
                self._ways.remove(way)
        return code

    def value(self, member: str | int) -> Any:
        """One output: a member of the only struct, the n-th of several, or the only one; None when it has none such."""
        out = self.outs[member] if isinstance(member, int) else self.outs[0]
        if isinstance(member, str) and member:
            return getattr(out, member, None)
        return out.value.decode(errors="replace") if isinstance(out, ctypes.Array) else out.value


class Calls:
    """The rows of CALLS as ``BoundCall``, each made on first use."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._made: dict[str, BoundCall] = {}

    def __call__(self, name: str) -> BoundCall:
        """The row of this name."""
        if name not in self._made:
            self._made[name] = BoundCall(self._nvml, name)
        return self._made[name]


def ask(bound: BoundCall, *arguments: Any) -> int:
    """The return code; one that says that the whole GPU is unreachable is raised as ``NvmlError``."""
    code = bound.ask(*arguments)
    if code in GONE:
        raise NvmlError(code, bound.name, bound.nvml.error_text(code))
    return code


def address(handle: Any) -> int | None:
    """Which handle it is: two objects can be of one."""
    return ctypes.cast(handle, ctypes.c_void_p).value


def _value(out: Any) -> Any:
    if isinstance(out, ctypes.Array):
        return out.value.decode(errors="replace")
    return out.value if isinstance(out, ctypes._SimpleCData) else out
