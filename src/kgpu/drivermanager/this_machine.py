"""Which machine this process is on, the kernel's or a simulated one, and where its container's last words go."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from kgpu.base.errors import HostError
from kgpu.drivermanager.config import NVIDIA_RUN
from kgpu.drivermanager.machine import KernelMachine
from kgpu.drivermanager.port import DriverMachine
from kgpu.formats import names
from kgpu.formats.simulated import state_file


def machine_root(env: Mapping[str, str]) -> Path:
    """The machine's ``/`` as this process sees it; a simulated machine's in a lab."""
    root = Path(env.get(names.ENV_HOST_ROOT) or names.HOST_ROOT)
    places = (root, Path(names.SIMULATED_MACHINE), root / names.SIMULATED_MACHINE.lstrip("/"))
    return next((place for place in places if state_file(str(place))), root)


def this_machine(env: Mapping[str, str]) -> DriverMachine:
    """The machine of this process; a simulated one in a lab. Raises HostError in a lab's container without one."""
    root = machine_root(env)
    if state_file(str(root)) is not None:
        from kgpu.drivermanager.simulated import SimulatedMachine

        run_folder = env.get(names.ENV_SIMULATED_NVIDIA_RUN) or os.path.join(root, NVIDIA_RUN.lstrip("/"))
        return SimulatedMachine(root, nvidia_run=Path(run_folder))
    if env.get(names.ENV_LAB_CONTAINER):
        raise HostError(
            "this is a container of a lab, whose machine does more than this node", "a simulated machine of its own",
            "kgpu lab node add PROFILE --driver container",
        )  # fmt: skip
    if not root.is_dir():
        raise HostError(f"{root} is not there", "the host's root, mounted", f"mount it, or set {names.ENV_HOST_ROOT}")
    return KernelMachine(root)


def write_last_words(line: str, env: Mapping[str, str]) -> None:
    """Leave a line as the container's termination message; nothing where it has no place for that."""
    path = Path(env.get(names.ENV_TERMINATION_LOG) or "/dev/termination-log")
    with suppress(OSError):
        if path.exists():
            path.write_text(f"{line}\n")
