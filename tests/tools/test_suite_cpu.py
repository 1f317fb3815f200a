"""Processor time by part and by test: what the kernel counted, or nothing where it does not tell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.test_suite_run import WORKS, part, suite
from tools.suite import cpu, report

BUSY = """
import time
def test_busy():
    until = time.process_time() + 0.5
    while time.process_time() < until: pass
def test_idle(): pass
"""
WATCHED = (
    "from tests.cpu_watch import CpuWatch\ndef pytest_configure(config): config.pluginmanager.register(CpuWatch())\n"
)


@pytest.fixture
def _groups() -> None:
    made = cpu.make("probe")
    if made is None:
        pytest.skip("no control group can be made here")
    cpu.remove(made)


@pytest.mark.usefixtures("_groups")
def test_a_part_and_its_tests_say_what_they_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (tmp_path / "conftest.py").write_text(WATCHED)
    run, _ = suite(tmp_path, part(tmp_path, "one", BUSY))
    assert run.run(WORKS, required=True) == 0
    [took] = [one.cpu_s for one in run.done if one.part]
    busy, idle = (case.cpu_s for case in report.read(tmp_path / "out" / "one.xml"))
    assert took is not None
    assert 0.5 <= busy < took
    assert idle < 0.4
    # Not all the way down: the control groups of labs beside this run come and go.
    own = f"{cpu.PREFIX}{os.getpid()}-one"
    assert not [*cpu.ROOT.glob(own), *cpu.ROOT.glob(f"*/{own}")]


@pytest.mark.usefixtures("_groups")
def test_what_a_command_starts_is_counted() -> None:
    group = cpu.make("children")
    assert group is not None
    try:
        spin = "import time\nwhile time.process_time() < 0.3: pass"
        subprocess.run(cpu.within(group, ["sh", "-c", f"{sys.executable} -c '{spin}'; true"]), check=True)
        assert (cpu.seconds(group) or 0) >= 0.3
    finally:
        cpu.remove(group)


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("cpuacct.usage", "1500000000\n", 1.5),
        ("cpu.stat", "usage_usec 2500000\nuser_usec 1\n", 2.5),
        ("cpu.stat", "user_usec 1\n", None),
        ("cpu.stat", "usage_usec many\n", None),
        ("other", "", None),
    ],
)
def test_both_versions_are_read(tmp_path: Path, file: str, text: str, expected: float | None) -> None:
    (tmp_path / file).write_text(text)
    assert cpu.seconds(tmp_path) == expected


def test_where_no_group_can_be_made_the_command_runs_as_it_is(tmp_path: Path) -> None:
    assert cpu.make("x", tmp_path / "none") is None
    assert cpu.make("x", tmp_path) is None
    assert cpu.within(None, ["true"]) == ["true"]


@pytest.mark.usefixtures("_groups")
def test_some_tests_are_measured_when_asked(tmp_path: Path) -> None:
    file = tmp_path / "test_x.py"
    file.write_text(BUSY)
    command = [sys.executable, "-m", "tools.suite", "--cpu", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "what each part took, and of that processor time" in done.stdout
    assert "2 passed, 0 failed" in done.stdout.splitlines()[-1]


@pytest.mark.parametrize("option", [[], ["--cpu"]])
def test_some_tests_run_in_the_environment_of_all(tmp_path: Path, option: list[str]) -> None:
    file = tmp_path / "test_x.py"
    file.write_text("import os\n\n\ndef test_it():\n    assert os.environ['GOGC'] == '400'\n")
    env = {name: value for name, value in os.environ.items() if name != "GOGC"}
    command = [sys.executable, "-m", "tools.suite", *option, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stdout + done.stderr


def test_groups_of_a_killed_run_go(tmp_path: Path) -> None:
    old, other = (tmp_path / f"{cpu.PREFIX}{owner}-x" for owner in ("4194305", "1"))
    old.mkdir()
    other.mkdir()
    cpu.make("new", tmp_path)
    assert (old.exists(), other.exists()) == (False, True)
