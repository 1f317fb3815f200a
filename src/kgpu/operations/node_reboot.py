"""What the pod of a reboot does on its node: it asks the machine to reboot, once per ID.

The order names the boot that is to end. A pod that comes too late, or to another machine, finds another boot ID and
does nothing. A second pod finds the mark of the first in ``/run``, which does not survive a reboot. The mark is written
before the machine is asked: if the process is killed in between, the machine is never asked under this ID.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kgpu.base.boot import boot_id
from kgpu.base.errors import HostError
from kgpu.formats.names import ENV_LAB_CONTAINER, ENV_RUN_DIR, ENV_SIMULATED_REBOOT, RUN_DIR
from kgpu.operations import act_marks

NO_REBOOT: Final = "no-reboot"
"""The file in ``/run/kgpu`` with which a machine's admin forbids reboots."""
_FIRST_PROCESS: Final = Path("/proc/1/comm")
_SYSTEMD: Final = "systemd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine that a pod runs on. ``forbids`` returns whether its admin forbids reboots; ``mark`` leaves the mark
    of an act and returns False if it already exists; ``ask`` asks the machine to reboot. All raise HostError.
    """

    boot: str
    forbids: Callable[[], bool]
    mark: Callable[[str], bool]
    ask: Callable[[], None]


def this_machine(env: Mapping[str, str]) -> Machine:
    """The machine of this process; a simulated one in a lab."""
    run = Path(env.get(ENV_RUN_DIR) or RUN_DIR)
    simulated, ask = env.get(ENV_SIMULATED_REBOOT), _signal_systemd
    if simulated:
        ask = Path(simulated).touch
    elif env.get(ENV_LAB_CONTAINER):
        ask = _refuse_in_lab
    return Machine(
        boot=boot_id(), forbids=(run / NO_REBOOT).exists, ask=ask,
        mark=lambda act: act_marks.begin_once(run / act_marks.FOLDER / act),
    )  # fmt: skip


def reboot(act: str, boot: str, machine: Machine) -> str:
    """Ask for the reboot that was ordered and return what was done, for people. Raises HostError if it refuses."""
    act_marks.check_id(act)
    if not machine.boot:
        raise HostError("this machine has no boot ID", "a Linux kernel's", "reboot it by hand")
    if machine.boot != boot:
        return f"this machine has booted since: its boot is {machine.boot}"
    if machine.forbids():
        raise HostError(
            f"this machine may not be rebooted: {RUN_DIR}/{NO_REBOOT} is there",
            "no such file",
            "remove it, or reboot by hand",
        )
    if not machine.mark(act):
        return "this machine was asked before"
    machine.ask()
    return "this machine is asked to reboot"


def _refuse_in_lab() -> None:
    raise HostError(
        "this is a container of a lab, whose machine does more than this node", "a simulated machine of its own",
        "kgpu lab node reboot NAME",
    )  # fmt: skip


def _signal_systemd() -> None:
    """Send SIGRTMIN+5, which makes systemd stop all services and reboot (systemd(1), "Signals"). Raises HostError."""
    try:
        first = _FIRST_PROCESS.read_text().strip()
    except OSError as error:
        raise HostError(
            f"{_FIRST_PROCESS} can't be read: {error.strerror}", "a process namespace", "look at the pod"
        ) from error
    if first != _SYSTEMD:
        raise HostError(
            f"the machine's first process is {first[:60]}, which takes no order to reboot", _SYSTEMD,
            "empty the node with `kgpu node maintain`, and reboot it by hand",
        )  # fmt: skip
    try:
        os.kill(1, signal.SIGRTMIN + 5)
    except OSError as error:
        raise HostError(
            f"the machine's first process can't be signalled: {error.strerror}", "hostPID and the capability KILL",
            "look at what admission has changed in the pod",
        ) from error  # fmt: skip
