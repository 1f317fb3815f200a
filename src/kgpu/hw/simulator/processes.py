"""Pretended processes on simulated GPUs, for tests and demos of what uses a GPU.

Programs that use the simulated ``libcuda.so.1`` register themselves; these stay until they are removed. They hold
memory, cause load, and are listed on the GPU or MIG slice that they are put on. Errors are those of ``operate``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean
from kgpu.hw.simulator import schema
from kgpu.hw.simulator.load_model import load_change, profile_number
from kgpu.hw.simulator.load_profiles import LOADS
from kgpu.hw.simulator.operate import check_instance, opened
from kgpu.hw.simulator.others import simulation_of
from kgpu.hw.simulator.state import DriverState

KINDS: Final[Mapping[str, int]] = {
    "compute": schema.C["PROC_COMPUTE"], "graphics": schema.C["PROC_GRAPHICS"], "mps": schema.C["PROC_MPS"],
}  # fmt: skip
MIB: Final = 1 << 20
MAX_PID: Final = 1 << 22
_LIMITS: Final = {"pid": (1, MAX_PID), "--memory": (0, 1 << 24), "--utilization": (0, 100), "--after": (0, 1_000_000)}


def add(
    root: Path,
    gpu: int,
    *,
    pid: int,
    memory_mib: int = 0,
    sm_percent: int = 0,
    kind: str = "compute",
    gi: int | None = None,
    ci: int | None = None,
    name: str = "",
    load: str = "",
    after_s: int = 0,
) -> None:
    """Put a process on a GPU, or on the slice (``gi``, ``ci``); one with the same pid is replaced.

    ``load``: the profile of ``LOADS`` that it follows, beginning ``after_s`` seconds in it; it then holds that
    profile's memory, unless ``memory_mib`` says another. Simulated GPUs of other vendors have no load that moves.
    """
    given = (("pid", pid), ("--memory", memory_mib), ("--utilization", sm_percent), ("--after", after_s))
    for what, number in given:
        low, high = _LIMITS[what]
        if not low <= number <= high:
            raise ConfigError(f"{what} is {number}", f"{low} to {high}", "give another number")
    if kind not in KINDS:
        hint = did_you_mean(kind, KINDS)
        what = f'there is no kind "{kind:.40}"{"; " if hint else ""}{hint}'
        raise ConfigError(what, f"one of: {', '.join(KINDS)}", "correct it")
    if (gi is None) != (ci is None):
        raise ConfigError("--gi or --ci is missing", "both, for a MIG slice, or neither", "see `kgpu lab hw show`")
    if load:
        profile_number(load)
    if kind == "compute" and gi is None and not load and (other := simulation_of(root)) is not None:
        other.add_process(root, gpu, pid=pid, memory_mib=memory_mib)
        return
    with opened(root) as state:
        target = state.gpu(gpu)
        check_instance(target, gpu, gi, ci)
        share, room = _room(target, gi)
        number = profile_number(load) if load else 0
        held = int(room * LOADS[load].memory) if load and not memory_mib else memory_mib * MIB
        with state.locked():
            slot = _slot(state, gpu, pid)
            with load_change(target) as now:
                slot.live, slot.pid, slot.kind = 0, pid, KINDS[kind]
                slot.gi_id = schema.NO_INSTANCE if gi is None else gi
                slot.ci_id = schema.NO_INSTANCE if ci is None else ci
                slot.sm_util, slot.mem_util = sm_percent, sm_percent // 2
                slot.enc_util = slot.dec_util = 0
                slot.load, slot.load_shift_ms, slot.load_share = number, after_s * 1000, share
                slot.memory, slot.start_us = held, now // 1000
                slot.name = name.encode()[:63]
                slot.used = 1


def remove(root: Path, gpu: int, pid: int) -> None:
    """Take a process that ``add`` put there away."""
    if (other := simulation_of(root)) is not None:
        other.remove_process(root, gpu, pid)
        return
    with opened(root) as state, state.locked():
        target = state.gpu(gpu)
        slots = [slot for slot in target.process if slot.used and not slot.live and slot.pid == pid]
        if not slots:
            what = f"GPU {gpu} has no process {pid} that was put there by hand"
            raise ConfigError(what, "one that was", "list them with `kgpu lab hw show -o json`")
        with load_change(target):
            for slot in slots:
                slot.used = 0


def end_all(root: Path) -> None:
    """Take every process away that ``add`` has put there, and every load that was set by hand."""
    if (other := simulation_of(root)) is not None:
        for gpu in other.snapshot(root)["gpus"]:
            for process in gpu["processes"]:
                other.remove_process(root, gpu["index"], process["pid"])
        return
    with opened(root) as state, state.locked():
        for index in range(state.gpu_count):
            target = state.gpu(index)
            with load_change(target):
                target.load_set = target.mem_load_set = 0
                for slot in target.process:
                    if slot.used and not slot.live:
                        slot.used = 0


def _room(target: Any, gi: int | None) -> tuple[int, int]:
    """What part of the GPU a process has, in 1/1000, and how much memory, in bytes."""
    for slot in target.gi:
        if slot.used and slot.id == gi:
            profile = target.gi_profile[slot.row]
            return int(profile.sm) * 1000 // max(1, int(target.sm_count)), int(profile.memory_mib) * MIB
    return 1000, int(target.mem_total - target.mem_reserved)


def _slot(state: DriverState, gpu: int, pid: int) -> Any:
    free = None
    for slot in state.gpu(gpu).process:
        if slot.used and not slot.live and slot.pid == pid:
            return slot
        if not slot.used and free is None:
            free = slot
    if free is None:
        most = schema.C["MAX_PROCESSES"]
        raise ConfigError(f"GPU {gpu} has {most} processes", f"fewer than {most}", "remove one first")
    return free
