"""The order of a reset on its node: at most once per ID, however often and wherever it is cut off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from kgpu.base.errors import HostError
from kgpu.host.commands import CommandResult
from kgpu.host.device_holders import DeviceHolder
from kgpu.operations.act_marks import ActResult, Marks
from kgpu.operations.model import HANGS, REFUSED, UNKNOWN
from kgpu.operations.node_reset import DONE, FAILED, ResetMachine, ResetOrder, hangs, reset
from kgpu.operations.reset_checks import MachineGpus, ResettableGpu

BOOT = "8a7f3c52-5a53-4a1e-9a53-0e3b6a0d7d11"
UUIDS = tuple(f"GPU-{number:08x}-3a75-510f-9224-fe9aed5a6332" for number in range(2))
ORDER = ResetOrder(act="op-1", boot=BOOT, gpus=UUIDS)
OK = CommandResult(pid=7, code=0, tail="All done.\n")
BUSY = CommandResult(pid=7, code=255, tail="  GPU 0: In use by another client\n")
TRAIN = DeviceHolder(pid=42, program="train", nodes=frozenset(UUIDS))
DAEMON = DeviceHolder(pid=2, program="nvidia-persiste", nodes=frozenset(UUIDS))


class Killed(BaseException):
    """The process ends here, with nothing tidied up but what the kernel tidies up."""


@dataclass
class Node:
    """A machine whose every call is counted. ``dies_at`` is the number of the call before which the process is killed;
    with ``late`` it is killed after that call.
    """

    folder: Path
    gpus: dict[str, ResettableGpu] = field(default_factory=dict)
    users: list[Callable[[], tuple[DeviceHolder, ...]]] = field(default_factory=list)
    answer: CommandResult = OK
    dies_at: int = -1
    late: bool = False
    calls: list[str] = field(default_factory=list)
    resets: int = 0
    persistence: dict[str, bool] = field(default_factory=lambda: dict.fromkeys(UUIDS, True))
    log: list[str] = field(default_factory=list)
    stuck: bool = False

    def __post_init__(self) -> None:
        for minor, uuid in enumerate(UUIDS):
            self.gpus.setdefault(uuid, ResettableGpu(uuid=uuid, bus_id=f"0000:0{minor}:00.0", minor=minor))

    def machine(self) -> ResetMachine:
        return ResetMachine(
            boot=BOOT, marks=Marks(self.folder / "acts"), look=self._look, holders=self._holders,
            persistence=self._switch, reset=self._reset, drm=lambda: "", say=self._say,
        )  # fmt: skip

    def run(self, order: ResetOrder = ORDER) -> ActResult:
        return reset(order, self.machine())

    def _step(self, name: str, effect: Callable[[], None] = lambda: None) -> None:
        number = len(self.calls)
        self.calls.append(name)
        if number == self.dies_at and not self.late:
            raise Killed
        effect()
        if number == self.dies_at:
            raise Killed

    def _look(self, uuids: Sequence[str]) -> MachineGpus:
        self._step("look")
        gpus = {uuid: replace(gpu, persistence=self.persistence[uuid]) for uuid, gpu in self.gpus.items()}
        return MachineGpus(gpus=gpus)

    def _holders(self, machine: MachineGpus, uuids: Sequence[str]) -> tuple[DeviceHolder, ...]:
        self._step("holders")
        return self.users.pop(0)() if self.users else ()

    def _switch(self, uuids: Sequence[str], on: bool) -> None:
        if self.stuck:
            raise hangs("nvidia-smi -pm", CommandResult(pid=8, code=None, tail=""))
        self._step("on" if on else "off", lambda: self.persistence.update(dict.fromkeys(uuids, on)))

    def _reset(self, uuids: Sequence[str], lock: int) -> CommandResult:
        assert lock >= 0
        assert not any(self.persistence[uuid] for uuid in uuids)

        def count() -> None:
            self.resets += 1

        self._step("reset", count)
        return self.answer

    def _say(self, line: str) -> None:
        self._step("say", lambda: self.log.append(line))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_the_order_of_things(node: Node) -> None:
    assert node.run() == ActResult(code=DONE, text=f"nvidia-smi has reset {', '.join(UUIDS)}")
    assert node.calls == ["look", "holders", "off", "holders", "say", "reset", "on", "say"]
    assert node.log == [
        f"kgpu: resetting {', '.join(UUIDS)} for operation op-1",
        f"kgpu: operation op-1: nvidia-smi has reset {', '.join(UUIDS)}",
    ]


def test_a_later_pod_tells_the_former_result_and_does_nothing(node: Node) -> None:
    first = node.run()
    before = list(node.calls)
    assert node.run() == first
    assert (node.calls, node.resets) == (before, 1)
    assert node.run(replace(ORDER, act="op-2")).code == DONE
    assert node.resets == 2


def test_without_persistence_mode_nothing_is_switched(node: Node) -> None:
    node.persistence = dict.fromkeys(UUIDS, False)
    assert node.run().code == DONE
    assert node.calls == ["look", "holders", "holders", "say", "reset", "say"]


@pytest.mark.parametrize(
    "order",
    [
        replace(ORDER, act="../op"), replace(ORDER, boot="another"), replace(ORDER, boot=""), replace(ORDER, gpus=()),
        replace(ORDER, gpus=("GPU-1",)), replace(ORDER, gpus=("GPU-ffffffff-3a75-510f-9224-fe9aed5a6332",)),
    ],
)  # fmt: skip
def test_an_order_that_is_not_this_machines_leaves_no_trace(node: Node, order: ResetOrder) -> None:
    assert node.run(order).code == REFUSED
    assert set(node.calls) <= {"look"}
    assert not (node.folder / "acts").exists()


def test_a_machine_without_a_boot_id_does_nothing(node: Node) -> None:
    result = reset(replace(ORDER, boot=""), replace(node.machine(), boot=""))
    assert (result.code, node.calls) == (REFUSED, [])


def test_gpus_in_use_are_refused_without_a_trace(node: Node) -> None:
    node.users = [lambda: (DAEMON, TRAIN)]
    result = node.run()
    assert result.code == REFUSED
    assert result.text == "in use by train (pid 42); to do: end what uses them, then reset them again"
    assert (node.calls, node.persistence[UUIDS[0]]) == (["look", "holders"], True)
    assert not (node.folder / "acts").exists()
    assert node.run().code == DONE


def test_the_daemon_of_persistence_mode_has_to_let_go(node: Node) -> None:
    node.users = [lambda: (DAEMON,), lambda: ()]
    assert node.run().code == DONE
    node.users = [lambda: (DAEMON,), lambda: (DAEMON,)]
    result = node.run(replace(ORDER, act="op-2"))
    assert result.code == REFUSED
    assert "nvidia-persiste (pid 2)" in result.text
    assert (node.resets, node.persistence) == (1, dict.fromkeys(UUIDS, True))


def test_one_that_comes_between_the_looks_is_refused_and_stays_so(node: Node) -> None:
    node.users = [lambda: (), lambda: (TRAIN,)]
    result = node.run()
    assert (result.code, node.resets, node.persistence) == (REFUSED, 0, dict.fromkeys(UUIDS, True))
    assert node.run() == result


def test_one_that_comes_between_the_look_and_the_call_is_named(node: Node) -> None:
    node.answer = BUSY
    node.users = [lambda: (), lambda: (), lambda: (TRAIN,)]
    result = node.run()
    assert result.code == REFUSED
    assert "in use by train (pid 42)" in result.text
    assert all(node.persistence.values())


def test_the_kernels_own_use_is_named(node: Node) -> None:
    node.answer = BUSY
    result = reset(ORDER, replace(node.machine(), drm=lambda: "nvidia_drm with modeset"))
    assert result.code == REFUSED
    assert "perhaps by nvidia_drm with modeset; no process has them open" in result.text


def test_a_failure_tells_the_last_lines(node: Node) -> None:
    node.answer = CommandResult(pid=7, code=255, tail="x\n" * 100 + "Unable to reset GPU 0: Unknown Error\x1b[0m\n")
    result = node.run()
    assert result.code == FAILED
    assert result.text == "nvidia-smi has failed with 255: x x x x x Unable to reset GPU 0: Unknown Error\ufffd[0m"
    assert all(node.persistence.values())


@pytest.mark.parametrize("killed", [True, False])
def test_a_hanging_reset_is_told_and_nothing_more_is_asked(node: Node, killed: bool) -> None:
    node.answer = CommandResult(pid=77, code=None, tail="", killed=killed)
    result = node.run()
    assert result.code == HANGS
    assert ("pid 77 stays" in result.text) is not killed
    assert node.calls[-2:] == ["reset", "say"]
    assert node.run() == result
    assert node.resets == 1


def test_a_hanging_switch_is_a_hanging_driver(node: Node) -> None:
    node.stuck = True
    assert node.run().code == HANGS
    assert node.resets == 0


def test_persistence_that_cant_be_put_back_changes_no_result(node: Node) -> None:
    def switch(uuids: Sequence[str], on: bool) -> None:
        if on:
            raise HostError("no such GPU", "", "")
        node.persistence = dict.fromkeys(UUIDS, False)

    result = reset(ORDER, replace(node.machine(), persistence=switch))
    assert result.code == DONE
    assert result.text.endswith("; persistence mode is not on again: no such GPU")


CALLS = 8


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("dies_at", range(CALLS))
def test_killed_anywhere_it_resets_at_most_once_and_puts_persistence_back(node: Node, dies_at: int, late: bool) -> None:
    node.dies_at, node.late = dies_at, late
    with pytest.raises(Killed):
        node.run()
    begun, resets, node.dies_at = Marks(node.folder / "acts").exists("op-1"), node.resets, -1
    for _ in range(3):
        result = node.run()
        if begun:
            assert (result.code, node.resets) == (UNKNOWN, resets)
        else:
            assert (result.code, node.resets) == (DONE, 1)
    assert node.persistence == dict.fromkeys(UUIDS, True)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("again", range(2))
@pytest.mark.parametrize("dies_at", range(2, CALLS))
def test_killed_again_while_it_puts_things_back(node: Node, dies_at: int, again: int, late: bool) -> None:
    node.dies_at, node.late = dies_at, late
    with pytest.raises(Killed):
        node.run()
    resets, node.dies_at = node.resets, len(node.calls) + again
    for _ in range(2):
        try:
            node.run()
        except Killed:
            continue
    node.dies_at = -1
    assert node.run().code == UNKNOWN
    assert (node.resets, node.persistence) == (resets, dict.fromkeys(UUIDS, True))


def test_a_result_that_could_not_be_written_is_unknown_later(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Marks, "record", lambda self, act, result: None)
    assert node.run().code == DONE
    assert node.run().code == UNKNOWN
    assert node.resets == 1


def test_two_at_once_reset_once(node: Node) -> None:
    """The second comes while the first is at it."""
    second: list[ActResult] = []

    def call(uuids: Sequence[str], lock: int) -> CommandResult:
        second.append(node.run())
        return OK

    assert reset(ORDER, replace(node.machine(), reset=call)).code == DONE
    assert [(one.code, one.text) for one in second] == [(UNKNOWN, "the reset op-1 is under way in another process")]
    assert node.resets == 0


def test_two_that_have_both_looked_reset_once(node: Node) -> None:
    """The second has its mark while the first still looks at who uses the GPUs."""
    inner: list[ActResult] = []

    def holders() -> tuple[DeviceHolder, ...]:
        inner.append(node.run())
        return ()

    node.users = [holders]
    assert node.run() == inner[0]
    assert (inner[0].code, node.resets) == (DONE, 1)
