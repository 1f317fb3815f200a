"""What the pod of a GPU reset does on its node: it resets GPUs that nobody uses, at most once per ID.

First everything is looked at, and a reset that can't be done is refused without a trace. Then the mark is written,
persistence mode switched off, looked again, and nvidia-smi called; persistence mode is put back and the result left
beside the mark. A later pod with the same ID tells that result. Where the mark has none, it puts persistence mode back
and says that the result is unknown. If the driver does not return, nothing more is asked of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kgpu.base.errors import HostError, to_do
from kgpu.base.printable import one_line
from kgpu.host.commands import CommandResult
from kgpu.host.device_holders import DeviceHolder
from kgpu.operations import reset_checks
from kgpu.operations.act_marks import ActResult, Marks, check_id
from kgpu.operations.model import HANGS, MAX_WHY, REFUSED, UNKNOWN
from kgpu.operations.reset_checks import MachineGpus

DONE: Final = 0
FAILED: Final = 1
"""Exit code of a reset that nvidia-smi began and that has failed."""
IN_USE: Final = "In use by another client"
"""What nvidia-smi prints of a GPU that it leaves as it is."""


class DriverHangsError(HostError):
    """A program that asks the driver does not come back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetOrder:
    """``act`` is the act's ID, ``boot`` the boot that it is for, ``gpus`` the UUIDs."""

    act: str
    boot: str
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetMachine:
    """The machine that a pod runs on.

    ``look`` reads its GPUs; ``holders`` returns who has some of them open; ``persistence`` switches the mode of some
    on or off; ``reset`` resets them with one call of nvidia-smi, which inherits the descriptor; ``drm`` returns what
    the kernel itself holds them with, "" for nothing; ``say`` writes a line to the machine's log. Those that ask the
    driver raise HostError, DriverHangsError if it does not return.
    """

    boot: str
    marks: Marks
    look: Callable[[Sequence[str]], MachineGpus]
    holders: Callable[[MachineGpus, Sequence[str]], tuple[DeviceHolder, ...]]
    persistence: Callable[[Sequence[str], bool], None]
    reset: Callable[[Sequence[str], int], CommandResult]
    drm: Callable[[], str]
    say: Callable[[str], None]


def reset(order: ResetOrder, machine: ResetMachine) -> ActResult:
    """Carry out the order. The result's code is 0, FAILED, REFUSED, UNKNOWN or HANGS."""
    try:
        return _reset(order, machine)
    except HostError as error:
        return _told(error)


def _reset(order: ResetOrder, machine: ResetMachine) -> ActResult:
    check_id(order.act)
    reset_checks.check_uuids(order.gpus)
    if not machine.boot:
        raise HostError("this machine has no boot ID", "a Linux kernel's", "reboot it by hand")
    if machine.boot != order.boot:
        return ActResult(code=REFUSED, text=f"this machine has booted since: its boot is {machine.boot}")
    if machine.marks.exists(order.act):
        return _former(order, machine)
    found = machine.look(order.gpus)
    reset_checks.check_machine(order.gpus, found)
    reset_checks.check_unused(reset_checks.besides_persistence(machine.holders(found, order.gpus)))
    persistent = reset_checks.persistent(order.gpus, found)
    with machine.marks.begin(order.act, persistent) as lock:
        if lock is not None:
            result = _act(order, machine, found, persistent, lock)
            machine.marks.record(order.act, result)
            return result
    return _former(order, machine)


def _act(
    order: ResetOrder, machine: ResetMachine, found: MachineGpus, persistent: tuple[str, ...], lock: int
) -> ActResult:
    try:
        if persistent:
            machine.persistence(persistent, False)
        reset_checks.check_unused(machine.holders(found, order.gpus))
        machine.say(f"kgpu: resetting {', '.join(order.gpus)} for operation {order.act}")
        result = _outcome(order, machine, found, machine.reset(order.gpus, lock))
    except HostError as error:
        result = _told(error)
    if result.code != HANGS:
        result = _put_back(persistent, machine, result)
    machine.say(f"kgpu: operation {order.act}: {result.text}")
    return result


def _outcome(order: ResetOrder, machine: ResetMachine, found: MachineGpus, call: CommandResult) -> ActResult:
    if call.code is None:
        raise hangs("nvidia-smi --gpu-reset", call)
    if call.code == 0:
        return ActResult(code=DONE, text=f"nvidia-smi has reset {', '.join(order.gpus)}")
    if IN_USE not in call.tail:
        said = call.last_lines or "it printed nothing"
        return ActResult(code=FAILED, text=one_line(f"nvidia-smi has failed with {call.code}: {said}", MAX_WHY))
    # It changes nothing then: somebody came between the look and the call, or has the GPU open where no look reaches.
    reset_checks.check_unused(machine.holders(found, order.gpus))
    held = machine.drm()
    raise HostError(
        f"nvidia-smi finds them in use{f', perhaps by {held}' if held else ''}; no process has them open",
        "GPUs that nobody uses", "end display servers and monitoring outside of Kubernetes, or reboot the node",
    )  # fmt: skip


def _put_back(persistent: tuple[str, ...], machine: ResetMachine, result: ActResult) -> ActResult:
    """Switch persistence mode on again. That this fails is told, and changes nothing else of the result."""
    if not persistent:
        return result
    try:
        machine.persistence(persistent, True)
    except HostError as error:
        text = one_line(f"{result.text}; persistence mode is not on again: {error.what}", MAX_WHY)
        return ActResult(code=result.code, text=text)
    return result


def _former(order: ResetOrder, machine: ResetMachine) -> ActResult:
    """What to say of an act that was begun before under this ID."""
    if (result := machine.marks.result(order.act)) is not None:
        return result
    with machine.marks.left_over(order.act) as persistent:
        if (result := machine.marks.result(order.act)) is not None:
            return result
        if persistent is None:
            return ActResult(code=UNKNOWN, text=f"the reset {order.act} is under way in another process")
        left = tuple(uuid for uuid in persistent if uuid in order.gpus)
        unknown = ActResult(code=UNKNOWN, text=f"the reset {order.act} was begun before; how it ended is not known")
        return _put_back(left, machine, unknown)


def hangs(words: str, call: CommandResult) -> DriverHangsError:
    """The error of a program that asks the driver and did not end in time."""
    stays = "" if call.killed else f", and can't be killed: pid {call.pid} stays"
    return DriverHangsError(f"{words} does not return{stays}", "an answer of the driver", "reboot the node")


def _told(error: HostError) -> ActResult:
    code = HANGS if isinstance(error, DriverHangsError) else REFUSED
    return ActResult(code=code, text=one_line(to_do(error.what, error.remedy), MAX_WHY))
