"""The kernel modules of a simulated driver: unloaded, loaded, and exchanged for those of another version.

As on a real machine, modules can't be unloaded while a program uses a GPU; without them nvmlInit answers "driver not
loaded", and the files that the driver makes in procfs and sysfs are gone. Device nodes stay, as they do after rmmod.
What is taken away lies in a folder of the root until the modules are loaded again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from kgpu.base.errors import ConfigError, HwError
from kgpu.formats.support import cuda_of
from kgpu.hw.simulator import container_settings, kernel_log, operate, settings, side_modules
from kgpu.hw.simulator.operate import NVML_ERRORS, opened
from kgpu.hw.simulator.others import simulation_of
from kgpu.hw.simulator.state import DriverState
from kgpu.hw.simulator.tree import ASIDE

_NOT_LOADED: Final = NVML_ERRORS["DRIVER_NOT_LOADED"]
_MADE_BY_MODULES: Final = ("proc/driver/nvidia*", "sys/module/nvidia*", "sys/bus/pci/drivers/nvidia*")
_NODES: Final = "dev/nvidia*"
_DRIVER_LINKS: Final = "sys/devices/pci*/*/*/driver"
_NOTICE: Final = 5


def loaded(root: Path) -> bool:
    """Whether the modules are loaded. Raises HwError when ``root`` can't be used."""
    with opened(root, writable=False) as state:
        return not (root / ASIDE).is_dir() and bool(state.view.init_error != _NOT_LOADED)


def unload(root: Path) -> None:
    """Unload the modules; nothing happens where they are not loaded.

    Raises HwError while a process uses a GPU, and when ``root`` can't be used.
    """
    if (other := simulation_of(root)) is not None:
        other.unload(Path(root))
        return
    _check_fault(Path(root))
    take_out(root)


def take_out(root: Path) -> None:
    """The same where the machine was told to keep its modules: it has no power, or has just been made."""
    root = Path(root)
    with opened(root) as state:
        with state.locked():
            _check_unused(state)
            before = int(state.view.init_error)
            state.view.init_error = _NOT_LOADED
            state.wake()
        try:
            side_modules.unload_all(root)
            for path in _files(root):
                _move(path, root / ASIDE / path.relative_to(root))
        except OSError as error:
            raise _unwritable(root, error) from error
    if before != _NOT_LOADED:
        kernel_log.say(root, "nvidia-modeset: Unloading", "nvidia-uvm: Unloaded the UVM driver.", priority=_NOTICE)
        kernel_log.say(root, "nvidia-nvlink: Unregistered Nvlink Core, major device number 234", priority=_NOTICE)


def load(root: Path, version: str | None = None) -> str:
    """Load the modules, of driver ``version`` if given, and return the version that is loaded then.

    The root's libraries and firmware become those of that version, too, as an installation makes them. Raises
    ConfigError for a bad version and while another one is loaded, HwError while nouveau has the GPUs.
    """
    root = Path(root)
    if (other := simulation_of(root)) is not None:
        return other.load(root, version)
    with opened(root, writable=False) as state:
        present = str(state.view.driver_version.decode())
    wanted = version or present
    values = _settings(wanted)
    if loaded(root):
        if wanted == present:
            return present
        raise ConfigError(
            f"driver {present} is loaded", "no driver, before another one is loaded", "unload that one first"
        )
    if (root / "sys/module/nouveau").exists():
        kernel_log.say(root, "NVRM: GPU 0000:00:00.0 is already bound to nouveau.", priority=3)
        raise HwError(
            "the modules can't be loaded: nouveau has the GPUs", "no other driver for them", "unload nouveau first"
        )
    put_back(root)
    if wanted != present:
        operate.set_values(root, values)
    with opened(root) as state, state.locked():
        state.view.init_error = 0
        state.wake()
    kernel_log.say(root, f"NVRM: loading NVIDIA UNIX x86_64 Kernel Module  {wanted}", priority=_NOTICE)
    return wanted


def put_back(root: Path) -> None:
    """Put the files of loaded modules back in their places. Raises HwError."""
    aside = Path(root) / ASIDE
    try:
        for path in [*_files(aside), *sorted(aside.glob(_NODES))]:
            _move(path, root / path.relative_to(aside))
        _remove_empty(aside)
    except OSError as error:
        raise _unwritable(root, error) from error


def put_aside_nodes(root: Path) -> None:
    """Take the device nodes away until the modules are loaded: a machine that has booted without has none.

    Raises OSError.
    """
    for path in sorted(root.glob(_NODES)):
        _move(path, root / ASIDE / path.relative_to(root))


def _settings(version: str) -> dict[str, object]:
    """The settings of a driver version, checked."""
    values: dict[str, object] = {"driver-version": version}
    if cuda := cuda_of(version):
        values["cuda-version"] = cuda
    for key, value in values.items():
        settings.find(key).parse(str(value), None)
    return values


def _check_fault(root: Path) -> None:
    """Raise HwError where the machine is to keep its modules (``container_settings``)."""
    wanted = container_settings.settings(root)
    if wanted is not None and wanted.fail == "manager" and loaded(root):
        raise HwError(
            "the module nvidia is in use", "no program that uses a GPU", "end that fault: kgpu lab hw driver fail none"
        )


def _check_unused(state: DriverState) -> None:
    """Raise HwError while a process has a GPU or NVML open."""
    gpus = range(state.gpu_count)
    pids = sorted({int(slot.pid) for gpu in gpus for slot in state.processes(gpu)})
    if not pids and not any(map(state.has_client, gpus)):
        return
    who = f"processes {', '.join(map(str, pids[:8]))}" if pids else "a program that has NVML open"
    raise HwError(
        f"the module nvidia is in use by {who}",
        "no program that uses a GPU",
        "end what uses GPUs (`nvidia-smi`, and services such as an exporter), then unload again",
    )


def _files(root: Path) -> list[Path]:
    """What the modules make, under the root or aside of it."""
    return [path for pattern in (*_MADE_BY_MODULES, _DRIVER_LINKS) for path in sorted(root.glob(pattern))]


def _move(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(path, target)


def _remove_empty(folder: Path) -> None:
    for path, _, _ in os.walk(folder, topdown=False):
        os.rmdir(path)


def _unwritable(root: Path, error: OSError) -> HwError:
    return HwError(
        f"the driver's files under {root} can't be moved: {error.strerror or error}",
        "a simulated root that this user owns",
        "check its owner",
    )
