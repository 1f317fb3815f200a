"""NVML's return codes that decide something here, apart from the calls: who only judges answers needs no ctypes."""

from __future__ import annotations

NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
IN_USE = 19
INSUFFICIENT_RESOURCES = 23
INVALID_ARGUMENT = 2
VERSION_MISMATCH = 25

# What every call answers once the kernel module was unloaded or replaced under a running process.
STALE = frozenset({1, DRIVER_NOT_LOADED, 18, 999})
NEXT_WAY = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND, VERSION_MISMATCH})
