"""What a run finds and leaves on the machine: told apart from what neighbours have, and named with the test."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kgpu.lab.real import state
from kgpu.lab.real.state import LabState
from tests import machine_state
from tests.child import child
from tests.machine_state import MARK, TEST, Places, Thing, dirt, left, shortages, take
from tests.machine_watch import MachineWatch

ME, NEIGHBOUR, GONE = "100-7", "200-7", "300-7"


@dataclass
class Machine:
    """A machine of folders. Processes that live are those with a pid in ``proc``; each began at 7."""

    places: Places

    def process(self, pid: int, *runs: str, command: str = "sleep 600", test: str = "") -> None:
        folder = self.places.proc / str(pid)
        folder.mkdir()
        env = {MARK: "/".join(runs), TEST: test, "HOME": "/root"}
        (folder / "environ").write_text("".join(f"{name}={value}\0" for name, value in env.items() if value))
        (folder / "cmdline").write_text(command.replace(" ", "\0"))
        (folder / "stat").write_text(f"{pid} (a) b) S " + "0 " * 18 + "7 0")

    def cgroup(self, name: str) -> None:
        (self.places.cgroups / "memory" / name).mkdir(parents=True)

    def link(self, name: str) -> None:
        (self.places.links / name).mkdir()

    def take(self) -> machine_state.Stock:
        return take(self.places)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """With this run's first process and a neighbour's; what is gone is gone."""
    names = ("proc", "cgroups", "links", "devices", "scratch")
    for name in names:
        (tmp_path / name).mkdir()
    made = Machine(Places(**{name: tmp_path / name for name in names}, folders=(str(tmp_path / "kubelet"),)))
    made.process(100, command="python -m pytest")
    made.process(200, command="python -m pytest")
    return made


def test_a_clean_machine_stays_clean(machine: Machine) -> None:
    before = machine.take()
    assert dirt(before, ME) == []
    assert left(before, machine.take(), ME) == ([], [])


def test_what_a_test_left_is_named_with_the_test(machine: Machine, tmp_path: Path) -> None:
    before = machine.take()
    machine.process(9, ME, test="tests/a.py::test_x (setup)")
    machine.cgroup("kgpu-lab-x")
    machine.link("kgpu-lab3")
    (tmp_path / "kubelet").mkdir()
    (tmp_path / "scratch" / "kgpu-nodes-abc").mkdir()
    (tmp_path / "devices" / "nvidia0").touch()
    (tmp_path / "proc" / "net").mkdir()
    (tmp_path / "proc" / "net" / "fib_trie").write_text(
        "  |-- 127.0.0.1\n /32 host LOCAL\n |-- 127.9.1.2\n /32 host LOCAL\n"
    )
    assert left(before, machine.take(), ME) == (
        [
            "process 9 (sleep 600, started by tests/a.py::test_x)",
            "address 127.9.1.2",
            "cgroup kgpu-lab-x",
            f"device {tmp_path}/devices/nvidia0",
            f"files {tmp_path}/scratch/kgpu-nodes-abc",
            f"folder {tmp_path}/kubelet",
            "link kgpu-lab3",
        ],
        [],
    )


def test_what_was_there_before_is_not_this_runs_but_is_named(machine: Machine) -> None:
    machine.process(9, GONE, test="tests/a.py::test_x (call)")
    machine.cgroup("kgpu-lab-x")
    before = machine.take()
    assert dirt(before, ME) == ["process 9 (sleep 600, started by tests/a.py::test_x)", "cgroup kgpu-lab-x"]
    assert left(before, machine.take(), ME) == ([], [])


def test_a_neighbours_things_are_neither(machine: Machine, tmp_path: Path) -> None:
    before = machine.take()
    lab = tmp_path / "lab"
    lab.mkdir()
    state.save(
        lab / "lab.json",
        LabState(name="x", profile="t4", gpus=1, agent=True, network_index=3, bin_dir="/b", cgroups=("/c/kgpu-lab-x",)),
    )
    machine.process(9, NEIGHBOUR, command=f"python -m kgpu.lab.real.keeper {lab}/plan.json {lab}/log")
    machine.cgroup("kgpu-lab-x")
    machine.link("kgpu-lab3")
    machine.cgroup("kgpu-engine-200-1")
    after = machine.take()
    assert left(before, after, ME) == ([], [])
    assert dirt(after, ME) == []
    assert [one.pid for one in after.others(ME)] == [9]
    assert [one.pid for one in after.others(NEIGHBOUR)] == []


def test_beside_a_neighbour_only_processes_are_this_runs_for_certain(machine: Machine) -> None:
    before = machine.take()
    machine.process(8, ME)
    machine.process(9, NEIGHBOUR)
    machine.cgroup("kgpu-lab-x")
    assert left(before, machine.take(), ME) == (["process 8 (sleep 600)"], ["cgroup kgpu-lab-x"])


def test_a_cgroup_whose_maker_is_gone_is_dirt_beside_neighbours_too(machine: Machine) -> None:
    machine.process(9, NEIGHBOUR)
    for name in ("kgpu-lab-tests-300", "kgpu-lab-tests-200", "kgpu-lab-own"):
        machine.cgroup(name)
    assert dirt(machine.take(), ME) == ["cgroup kgpu-lab-tests-300"]


def test_a_run_within_a_run_is_of_both(machine: Machine) -> None:
    before = machine.take()
    machine.process(9, ME, GONE)
    after = machine.take()
    assert left(before, after, ME)[0] == ["process 9 (sleep 600)"]
    assert dirt(after, NEIGHBOUR) == ["process 9 (sleep 600)"], "the inner run has ended"


def test_a_lab_of_somebody_who_runs_no_tests_is_a_neighbour(machine: Machine) -> None:
    machine.process(9, command="python -m kgpu.lab.nodes --dir /x")
    machine.process(10, command="vi kgpu.lab.nodes")
    assert [one.pid for one in machine.take().others(ME)] == [9]


def shown(process: subprocess.Popen[bytes]) -> dict[int, machine_state.Process]:
    """All processes, once this one is among them: the kernel shows a process's environment a moment after it has closed
    what its parent waits for.
    """
    while process.pid not in (found := {one.pid: one for one in take().processes}):
        assert process.poll() is None
    return found


def test_a_marked_process_is_found_on_this_machine_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARK, "1-1")
    mine = machine_state.own_mark() + "0"
    with machine_state.marked(mine), child(["sleep", "600"]) as process:
        found = shown(process)
        assert found[process.pid].runs == ("1-1", mine)
        assert __name__.rpartition(".")[2] in found[process.pid].test
    assert os.environ[MARK] == "1-1"
    assert process.pid not in {one.pid for one in take().processes}


def test_a_run_that_leaves_something_fails_and_one_that_failed_stays_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine_state, "own_mark", lambda: f"{os.getpid()}-x")
    # Of this machine the processes alone: whatever else comes and goes is no matter here.
    places = Places(cgroups=tmp_path, links=tmp_path, devices=tmp_path, scratch=tmp_path, folders=())
    monkeypatch.setattr(machine_state, "take", lambda: take(places))
    watch = MachineWatch(patience_s=0.0)
    with child(["sleep", "600"]) as process:
        shown(process)
        results = []
        for code in (pytest.ExitCode.OK, pytest.ExitCode.INTERRUPTED):
            session: Any = SimpleNamespace(exitstatus=code)
            watch.pytest_sessionfinish(session)
            results.append(session.exitstatus)
    assert results == [pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED]
    session = SimpleNamespace(exitstatus=pytest.ExitCode.OK)
    MachineWatch(patience_s=10.0).pytest_sessionfinish(session)
    assert session.exitstatus == pytest.ExitCode.OK


def test_a_folder_that_goes_while_it_is_looked_at_is_none(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "isdir", lambda _: True)
    assert [one for one in machine.take().things if one.kind == "folder"] == []


def test_a_failure_on_a_dirty_machine_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_state, "dirt", lambda *_: ["cgroup kgpu-lab-x"])
    monkeypatch.setattr(machine_state, "shortages", list)
    watch = MachineWatch(patience_s=0.0)
    try:
        report: Any = SimpleNamespace(failed=True, sections=[])
        watch.pytest_runtest_logreport(report)
        assert report.sections == [("the machine was not clean", "cgroup kgpu-lab-x")]
        assert "the machine was not clean: cgroup kgpu-lab-x" in watch.pytest_report_header()
    finally:
        watch.pytest_sessionfinish(SimpleNamespace(exitstatus=pytest.ExitCode.INTERRUPTED))  # type: ignore[arg-type]


def test_what_is_used_up_is_named(machine: Machine, tmp_path: Path) -> None:
    proc = machine.places.proc
    (proc / "sys" / "fs" / "inotify").mkdir(parents=True)
    (proc / "sys" / "fs" / "inotify" / "max_user_instances").write_text("12\n")
    (proc / "meminfo").write_text("MemTotal:  9000000 kB\nMemAvailable:  8000000 kB\n")
    assert shortages(machine.places) == []
    (proc / "100" / "fd").mkdir()
    for fd, target in enumerate(("anon_inode:inotify", "/dev/null", "anon_inode:inotify", "anon_inode:inotify")):
        (proc / "100" / "fd" / str(fd)).symlink_to(target)
    (proc / "meminfo").write_text("MemTotal:  9000000 kB\nMemAvailable:  80000 kB\n")
    assert shortages(machine.places) == [
        "inotify instances: 3 of 12 are in use (fs.inotify.max_user_instances)",
        "memory: 78 MiB are left",
    ]


def test_things_have_an_order_and_a_name() -> None:
    assert str(min(Thing("link", "b"), Thing("link", "a"))) == "link a"
