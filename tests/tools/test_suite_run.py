"""The suite's processes: parts beside each other, what failed is shown, an interrupt ends all and lets them clean up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tools.suite import report
from tools.suite.parts import Part
from tools.suite.run import LANES, Suite

GOOD = "def test_good(): pass\n"
BAD = "def test_bad(): assert 'apple' == 'pear'\n"
SLOW = """
import pathlib, time
here = pathlib.Path(__file__).parent
def test_slow():
    try:
        (here / "begun").touch()
        time.sleep(600)
    finally:
        (here / "cleaned").touch()
"""
FAILS = [sys.executable, "-c", "raise SystemExit('no compiler')"]
WORKS = [sys.executable, "-c", "pass"]


@pytest.fixture(autouse=True)
def _bare_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the plugins take to load is most of the time of a pytest with one test."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def part(folder: Path, name: str, text: str, *, built: bool = False) -> Part:
    """A part of one file; ``built``: one that needs the programs."""
    file = folder / f"test_{name}.py"
    file.write_text(text)
    return Part(name=name, paths=(str(file),), on="real programs" if built else "")


def suite(folder: Path, *parts: Part) -> tuple[Suite, list[str]]:
    said: list[str] = []
    options = ["-q", "-c", os.devnull, f"--rootdir={folder}"]
    return Suite(parts, folder / "out", everything=parts, options=options, say=said.append), said


def test_all_parts_run_and_what_failed_is_shown(tmp_path: Path) -> None:
    parts = [part(tmp_path, "one", GOOD), part(tmp_path, "two", BAD, built=True), part(tmp_path, "three", GOOD)]
    run, said = suite(tmp_path, *parts)
    assert run.run(WORKS, required=True) == 1
    assert sorted(one.name for one in run.done) == ["one", "the build", "three", "two"]
    assert any("apple" in text for text in said)
    outcomes = [case.outcome for one in parts for case in report.read(tmp_path / "out" / f"{one.name}.xml")]
    assert outcomes == ["passed", "failed", "passed"]


@pytest.mark.parametrize(("required", "status", "ran"), [(True, 1, {"the build"}), (False, 0, {"the build", "two"})])
def test_a_build_that_fails(tmp_path: Path, required: bool, status: int, ran: set[str]) -> None:
    run, said = suite(tmp_path, part(tmp_path, "two", GOOD, built=True))
    assert run.run(FAILS, required=required) == status
    assert {one.name for one in run.done} == ran
    assert any("no compiler" in text for text in said)


def test_an_interrupt_ends_every_part_and_lets_it_clean_up(tmp_path: Path) -> None:
    run, _ = suite(tmp_path, part(tmp_path, "slow", SLOW))

    def interrupt() -> None:
        until = time.monotonic() + 300
        while not (tmp_path / "begun").exists() and time.monotonic() < until:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run.run([], required=True)
    thread.join()
    assert (tmp_path / "cleaned").exists()


def test_an_interrupt_after_a_part_has_ended_and_before_it_is_collected_ends_the_others(tmp_path: Path) -> None:
    run, _ = suite(tmp_path, part(tmp_path, "slow", SLOW), part(tmp_path, "quick", GOOD))
    quick = []

    def begun_and_ended() -> bool:
        quick[:] = [one for one in run._active if one.name == "quick"]
        return (tmp_path / "begun").exists() and bool(quick) and quick[0].process.poll() is not None

    def collect() -> None:
        if begun_and_ended():
            raise KeyboardInterrupt

    run._collect = collect  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        run.run([], required=True)
    assert (tmp_path / "cleaned").exists()


def test_paths_are_given_to_pytest(tmp_path: Path) -> None:
    file = tmp_path / "test_x.py"
    file.write_text(GOOD + BAD)
    command = [sys.executable, "-m", "tools.suite", "-k", "good", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout + done.stderr


def test_cores_that_nothing_else_will_use_take_parts_that_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    waiting = [part(tmp_path, f"w{number}", GOOD, built=True) for number in range(8)]
    computing = [part(tmp_path, f"c{number}", GOOD) for number in range(3)]
    run, _ = suite(tmp_path, *waiting, *computing)
    assert [bool(one.on) for one in run._startable(built=True)] == [True] * LANES + [False] * 2
    assert len(run._startable(built=False)) == 2
    alone, _ = suite(tmp_path, *waiting)
    assert len(alone._startable(built=True)) == LANES + 2
