"""The live screen in a real terminal: keys, sizes, colours, and that the terminal is left as it was found."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.cells import cell_len

from tests.child import child
from tests.top.exporting import kubeconfig
from tests.top.screen import ROOT, Program

Start = Callable[..., Program]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The kubeconfig of a cluster of 12 nodes with 4 GPUs, a silent node, and one with odd names."""
    words = [sys.executable, "-m", "tests.top.exporting", "12", "4", "odd"]
    with child(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        path = tmp_path_factory.mktemp("cluster") / "config"
        path.write_text(kubeconfig(f"http://127.0.0.1:{int(server.stdout.readline())}"))
        yield path


@pytest.fixture
def start(cluster: Path) -> Iterator[Start]:
    running: list[Program] = []

    def run(*words: str, **options: object) -> Program:
        running.append(Program("top", "--kubeconfig", str(cluster), "--via", "proxy", *words, **options))
        return running[-1]

    yield run
    for program in running:
        program.close()


def ended_well(program: Program, code: int = 0) -> None:
    assert program.wait() == code
    assert program.as_found
    screen = program.screen
    # The kernel hands on what a program has written a moment after it has ended.
    program.read_until(lambda: (screen.alternate, screen.cursor_shown) == (False, True))


def test_keys_change_what_is_shown_and_q_leaves_the_terminal_as_it_was(start: Start) -> None:
    top = start(columns=140, rows=20)
    top.until("1-16 of 50")
    assert top.screen.alternate
    assert not top.as_found
    assert "14 nodes (1 silent)  49 GPUs, 25 in use" in top.screen.lines[0]
    assert top.screen.lines[3].startswith("! broken: the exporter does not answer the API server")
    top.press("os")
    top.until("gpus by utilization")
    assert top.screen.lines[4].startswith("odd")
    top.press("\x1b[F")  # End
    top.until("35-50 of 50")
    top.press("2")
    text = top.until("nodes by utilization")
    assert "USED" in text
    top.press("3")
    assert "train-2" in top.until("pods by utilization")
    top.press("1/node-11 ml")
    text = top.until("filter: node-11 ml_")
    assert "2 GPUs, 2 in use" in top.until("2 GPUs")
    top.press("\x1b")
    top.until("1-16 of 50")
    top.press("h")
    assert "F5" in top.until("this help")
    top.press("xq")
    ended_well(top)


def test_names_that_are_wide_or_hostile_stay_in_their_cells(start: Start) -> None:
    top = start("--node", "odd", columns=120, rows=8)
    text = top.until("학습팀/모델-훈련-가나다라마바사")
    assert "77%" in text
    top.press("/훈련\r")
    top.until("filter: 훈련")
    top.drawn_anew()
    assert top.screen.misfits == 0
    top.press("q")
    ended_well(top)


def test_it_follows_the_terminals_size(start: Start) -> None:
    top = start(columns=100, rows=30)
    top.until("read in")
    for columns, rows in ((1, 1), (12, 4), (40, 10), (79, 24), (240, 60)):
        top.resize(columns, rows)
        os.kill(top.process.pid, signal.SIGWINCH)
        # Two may still be of the size before: one that is not read yet, and one that was begun.
        for key in "jGgjGg":
            top.press(key)
            top.drawn_anew()
        assert top.screen.misfits == 0
        title = "kgpu top  14 nodes (1 silent)"[:columns]
        top.until(lambda _, title=title: top.screen.lines[0][: len(title) - 1] == title[:-1])
        assert max(map(cell_len, top.screen.lines)) <= columns
    top.press("q")
    ended_well(top)


@pytest.mark.parametrize(("words", "env", "colors"), [((), {}, True), (("--no-color",), {}, False)])
def test_colours_only_where_they_are_wanted(start: Start, words, env, colors) -> None:
    top = start(*words, env=env)
    top.until("read in")
    assert bool(top.screen.colors) is colors
    top.press("q")
    ended_well(top)


def test_plain_characters(start: Start) -> None:
    top = start("--ascii", "--filter", "node-1", rows=40)
    top.until("read in")
    assert top.screen.text.isascii()
    top.press("q")
    ended_well(top)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it_and_the_terminal_is_as_it_was(start: Start, number: signal.Signals) -> None:
    top = start()
    top.until("read in")
    os.kill(top.process.pid, number)
    ended_well(top)


def test_stopped_and_continued(start: Start) -> None:
    top = start(job=True)
    top.until("read in")
    pid = top.job()
    os.kill(pid, signal.SIGTSTP)
    top.until(lambda _: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    assert top.as_found
    top.read_until(lambda: not top.screen.alternate)
    os.kill(pid, signal.SIGCONT)
    top.until(lambda text: top.screen.alternate and "read in" in text)
    top.press("q")
    ended_well(top)


def test_an_api_server_that_is_away_is_told_and_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(kubeconfig("http://127.0.0.1:9"))
    top = Program("top", "--kubeconfig", str(path))
    try:
        top.until("no answer from the API server")
        top.press("q")
        ended_well(top)
    finally:
        top.close()
