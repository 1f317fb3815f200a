"""What people do to a simulated AMD node while programs read it: faults, errors, modes, processes, the driver.

Every function takes the root that ``create`` made. Input errors are ``ConfigError``, an unusable root is ``HwError``.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from kgpu.base.errors import ConfigError, HwError
from kgpu.base.suggest import did_you_mean
from kgpu.hw.simulator import kernel_log
from kgpu.hw.simulator.amd import node_file, tree
from kgpu.hw.simulator.amd.node_file import AmdNodeRecord, GpuRecord, changing
from kgpu.hw.simulator.amd.profiles import AmdDriver, AmdModel, AmdProfile
from kgpu.hw.simulator.profiles import convert

FAULTS: Final[Mapping[str, str]] = {
    tree.LOST: "the GPU falls off the bus: what is read of it has all bits set",
    tree.HANG: "files whose content its firmware gives can be opened and never answer",
    tree.GARBAGE: "files have content that no driver writes",
    tree.HOT: "the GPU passes its critical temperature",
    "ecc": "memory errors are counted (RAS)",
}
ASIDE: Final = ".unloaded"
_USUAL: Final = {"NPS1": "SPX", "NPS2": "DPX"}
"""The compute mode that the driver takes by itself for a memory mode; for all others CPX."""
_OF_DRIVER: Final = (
    "sys/module/amdgpu",
    "sys/class/kfd",
    "sys/class/drm",
    "sys/bus/pci/drivers/amdgpu",
    "dev/kfd",
    "dev/dri",
)


def create(profile: AmdProfile, root: Path, *, seed: str = "") -> None:
    """Make the node's files in the folder ``root``. Raises OSError."""
    record = AmdNodeRecord(
        profile=profile,
        seed=seed,
        gpus=[_new(gpu.model) for gpu in profile.gpus],
    )
    tree.build(root, record)
    node_file.save(root, record)


def _new(model: AmdModel) -> GpuRecord:
    return GpuRecord(compute=next(iter(model.compute), ""), memory=next(iter(model.memory), ""))


def inject(root: Path, fault: str, *, gpu: int | None = None, count: int = 1, corrected: bool = False) -> None:
    """Make a fault of ``FAULTS`` happen to a GPU; ``count`` and ``corrected`` go with ``ecc``."""
    if fault not in FAULTS:
        hint = did_you_mean(fault, FAULTS)
        raise ConfigError(
            f'there is no fault "{fault:.80}" of AMD GPUs{"; " if hint else ""}{hint}',
            f"one of: {', '.join(FAULTS)}",
            "choose one of them",
        )
    with changing(root) as record:
        if gpu is None:
            raise ConfigError(f'"{fault}" needs a GPU', f"--gpu 0 to {len(record.gpus) - 1}", "say which with --gpu")
        state = _gpu(record, gpu)
        if fault == "ecc":
            _count_errors(record, gpu, count, corrected=corrected)
            _log(
                root,
                record,
                gpu,
                f"{count} {'' if corrected else 'un'}correctable hardware errors detected in umc block",
            )
        elif fault not in state.faults:
            state.faults.append(fault)
        tree.show_gpu(root, record, gpu)


def _count_errors(record: AmdNodeRecord, gpu: int, count: int, *, corrected: bool) -> None:
    model, state = record.profile.gpus[gpu].model, record.gpus[gpu]
    if not model.ras:
        raise ConfigError(f"{model.name} has no RAS", "a GPU that counts memory errors", "choose another profile")
    if not 1 <= count <= 1 << 40:
        raise ConfigError(f"{count} errors", "1 or more", "correct --count")
    if corrected:
        state.corrected += count
    else:
        state.uncorrected += count


def clear(root: Path, gpu: int | None = None) -> None:
    """Make one GPU, or all of them, healthy again, as a reset does; modes and processes stay."""
    with changing(root) as record:
        for index in range(len(record.gpus)) if gpu is None else [gpu]:
            state = _gpu(record, index)
            if state.faults or state.corrected or state.uncorrected:
                state.resets += 1
                _log(root, record, index, f"GPU reset({state.resets}) succeeded!")
            state.faults, state.corrected, state.uncorrected = [], 0, 0
            tree.show_gpu(root, record, index)


def set_partition(root: Path, gpus: Sequence[int], compute: str, memory: str = "") -> None:
    """Cut GPUs by other modes; without ``memory`` that one stays. The driver refuses while processes use one."""
    there = node_file.read(root)
    for gpu in gpus:  # what can't be at any time is told at once: a change of others may take long
        _gpu(there, gpu)
        _check_modes(there.profile.gpus[gpu].model, compute.upper(), memory.upper())
    with changing(root) as record:
        for gpu in gpus:
            state, model = _gpu(record, gpu), record.profile.gpus[gpu].model
            _check_modes(model, compute.upper(), (memory or state.memory).upper())
            if state.processes:
                raise HwError(f"GPU {gpu} is in use by {', '.join(state.processes)}", "no process on it", "end them")
        for gpu in gpus:
            state = record.gpus[gpu]
            state.compute, state.memory = compute.upper(), (memory or state.memory).upper()
        record.generation += 1
        tree.show_topology(root, record)
        for gpu in gpus:
            tree.show_gpu(root, record, gpu)


def store_mode(root: Path, gpu: int, kind: str, mode: str) -> int:
    """What the kernel does when somebody writes a mode (``kind``: compute or memory); its error number, 0 for none."""
    with changing(root) as record:
        state, model = record.gpus[gpu], record.profile.gpus[gpu].model
        if tree.LOST in state.faults:
            return errno.ENODEV
        if kind == "memory":
            if mode not in model.memory:
                return errno.EINVAL
            state.requested = mode if mode != state.memory else state.requested
            return 0
        if mode not in model.compute or model.memory[state.memory] > model.compute[mode]:
            return errno.EINVAL
        if state.processes:
            return errno.EBUSY
        state.compute = mode
        record.generation += 1
        tree.show_topology(root, record)
        tree.show_gpu(root, record, gpu)
        return 0


def _start(model: AmdModel, state: GpuRecord) -> None:
    """What the driver's start does to a GPU: its memory mode is in force, with the compute mode that goes with it."""
    if model.memory:
        state.memory, state.requested = state.requested or state.memory, ""
        usual = _USUAL.get(state.memory, "CPX")
        state.compute = usual if usual in model.compute else next(iter(model.compute))


def _check_modes(model: AmdModel, compute: str, memory: str) -> None:
    for wanted, known, option in ((compute, model.compute, "--mode"), (memory, model.memory, "--memory")):
        if wanted and wanted not in known:
            have = f"one of: {', '.join(known)}" if known else "a GPU that can be cut"
            raise ConfigError(f'{model.name} has no mode "{wanted:.40}"', have, f"correct {option}")
    if memory and model.memory[memory] > model.compute[compute]:
        raise ConfigError(
            f"{compute} with {memory}", "as many parts as the memory has at least", "cut it into more parts, as by CPX"
        )


def add_process(root: Path, gpu: int, *, pid: int, memory_mib: int) -> None:
    """Let a process use a GPU."""
    with changing(root) as record:
        _gpu(record, gpu).processes[str(pid)] = memory_mib
        _show_use(root, record, gpu)


def remove_process(root: Path, gpu: int, pid: int) -> None:
    """Let it end."""
    with changing(root) as record:
        _gpu(record, gpu).processes.pop(str(pid), None)
        _show_use(root, record, gpu)


def _show_use(root: Path, record: AmdNodeRecord, gpu: int) -> None:
    tree.show_processes(root, record)
    tree.show_gpu(root, record, gpu)


def unload(root: Path) -> None:
    """Unload the driver: what it shows is gone. Refused while a process uses a GPU."""
    with changing(root) as record:
        if any(state.processes for state in record.gpus):
            raise HwError("the driver amdgpu is in use", "no process on a GPU", "end them first")
        for name in _OF_DRIVER:
            _move(root / name, root / ASIDE / name)
        record.loaded = False


def load(root: Path, version: str | None = None) -> str:
    """Load it again, of another ``version`` if given; its version. Raises ConfigError for a bad one."""
    with changing(root) as record:
        if version is not None:
            record.profile = with_version(record.profile, version)
        for name in _OF_DRIVER:
            _move(root / ASIDE / name, root / name)
        shutil.rmtree(root / ASIDE, ignore_errors=True)
        if not record.loaded:
            for index, gpu in enumerate(record.profile.gpus):
                _start(gpu.model, record.gpus[index])
                tree.show_gpu(root, record, index)
            record.generation += 1
            tree.show_topology(root, record)
        record.loaded = True
        tree.show_version(root, record)
        return record.profile.driver.version


def _move(source: Path, target: Path) -> None:
    if os.path.lexists(source) and not os.path.lexists(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(source, target)


def reboot(root: Path) -> None:
    """What a machine is after a boot: healthy, its driver loaded, nothing running, its GPUs whole."""
    load(root)
    with changing(root) as record:
        for index, gpu in enumerate(record.profile.gpus):
            record.gpus[index] = _new(gpu.model)
            tree.show_gpu(root, record, index)
        record.generation += 1
        tree.show_topology(root, record)
        tree.show_processes(root, record)


def snapshot(root: Path) -> dict[str, Any]:
    """The node as it is now, as JSON-ready data; MiB, W, Celsius, percent."""
    record = node_file.read(root)
    profile = record.profile
    return {
        "vendor": "amd",
        "profile": profile.name,
        "hostname": record.seed,
        "driver_version": profile.driver.version,
        "driver_loaded": record.loaded,
        "faults": [],
        "gpus": [_shown(record, index) for index in range(len(record.gpus))],
    }


def _shown(record: AmdNodeRecord, index: int) -> dict[str, Any]:
    gpu, state = record.profile.gpus[index], record.gpus[index]
    faults = [*state.faults, *([f"{state.uncorrected} uncorrectable errors"] if state.uncorrected else [])]
    modes = "/".join(filter(None, (state.compute, state.memory)))
    return {
        "index": index,
        "name": gpu.model.name,
        "uuid": gpu.bus,
        "pci_bus_id": gpu.bus,
        "numa_node": gpu.numa,
        "memory_total_mib": gpu.model.vram_mib,
        "memory_used_mib": 283 + sum(state.processes.values()),
        "temperature_c": gpu.model.temperature_c.idle,
        "power_w": gpu.model.power_w.idle,
        "power_limit_w": gpu.model.power_w.limit,
        "recovery_action": "reset" if state.uncorrected else "none",
        "mig": {"capable": False, "enabled": False, "pending": False, "devices": []},
        "utilization_percent": 100 if state.processes else 0,
        "partition": modes,
        "ecc": {"corrected": state.corrected, "uncorrected": state.uncorrected},
        "processes": [{"pid": int(pid), "name": "", "memory_mib": mib} for pid, mib in state.processes.items()],
        "faults": faults,
    }


def leftovers(root: Path) -> Iterable[str]:
    """What is not as in a new node, a line for each GPU and fact."""
    for gpu in snapshot(root)["gpus"]:
        for fault in gpu["faults"]:
            yield f"GPU {gpu['index']}: {fault}"


def with_version(profile: AmdProfile, version: str) -> AmdProfile:
    """The profile with another driver version. Raises ConfigError."""
    return msgspec.structs.replace(profile, driver=convert({"version": version}, AmdDriver, source="--driver"))


def _gpu(record: AmdNodeRecord, index: int) -> GpuRecord:
    if not 0 <= index < len(record.gpus):
        raise ConfigError(
            f"there is no GPU {index} on this node", f"an index from 0 to {len(record.gpus) - 1}",
            "list the GPUs with `kgpu lab hw show`",
        )  # fmt: skip
    return record.gpus[index]


def _log(root: Path, record: AmdNodeRecord, gpu: int, text: str) -> None:
    if (root / kernel_log.PATH).is_file():
        kernel_log.say(root, f"amdgpu {record.profile.gpus[gpu].bus}: amdgpu: {text}")
