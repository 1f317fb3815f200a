"""Why NVML can't be used at all, in three parts, and the log lines that users and issue threads know it by.

The wording of ``Failed to initialize NVML: ...`` and ``nvml init failed: ...`` is the replaced plugin's, because people
search for it; the reason is NVML's own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from kgpu.base.errors import DriverFault, HwError
from kgpu.hw import roots
from kgpu.hw.nvidia.codes import DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, NO_PERMISSION
from kgpu.hw.nvidia.process import Died, Stalled
from kgpu.hw.nvidia.wire import Trouble

LIB_RM_VERSION_MISMATCH: Final = 18

_ADVICE: Final[Mapping[int, str]] = {
    LIBRARY_NOT_FOUND: (
        "install the NVIDIA driver, or point --driver-root at the folder where it is installed or mounted"
    ),
    DRIVER_NOT_LOADED: "load the nvidia kernel module and make its device nodes visible here (/dev/nvidiactl)",
    LIB_RM_VERSION_MISMATCH: "reload the nvidia kernel module or reboot, so that module and library have one version",
    NO_PERMISSION: "run with access to the device nodes (privileged, or with the devices allowed in the cgroup)",
}
_FAULTS: Final[Mapping[int, DriverFault]] = {
    LIBRARY_NOT_FOUND: DriverFault.LIBRARY_NOT_FOUND,
    DRIVER_NOT_LOADED: DriverFault.NOT_LOADED,
    LIB_RM_VERSION_MISMATCH: DriverFault.VERSION_MISMATCH,
    NO_PERMISSION: DriverFault.NO_PERMISSION,
}
_DEFAULT_ADVICE: Final = "run `nvidia-smi` on the node and read the kernel log's NVRM lines"


class NvmlInitError(HwError):
    """NVML can't be initialised; ``code`` is the nvmlReturn_t, ``reason`` NVML's own words. Trying later may work."""

    def __init__(self, code: int, reason: str, expected: str, remedy: str) -> None:
        fault = _FAULTS.get(code, DriverFault.OTHER)
        super().__init__(f"nvml init failed: {reason}", expected, remedy, fault=fault)
        self.code = code
        self.reason = reason


def init_error(trouble: Trouble, driver_root: str) -> NvmlInitError:
    """The error for NVML's answer to its initialisation."""
    detail, code, reason = trouble
    expected = "an NVIDIA driver that NVML can talk to"
    if code == LIBRARY_NOT_FOUND:
        places = ", ".join(roots.library_candidates(driver_root))
        expected = f"{roots.LIBRARY} in the loader's path or at one of {places} ({detail})"
    return NvmlInitError(code, reason, expected, _ADVICE.get(code, _DEFAULT_ADVICE))


def node_error(error: Stalled | Died) -> HwError:
    """The error when the driver hangs or crashes before it even counts its GPUs."""
    return HwError(
        f"the NVIDIA driver can't be read: {error}",
        "NVML initialises and counts its GPUs in time",
        "read the kernel log for NVRM and Xid lines; a reboot may be needed. kgpu keeps trying",
        fault=DriverFault.HUNG if isinstance(error, Stalled) else DriverFault.CRASHED,
    )


def held_error(pids: Iterable[int]) -> HwError:
    """The error when killed children don't end: another one would only be the next to get stuck."""
    return HwError(
        f"the NVIDIA driver holds processes that were killed: {', '.join(map(str, pids))}",
        "a process that reads the driver ends when it is killed",
        "read the kernel log for NVRM and Xid lines and for blocked tasks; a reboot may be needed. kgpu goes on by"
        " itself when one of them ends",
        fault=DriverFault.HUNG,
    )


def log_init_error(log: logging.Logger, error: NvmlInitError) -> None:
    """The replaced plugin's line, which people search for, then what to do.

    Its second line, about Docker's default runtime, is no advice where containers get their devices through CDI.
    """
    log.warning("Failed to initialize NVML: %s.", error.reason)
    log.warning("%s", error.one_line())
