"""Children with default signals: from a parent that ignores and blocks them, by every way to start a child."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kgpu.base import signals
from tests.deaf import BLOCKED, IGNORED, parent, unheard

LOOK = ("cat", "/proc/self/status")


@pytest.fixture
def deaf() -> Iterator[None]:
    with parent():
        yield


def by_run(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def by_asyncio(command: list[str]) -> str:
    async def run() -> str:
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        return (await process.communicate())[0].decode()

    return asyncio.run(run())


@pytest.mark.parametrize("start", [by_run, by_asyncio])
def test_a_child_starts_with_the_defaults(deaf: None, start: Callable[[list[str]], str]) -> None:
    del deaf
    # Python gives SIGPIPE back by itself; whoever started the tests may have handed more down, as a shell's "&" does.
    assert unheard(start(list(LOOK))) >= {*IGNORED, *BLOCKED} - {signal.SIGPIPE}
    assert unheard(start(signals.with_defaults(LOOK))) == set()


def test_and_so_does_one_that_is_spawned(deaf: None, tmp_path: Path) -> None:
    del deaf
    out = tmp_path / "out"
    actions = [(os.POSIX_SPAWN_OPEN, 1, str(out), os.O_WRONLY | os.O_CREAT, 0o600)]
    pid = os.posix_spawnp(LOOK[0], LOOK, os.environ, file_actions=actions, setsigmask=(), setsigdef=signals.ALL)
    os.waitpid(pid, 0)
    assert unheard(out.read_text()) == set()


def test_nothing_is_put_before_a_command_that_needs_it_not() -> None:
    code = "from kgpu.base import signals; print(signals.with_defaults(['a', 'b']))"
    assert by_run(signals.with_defaults([sys.executable, "-c", code])) == "['a', 'b']\n"


@pytest.mark.parametrize(("name", "code"), [("/nowhere/at/all", 127), ("/etc/passwd", 126)])
def test_a_program_that_can_not_be_run_has_a_shells_exit_code(deaf: None, name: str, code: int) -> None:
    del deaf
    done = subprocess.run(signals.with_defaults([name]), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.startswith(f"{name}: ")) == (code, True)


INTERRUPTED = """
import sys
from kgpu.cli import main


def interrupted(*_):
    exec("raise KeyboardInterrupt")


main._run = interrupted
if __name__ == "__main__":
    sys.exit(main.main(["kgpu", "version"]))
"""


def test_an_interrupt_within_a_text_that_python_runs_ends_with_its_exit_code(tmp_path: Path) -> None:
    """Ctrl-C while a dataclass was being made, as in any import: ``python -m`` ended itself by SIGINT afterwards."""
    (tmp_path / "interrupted.py").write_text(INTERRUPTED)
    done = subprocess.run([sys.executable, "-m", "interrupted"], cwd=tmp_path, check=False, timeout=60)
    assert done.returncode == 130
