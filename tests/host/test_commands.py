"""Programs that end, that fail, that print without end, and that can't be ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kgpu.base.errors import HostError
from kgpu.host import commands
from kgpu.host.commands import CommandResult, run

ENV = {"PATH": "/usr/bin:/bin"}


def shell(script: str, seconds: float = 60.0, keep: tuple[int, ...] = ()) -> CommandResult:
    return run(["/bin/sh", "-c", script], seconds=seconds, env=ENV, keep_open=keep)


def test_the_code_and_the_end_of_what_it_prints() -> None:
    done = shell("echo one; echo two >&2; exit 7")
    assert (done.code, done.tail, done.last_lines) == (7, "one\ntwo\n", "one two")


def test_what_it_prints_is_bounded_and_printable() -> None:
    done = shell("yes lots | head -c 1000000; printf '\\033[31mred\\033[0m\\n'")
    assert len(done.tail) <= commands.TAIL
    assert done.last_lines.endswith("\ufffd[31mred\ufffd[0m")
    assert len(done.last_lines) <= 400


def test_one_that_does_not_end_is_killed() -> None:
    done = shell("echo begun; exec sleep 1000", seconds=0.2)
    assert (done.code, done.killed) == (None, True)
    assert not Path(f"/proc/{done.pid}").exists()


def test_one_that_closes_its_output_and_stays_is_killed_too() -> None:
    assert shell("exec sleep 1000 >&- 2>&-", seconds=0.2).code is None


def test_nobody_waits_for_what_a_program_leaves_running_with_its_output() -> None:
    done = shell("echo begun; sleep 1000 & echo $!", seconds=600)
    begun, left = done.tail.split()
    try:
        assert (done.code, begun) == (0, "begun")
    finally:
        os.kill(int(left), signal.SIGKILL)


def test_all_that_a_group_has_started_ends_with_it(tmp_path: Path) -> None:
    script = ["/bin/sh", "-c", "sleep 1000 & echo $! > child; exec sleep 1000"]
    written = tmp_path / "child"
    for seconds in (0.5, 5.0, 50.0):  # on a busy machine it may not have come so far by the first
        done = run(script, seconds=seconds, env=ENV, folder=str(tmp_path), group=True)
        assert (done.code, done.killed) == (None, True)
        if written.exists() and written.read_text().endswith("\n"):
            break
    child = int(written.read_text())
    until = time.monotonic() + 120
    while running(child):
        assert time.monotonic() < until
        time.sleep(0.01)


def running(pid: int) -> bool:
    """Whether the process is there, and no mere entry that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_what_can_not_be_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="/nowhere/x can't be run: No such file"):
        run(["/nowhere/x"], seconds=1, env=ENV)
    with pytest.raises(HostError, match=f"/bin/sh can't be run in {tmp_path}/none"):
        run(["/bin/sh"], seconds=1, env=ENV, folder=f"{tmp_path}/none")
    with pytest.raises(HostError, match="can't be run: embedded null byte"):
        run(["/bin/sh", "\0"], seconds=1, env=ENV)


def test_nobody_waits_for_one_that_cant_be_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the driver holds one in the kernel; here its signals get lost."""
    end = subprocess.Popen.kill
    running: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(commands, "KILL_SECONDS", 0.1)
    monkeypatch.setattr(commands, "_left_behind", [])
    monkeypatch.setattr(subprocess.Popen, "kill", lambda process: running.append(process))
    done = shell("exec sleep 1000", seconds=0.1)
    assert (done.code, done.killed) == (None, False)
    (process,) = running
    assert process.pid == done.pid
    assert process.poll() is None
    end(process)
    process.wait()


def test_it_inherits_what_it_is_told_and_nothing_else(tmp_path: Path) -> None:
    kept, other = (os.open(tmp_path / name, os.O_CREAT | os.O_RDWR) for name in ("kept", "other"))
    try:
        listed = f"import os; print(*(os.path.exists(f'/proc/self/fd/{{fd}}') for fd in ({kept}, {other})))"
        done = run([sys.executable, "-c", listed], seconds=60, env=ENV, keep_open=[kept])
    finally:
        os.close(kept)
        os.close(other)
    assert done.tail == "True False\n"


def test_one_that_is_not_there() -> None:
    with pytest.raises(HostError, match="/no/such can't be run"):
        run(["/no/such"], seconds=1, env=ENV)
