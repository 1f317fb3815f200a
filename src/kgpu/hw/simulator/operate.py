"""Changes a simulated node while programs use it: show, set, inject faults, clear them, make MIG slices.

Every function takes the root that ``create_root`` made; what it changes, all processes on that root see at once. The
GPU is given by index. Input errors are ``ConfigError``, an unusable root is ``HwError``; nothing is written then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from kgpu.base.errors import ConfigError, HwError
from kgpu.base.suggest import did_you_mean
from kgpu.hw.simulator import faults, kernel_log, load_model, schema, settings, tree
from kgpu.hw.simulator.load_model import load_change, now_ns, utilization
from kgpu.hw.simulator.others import simulation_of, title_of
from kgpu.hw.simulator.state import (
    EVENT_DOUBLE_BIT_ECC,
    EVENT_RECOVERY_ACTION,
    EVENT_SINGLE_BIT_ECC,
    DriverState,
)

MAX_XID: Final = 999
NVML_ERRORS: Final[Mapping[str, int]] = {
    "SUCCESS": 0, "UNINITIALIZED": 1, "INVALID_ARGUMENT": 2, "NOT_SUPPORTED": 3, "NO_PERMISSION": 4, "NOT_FOUND": 6,
    "INSUFFICIENT_POWER": 8, "DRIVER_NOT_LOADED": 9, "TIMEOUT": 10, "IRQ_ISSUE": 11, "LIBRARY_NOT_FOUND": 12,
    "FUNCTION_NOT_FOUND": 13, "CORRUPTED_INFOROM": 14, "GPU_IS_LOST": 15, "RESET_REQUIRED": 16,
    "OPERATING_SYSTEM": 17, "LIB_RM_VERSION_MISMATCH": 18, "IN_USE": 19, "MEMORY": 20, "NO_DATA": 21,
    "INSUFFICIENT_RESOURCES": 23, "NOT_READY": 27, "GPU_NOT_FOUND": 28, "INVALID_STATE": 29, "UNKNOWN": 999,
}  # fmt: skip
FAULTS: Final[Mapping[str, str]] = {
    "xid": "the driver reports an Xid, with what that Xid implies",
    "lost": "the GPU falls off the bus without a word",
    "ecc": "memory errors are counted and reported",
    "hang": "driver calls about the GPU (or about any) never return",
    "slow": "each driver call takes longer",
    "hot": "the GPU passes its slowdown temperature and throttles",
    "init-error": "nvmlInit (or getting the GPU) fails",
}


def set_values(root: Path, values: Mapping[str, object], gpu: int | None = None) -> None:
    """Set keys of ``settings.SETTINGS`` on one GPU, or on every GPU when ``gpu`` is None; node keys on the node."""
    with opened(root) as state:
        chosen = _indices(state, gpu)
        plan: list[tuple[settings.FakeSetting, Any, Any]] = []
        for key, value in values.items():
            row = settings.find(key)
            targets = [state.view] if row.node else [state.gpu(index) for index in chosen]
            plan += [(row, target, row.parse(_text(value), target)) for target in targets]
        driver = state.view.driver_version.decode()
        with state.locked():
            with ExitStack() as changes:
                for index in chosen:
                    changes.enter_context(load_change(state.gpu(index)))
                for row, target, value in plan:
                    row.apply(target, value)
            state.wake()
        wanted = state.view.driver_version.decode()
        if wanted != driver:
            _change_driver(root, state, driver, wanted)


def inject(
    root: Path,
    fault: str,
    *,
    gpu: int | None = None,
    xid: int | None = None,
    gi: int | None = None,
    ci: int | None = None,
    count: int = 1,
    corrected: bool = False,
    us: int | None = None,
    celsius: int | None = None,
    code: int | str | None = None,
) -> None:
    """Make a fault of ``FAULTS`` happen.

    ``xid`` (1-999) goes with "xid", ``gi``/``ci`` attribute it to a MIG instance; ``count``/``corrected`` with
    "ecc", of a MIG device with ``gi`` and ``ci``: there the driver counts uncorrected errors of on-chip memory only;
    ``us`` with "slow" (microseconds); ``celsius`` with "hot" (default: just above the slowdown threshold); ``code``
    (an NVML return code or its name) with "init-error". "hang", "slow" and "init-error" without ``gpu`` concern the
    node; the others need ``gpu``.
    """
    if (other := simulation_of(root)) is not None:
        other.inject(root, fault, gpu=gpu, count=count, corrected=corrected)
        return
    if fault not in FAULTS:
        hint = did_you_mean(fault, FAULTS)
        what = f'there is no fault "{fault:.80}"{"; " if hint else ""}{hint}'
        raise ConfigError(what, f"one of: {', '.join(FAULTS)}", "choose one of them")
    with opened(root) as state:
        if gpu is not None:
            _indices(state, gpu)
        elif fault not in {"hang", "slow", "init-error"}:
            raise ConfigError(f'"{fault}" needs a GPU', f"--gpu 0 to {state.gpu_count - 1}", "say which with --gpu")
        if fault == "xid":
            _xid(state, gpu or 0, xid, gi, ci)
            _log_xid(root, state.gpu(gpu or 0), xid or 0, gi, ci)
        elif fault == "ecc":
            _ecc(state, gpu or 0, _number("count", count, 1, 1 << 40), corrected=corrected, gi=gi, ci=ci)
        elif fault == "hot":
            _hot(state, gpu or 0, celsius)
        elif fault == "lost":
            state.set_fault(gpu, lost=1, recovery_action=faults.REBOOT)
        elif fault == "hang":
            state.set_fault(gpu, **{"hang_all" if gpu is None else "hang": 1})
        elif fault == "slow":
            state.set_fault(gpu, slow_us=_number("--us", us, 0, 600_000_000))
        else:
            state.set_fault(gpu, init_error=_return_code(code))


def clear(root: Path, gpu: int | None = None) -> None:
    """Make one GPU, or the whole node, healthy again: faults, pending repairs, volatile counters, links.

    As on real hardware no event tells of it; whoever polls sees it. Lifetime counters stay, and so do modules that
    are not loaded.
    """
    if (other := simulation_of(root)) is not None:
        other.clear(root, gpu)
        return
    with opened(root) as state, state.locked():
        for index in _indices(state, gpu):
            faults.heal(state.gpu(index))
        state.clear_faults(gpu)
        if (Path(root) / tree.ASIDE).is_dir():
            state.view.init_error = NVML_ERRORS["DRIVER_NOT_LOADED"]


def reset_clock(root: Path) -> None:
    """Let the node's clock show wall time again; nodes of other vendors never show another."""
    if simulation_of(root) is None:
        with opened(root) as state, state.locked():
            load_model.reset_clock(state.view)


def snapshot(root: Path) -> dict[str, Any]:
    """The node as it is now, as JSON-ready data; MiB, W, Celsius, percent."""
    if (other := simulation_of(root)) is not None:
        return other.snapshot(root)
    with opened(root, writable=False) as state:
        view = state.view
        node_faults = [
            name
            for name, on in (
                ("hang", view.hang_all),
                (f"slow {view.slow_us}us", view.slow_us),
                (f"init error {view.init_error}", view.init_error),
            )
            if on
        ]
        return {
            "profile": view.profile.decode(),
            "hostname": view.hostname.decode(),
            "driver_version": view.driver_version.decode(),
            "driver_loaded": view.init_error != NVML_ERRORS["DRIVER_NOT_LOADED"],
            "cuda_version": f"{view.cuda_version // 1000}.{view.cuda_version % 1000 // 10}",
            "faults": node_faults,
            "clock": _clock(view),
            "events": int(view.event_head),
            "gpus": [_gpu(state, index) for index in range(state.gpu_count)],
        }


@contextmanager
def opened(root: Path, *, writable: bool = True) -> Iterator[DriverState]:
    """The state of ``root``, closed afterwards. Raises HwError when there is none, ConfigError for another vendor."""
    if simulation_of(root) is not None:
        raise ConfigError(
            f"{root} has {title_of(root)}, of which this can't be said or done",
            "create, show, inject, clear, partition, process, driver load and unload",
            "see `kgpu lab hw --help`",
        )
    state = DriverState.open(Path(root) / "state", writable=writable)
    try:
        yield state
    finally:
        state.close()


def _indices(state: DriverState, gpu: int | None) -> tuple[int, ...]:
    if gpu is None:
        return tuple(range(state.gpu_count))
    if not 0 <= gpu < state.gpu_count:
        raise ConfigError(
            f"there is no GPU {gpu} on this node",
            f"an index from 0 to {state.gpu_count - 1}",
            "list the GPUs with `kgpu lab hw show`",
        )
    return (gpu,)


def _number(name: str, value: int | None, low: int, high: int) -> int:
    if value is None or not low <= value <= high:
        raise ConfigError(f"{name} is {'missing' if value is None else value}", f"{low} to {high}", "give a number")
    return value


def _return_code(code: int | str | None) -> int:
    text = str(code).strip().upper().removeprefix("NVML_ERROR_").replace("-", "_")
    if text in NVML_ERRORS:
        return NVML_ERRORS[text]
    if text.isdigit() and int(text) in NVML_ERRORS.values():
        return int(text)
    hint = did_you_mean(text, NVML_ERRORS)
    raise ConfigError(
        f"{code!r:.80} is no NVML return code{'; ' if hint else ''}{hint}",
        f"a number or one of: {', '.join(NVML_ERRORS)}",
        "give one of these",
    )


def _text(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _xid(state: DriverState, gpu: int, xid: int | None, gi: int | None, ci: int | None) -> None:
    number = _number("the Xid", xid, 1, MAX_XID)
    target = state.gpu(gpu)
    check_instance(target, gpu, gi, ci)
    effect = faults.XID_EFFECTS.get(number, faults.XidEffect(what="no side effect"))
    with state.locked():
        for change in effect.changes:
            change(target)
        changed = effect.recovery not in {faults.NONE, target.recovery_action}
        if changed:
            target.recovery_action = effect.recovery
        state.inject_xid(
            gpu,
            number,
            gi_id=schema.NO_INSTANCE if gi is None else gi,
            ci_id=schema.NO_INSTANCE if ci is None else ci,
        )
        if changed:
            state.push_event(gpu, EVENT_RECOVERY_ACTION, effect.recovery)


def _log_xid(root: Path, gpu: Any, xid: int, gi: int | None, ci: int | None) -> None:
    """What the driver prints of it."""
    if (root / kernel_log.PATH).is_file():
        effect = faults.XID_EFFECTS.get(xid)
        text = f"{effect.what[:1].upper()}{effect.what[1:]}" if effect else "simulated"
        kernel_log.xid(root, _bus_id(gpu), xid, text, gi=gi, ci=ci)


def check_instance(target: Any, gpu: int, gi: int | None, ci: int | None) -> None:
    """Raise ConfigError unless the GPU has this instance; none is fine."""
    if gi is None and ci is None:
        return
    existing = [(int(slot.gi_id), int(slot.id)) for slot in target.ci if slot.used]
    instances = {int(slot.id) for slot in target.gi if slot.used}
    if gi not in instances or (ci is not None and (gi, ci) not in existing):
        have = ", ".join(f"--gi {a} --ci {b}" for a, b in sorted(existing)) or "a GPU with MIG instances"
        raise ConfigError(f"GPU {gpu} has no such MIG instance (gi {gi}, ci {ci})", have, "choose one of these")


def _ecc(state: DriverState, gpu: int, count: int, *, corrected: bool, gi: int | None, ci: int | None) -> None:
    target = state.gpu(gpu)
    if not target.ecc_current:
        raise ConfigError(f"GPU {gpu} has no ECC, or it is off", "a GPU with ECC on", "choose another, or `set ecc=on`")
    check_instance(target, gpu, gi, ci)
    if gi is not None and (corrected or ci is None):
        what = "--gi without --ci" if ci is None else "corrected errors of a MIG device are not counted"
        raise ConfigError(what, "uncorrected errors, with --gi and --ci, or errors of the whole GPU", "correct it")
    with state.locked():
        if gi is not None and ci is not None:
            faults.count_slice_ecc(target, gi, ci, count)
        else:
            faults.count_ecc(target, uncorrected=not corrected, number=count)
        state.push_event(
            gpu,
            EVENT_SINGLE_BIT_ECC if corrected else EVENT_DOUBLE_BIT_ECC,
            count,
            gi_id=schema.NO_INSTANCE if gi is None else gi,
            ci_id=schema.NO_INSTANCE if ci is None else ci,
        )


def _hot(state: DriverState, gpu: int, celsius: int | None) -> None:
    target = state.gpu(gpu)
    value = _number("--celsius", int(target.temp_slowdown) + 1 if celsius is None else celsius, -20, 150)
    with state.locked():
        offset = value - settings.base_temperature(target)
        reasons = int(target.throttle_forced)
        if value >= target.temp_slowdown:
            reasons |= faults.HW_SLOWDOWN | faults.HW_THERMAL | faults.SW_THERMAL
        state.set_fault(gpu, temp_offset=offset, throttle_forced=reasons)


def _change_driver(root: Path, state: DriverState, old: str, new: str) -> None:
    state.view.nvml_version = f"{state.view.cuda_version // 1000}.{new}".encode()
    try:
        tree.change_driver_version(Path(root), old, new)
    except OSError as error:
        raise HwError(
            f"the driver's files under {root} can't be renamed: {error}",
            "a root that this user owns",
            "check its owner",
        ) from error


def _bus_id(gpu: Any) -> str:
    pci = gpu.pci
    return f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.{pci.function:x}"


def _clock(view: Any) -> dict[str, int] | None:
    """How far the node's clock is ahead of wall time, and how fast it goes; None where it shows wall time."""
    if not view.clock_real_ns:
        return None
    return {"ahead_s": round((now_ns(view) - time.time_ns()) / 1e9), "rate": int(view.clock_rate)}


def _gpu(state: DriverState, index: int) -> dict[str, Any]:
    gpu = state.gpu(index)
    state.reap(index)  # in this process's copy
    processes = state.processes(index)
    used = int(gpu.mem_used_base) + sum(int(slot.memory) for slot in processes)
    pci = gpu.pci
    number: Callable[[Any], int | None] = lambda value: None if value == schema.NO_INSTANCE else int(value)  # noqa: E731
    return {
        "index": index,
        "minor": int(gpu.minor),
        "uuid": gpu.uuid.decode(),
        "name": gpu.name.decode(),
        "serial": gpu.serial.decode(),
        "pci_bus_id": _bus_id(gpu),
        "numa_node": int(pci.numa_node),
        "memory_total_mib": int(gpu.mem_total) >> 20,
        "memory_used_mib": used >> 20,
        "temperature_c": settings.temperature(gpu),
        "power_w": round(settings.power_mw(gpu) / 1000, 1),
        "power_limit_w": int(gpu.power_limit_mw) // 1000,
        "utilization_percent": utilization(gpu),
        "load_set_percent": max(int(gpu.load_set), int(gpu.mem_load_set)),
        "ecc": {
            "enabled": bool(gpu.ecc_current),
            "corrected": sum(gpu.ecc_volatile[:7]),
            "uncorrected": sum(gpu.ecc_volatile[7:]),
        },
        "nvlinks": {
            "present": int(gpu.link_count),
            "active": sum(int(link.active) for link in gpu.link[: gpu.link_count]),
        },
        "mig": {
            "capable": bool(gpu.mig_capable),
            "enabled": bool(gpu.mig_current),
            "pending": bool(gpu.mig_pending) != bool(gpu.mig_current),
            "devices": _mig_devices(gpu),
        },
        "processes": [
            {
                "pid": int(slot.pid),
                "name": slot.name.decode(errors="replace"),
                "memory_mib": int(slot.memory) >> 20,
                "gi": number(slot.gi_id),
                "ci": number(slot.ci_id),
                "load": state.view.load[slot.load - 1].name.decode() if slot.load else None,
                "by_hand": not slot.live,
            }
            for slot in processes
        ],
        "recovery_action": next(
            (name for name, value in settings.RECOVERY_ACTIONS.items() if value == gpu.recovery_action), "unknown"
        ),
        "last_xid": int(gpu.xid_last) or None,
        "xid_count": int(gpu.xid_count),
        "resets": int(gpu.resets),
        "faults": faults.names(gpu),
    }


def _mig_devices(gpu: Any) -> list[dict[str, Any]]:
    rows = {int(slot.id): slot for slot in gpu.gi if slot.used}
    return [
        {
            "uuid": slot.uuid.decode(),
            "gi": int(slot.gi_id),
            "ci": int(slot.id),
            "profile": gpu.gi_profile[rows[int(slot.gi_id)].row].ci[slot.row].name.decode(),
            "start": int(rows[int(slot.gi_id)].start),
        }
        for slot in gpu.ci
        if slot.used and int(slot.gi_id) in rows
    ]
