"""The GPUs of this machine for a reset: read and changed by the driver's own nvidia-smi, in the driver's root.

The driver is a container's (the install folder) or the host's. What uses a simulated one are the processes that have
its state open.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from kgpu.base.boot import boot_id
from kgpu.base.errors import HostError
from kgpu.formats.names import (
    DRIVER_INSTALL_DIR,
    ENV_HOST_ROOT,
    ENV_LAB_CONTAINER,
    ENV_RUN_DIR,
    HOST_ROOT,
    KERNEL_LOG,
    RUN_DIR,
)
from kgpu.formats.simulated import state_file
from kgpu.host import kernel_modules
from kgpu.host.commands import CommandResult
from kgpu.host.device_holders import DeviceHolder, gpu_holders, programs
from kgpu.host.root import read_some
from kgpu.host.smi import SMI, ask_smi, find_smi
from kgpu.hw import roots
from kgpu.operations.act_marks import FOLDER, Marks
from kgpu.operations.node_reset import ResetMachine, hangs
from kgpu.operations.reset_checks import FABRIC_MANAGER, MachineGpus, ResettableGpu

RESET_SECONDS: Final = 300.0
ASK_SECONDS: Final = 60.0
_FIELDS: Final = "uuid,pci.bus_id,persistence_mode,mig.mode.current"
_COLUMNS: Final = 4
_NO_INSTANCES: Final = 6  # NVML_ERROR_NOT_FOUND
_MINOR: Final = re.compile(r"^Device Minor:\s*(\d{1,5})\s*$", re.MULTILINE | re.ASCII)
_BUS_ID: Final = re.compile(r"[0-9A-F]{0,4}([0-9A-F]{4}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-7])", re.IGNORECASE | re.ASCII)
_FILE_BYTES: Final = 1 << 14


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverProgram:
    """The driver's nvidia-smi: ``program`` is its path in ``root``; ``state`` the simulated driver's file, "" for a
    real one. ``host`` is the host's root as seen here.
    """

    root: str
    program: str
    host: str
    state: str = ""

    def ask(self, *words: str, seconds: float | None = None, lock: int = -1) -> CommandResult:
        """Run it with these options. Raises HostError if it can't be run."""
        limit = ASK_SECONDS if seconds is None else seconds
        keep = (lock,) if lock >= 0 else ()
        library = roots.find_library(self.root) or ""
        return ask_smi(self.root, self.program, words, seconds=limit, library=library, state=self.state, keep_open=keep)

    def told(self, *words: str) -> str:
        """What it prints. Raises HostError if it fails, DriverHangsError if it does not return."""
        call = self.ask(*words)
        if call.code is None:
            raise hangs(f"{SMI} {words[0]}", call)
        if call.code:
            raise HostError(
                f"{SMI} {words[0]} has failed with {call.code}: {call.last_lines or 'it printed nothing'}",
                "a driver that is loaded", "look at the node's driver, or reboot the node",
            )  # fmt: skip
        return call.tail


def find_driver(env: Mapping[str, str], install_dir: str = DRIVER_INSTALL_DIR) -> DriverProgram:
    """The driver of this machine: the install folder's if there is one, else the host's. Raises HostError."""
    host = (env.get(ENV_HOST_ROOT) or HOST_ROOT).rstrip("/") or "/"
    places = (os.path.join(host, install_dir.lstrip("/")), host)
    for root in places:
        program, state = find_smi(root), state_file(root) or ""
        # A container of a lab is on a machine that is more than this node.
        if program is not None and (state or not env.get(ENV_LAB_CONTAINER)):
            return DriverProgram(root=root, program=program, host=host, state=state)
    raise HostError(
        f"there is no {SMI} in {' or '.join(places)}", "an NVIDIA driver on the host or in a container",
        "look at the node's driver",
    )  # fmt: skip


def this_machine(env: Mapping[str, str], install_dir: str = DRIVER_INSTALL_DIR) -> ResetMachine:
    """The machine of this process; a simulated one in a lab. Raises HostError if it has no driver."""
    driver = find_driver(env, install_dir)
    return ResetMachine(
        boot=boot_id(),
        marks=Marks(Path(env.get(ENV_RUN_DIR) or RUN_DIR) / FOLDER),
        look=partial(look, driver),
        holders=partial(find_holders, driver),
        persistence=partial(set_persistence, driver),
        reset=lambda uuids, lock: driver.ask(
            "--gpu-reset", "-i", ",".join(uuids), seconds=RESET_SECONDS, lock=lock
        ),
        drm=partial(drm_user, driver),
        say=partial(say, driver),
    )  # fmt: skip


def look(driver: DriverProgram, uuids: Sequence[str]) -> MachineGpus:
    """The machine's GPUs; of those in ``uuids`` whether they have MIG instances. Raises HostError."""
    rows = csv.reader(
        driver.told(f"--query-gpu={_FIELDS}", "--format=csv,noheader").splitlines(), skipinitialspace=True
    )
    gpus = [_gpu(driver, row, asked=row[0] in uuids) for row in rows if len(row) == _COLUMNS]
    switched = any(os.path.exists(f"{root}/dev/nvidia-nvswitch0") for root in (driver.root, driver.host))
    return MachineGpus(
        gpus={gpu.uuid: gpu for gpu in gpus if gpu is not None}, switched=switched,
        fabric_manager=switched and _has_fabric_manager(driver),
    )  # fmt: skip


def _gpu(driver: DriverProgram, row: Sequence[str], *, asked: bool) -> ResettableGpu | None:
    uuid, bus, persistence, mig = row
    hit = _BUS_ID.fullmatch(bus)
    if hit is None:  # a GPU that has fallen off the bus is listed without an address
        return None
    bus_id = hit[1].lower()
    information = f"{_proc(driver)}/driver/nvidia/gpus/{bus_id}/information"
    minor = _MINOR.search(read_some(Path(information), _FILE_BYTES).decode("utf-8", "replace"))
    if minor is None:
        return None
    return ResettableGpu(
        uuid=uuid, bus_id=bus_id, minor=int(minor[1]), pci_device=_pci_device(driver, bus_id),
        persistence={"Enabled": True, "Disabled": False}.get(persistence),
        instances=_has_instances(driver, uuid, mig) if asked else None, needs_reset="requires reset" in mig,
    )  # fmt: skip


def _has_instances(driver: DriverProgram, uuid: str, mode: str) -> bool | None:
    if mode in {"Disabled", "[N/A]", "[Not Supported]", "N/A"}:
        return False
    call = driver.ask("mig", "-lgi", "-i", uuid) if mode == "Enabled" else None
    if call is None or call.code not in {0, _NO_INSTANCES}:
        return None
    return call.code == 0


def _proc(driver: DriverProgram) -> str:
    """The folder that stands for /proc of the driver's machine."""
    own = roots.proc_root(driver.root)
    return own if own.startswith(driver.root.rstrip("/") + "/") else f"{driver.host.rstrip('/')}/proc"


def _pci_device(driver: DriverProgram, bus_id: str) -> int:
    root = driver.root if driver.state else driver.host
    path = Path(root, "sys/bus/pci/devices", bus_id, "device")
    try:
        return int(read_some(path, _FILE_BYTES).decode("ascii", "replace").strip() or "0", 16)
    except ValueError:
        return 0


def _has_fabric_manager(driver: DriverProgram) -> bool:
    if not driver.state:
        return FABRIC_MANAGER in programs()
    from kgpu.hw.simulator.state import DriverState

    with DriverState.open(driver.state, writable=False) as state:
        return bool(state.view.fabric_manager)


def find_holders(driver: DriverProgram, machine: MachineGpus, uuids: Sequence[str]) -> tuple[DeviceHolder, ...]:
    """The processes that have any of these GPUs open. Raises HostError."""
    names = {machine.gpus[uuid].minor: uuid for uuid in uuids}
    return gpu_holders(names, driver.root, driver.state)


def set_persistence(driver: DriverProgram, uuids: Sequence[str], on: bool) -> None:
    """Switch the mode of these GPUs. Raises HostError, DriverHangsError."""
    driver.told("-pm", "1" if on else "0", "-i", ",".join(uuids))


def drm_user(driver: DriverProgram) -> str:
    """The kernel module that has GPUs open for displays, "" if it does not."""
    return kernel_modules.drm_user(Path(f"{driver.host.rstrip('/')}/sys"))


def say(driver: DriverProgram, line: str) -> None:
    """Write a line to the kernel's log, where the machine's admin finds it; nothing if that can't be written."""
    if driver.state:
        _say_simulated(driver, line)
        return
    notice_of_a_program = 13  # syslog(3): LOG_USER and LOG_NOTICE
    try:
        descriptor = os.open(f"{driver.host.rstrip('/')}{KERNEL_LOG}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.write(descriptor, f"<{notice_of_a_program}>{line}\n".encode())
    except OSError:
        return
    finally:
        os.close(descriptor)


def _say_simulated(driver: DriverProgram, line: str) -> None:
    from kgpu.base.errors import HwError
    from kgpu.hw.simulator import kernel_log

    try:
        kernel_log.say(driver.root, line, priority=kernel_log.PROGRAM)
    except HwError:
        return
