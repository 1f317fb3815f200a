"""A simulated machine that is switched off and on again: what that cures on its GPUs, and what it does not.

The driver and every program begin anew: faults of the driver, repairs that wait for a reset, volatile counters and what
was set while the machine ran are gone, and a GPU that fell off the bus is found again. What is kept in the GPU or lies
outside of it stays: lifetime counters, retired pages and remapped rows, a remap that failed, memory that can't be
repaired, heat, missing power. MIG slices are gone on every GPU; the mode stays on those that keep it (Ampere).
"""

from __future__ import annotations

import ctypes
import time
from pathlib import Path
from typing import Any, Final

from kgpu.hw.simulator import container_driver, container_settings, faults, fill, kernel_log, modules
from kgpu.hw.simulator.load_model import load_target, now_ns, settle
from kgpu.hw.simulator.operate import opened
from kgpu.hw.simulator.others import simulation_of

# Faults, counters and settings that are the driver's: it has lost them when it is loaded again.
_LOST: Final = (
    "lost", "hang", "slow_us", "reset_required", "init_error", "next_reset", "failing", "recovery_action", "xid_last",
    "xid_count",
    "remap_pending", "remap_corrected_inactive", "remap_uncorrected_inactive", "retired_pending", "pcie_replays",
    "energy_mj", "compute_mode", "accounting_mode", "timeslice", "gpm_streaming", "load_set", "mem_load_set",
    "enc_util", "dec_util", "jpg_util", "ofa_util", "mem_used_base",
)  # fmt: skip
_LOST_TABLES: Final = ("ecc_volatile", "pcie_err", "throttle_ns", "clock_lock", "process", "gi", "ci")


def reboot(root: Path) -> None:
    """Switch the machine of ``root`` off and on again. Raises HwError when ``root`` can't be used.

    Every program on it is taken to have ended, and the host's driver is loaded as it boots; one that comes in a
    container is not. Done again it changes nothing more.
    """
    if (other := simulation_of(root)) is not None:
        other.reboot(root)
        return
    with opened(root) as state:
        with state.locked():
            view = state.view
            view.init_error = view.slow_us = view.hang_all = 0
            view.boot_us = time.time_ns() // 1000
            for index in range(state.gpu_count):
                power_cycle(state.gpu(index))
            state.wake()
    kernel_log.begin(root)
    if container_settings.settings(root) is None:
        modules.put_back(root)
    else:
        container_driver.remove_from_host(root)


def power_cycle(gpu: Any) -> None:
    """What a reboot makes of one GPU's state."""
    settle(gpu, now_ns(gpu))
    for name in _LOST_TABLES:
        table = getattr(gpu, name)
        ctypes.memset(ctypes.addressof(table), 0, ctypes.sizeof(table))
    for name in _LOST:
        setattr(gpu, name, 0)
    gpu.load_prev = gpu.load_target = load_target(gpu)
    gpu.throttle_since_ns = now_ns(gpu)
    gpu.bar1_used = fill.BAR1_USED
    gpu.ecc_current = gpu.ecc_pending
    # Ampere keeps the mode in the GPU; later ones begin without.
    gpu.mig_current = gpu.mig_pending = gpu.mig_pending if gpu.mig_needs_reset else 0
    gpu.persistence = fill.persistence(int(gpu.brand))
    gpu.power_limit_mw = gpu.power_limit_default_mw
    gpu.clock_app[:] = gpu.clock_app_default[:]
    faults.train_links(gpu)
