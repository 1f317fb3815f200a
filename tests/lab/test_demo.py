"""The demo as a newcomer runs it: it ends by itself when nobody watches, leaves nothing, and refuses clearly."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import weakref
from pathlib import Path

import pytest

from kgpu.base.signals import untraced_interrupts
from kgpu.cli import lab_demo
from kgpu.lab import demo
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.scenarios.run import Interrupts

pytestmark = pytest.mark.timeout(600)


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "kgpu", "lab", "demo", *words]


def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words), capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=240,
        env={**os.environ, **env},
    )  # fmt: skip


# The demo with its first story alone.
SHORT = """
import sys
from kgpu.cli.main import main
from kgpu.lab import demo
every = demo.stories
demo.stories = lambda: every()[:1]
sys.exit(main(["kgpu", "lab", "demo", *sys.argv[1:]]))
"""


def test_where_nobody_watches_it_ends_by_itself_and_leaves_nothing(kubectl: str, tmp_path: Path) -> None:
    del kubectl
    folder = tmp_path / "demo"
    done = subprocess.run(
        [sys.executable, "-c", SHORT, "--dir", str(folder)], capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(", as expected") == 1
    assert "\x1b[" not in done.stdout  # plain when piped
    assert not folder.exists()


def test_a_second_demo_is_refused_and_the_first_stays(embedded: EmbeddedLab) -> None:
    done = run("--name", embedded.name, "--dir", str(embedded.folder))
    assert done.returncode == 2
    assert "is already up" in done.stderr
    assert f"kgpu lab down --name {embedded.name}" in done.stderr
    assert embedded.running


def test_a_port_in_use_is_explained(kubectl: str, tmp_path: Path) -> None:
    del kubectl
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = run("--dir", str(tmp_path / "demo"), "--port", port)
    assert done.returncode == 2
    assert f"127.0.0.1:{port}" in done.stderr
    assert "--port" in done.stderr


def test_a_folder_that_cannot_be_written_is_explained(kubectl: str, tmp_path: Path) -> None:
    del kubectl
    (tmp_path / "file").write_text("")
    done = run("--dir", str(tmp_path / "file" / "demo"))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "--dir" in done.stderr


def test_every_story_is_as_expected_and_kept_it_stays_until_somebody_takes_it_down(
    kubectl: str, tmp_path: Path
) -> None:
    del kubectl
    lab = EmbeddedLab("kept", tmp_path / "demo")
    with (tmp_path / "out").open("w") as out:
        process = subprocess.Popen(
            command("--keep", "--name", "kept", "--dir", str(lab.folder)), stdout=out, stderr=out, text=True
        )
        try:
            until = time.monotonic() + 500
            while "stays up until" not in (told := (tmp_path / "out").read_text()):
                assert process.poll() is None, told
                assert time.monotonic() < until, told
                time.sleep(0.2)
            assert lab.running
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=300) == 0
        finally:
            process.kill()
            process.wait()
            lab.down()
    assert not lab.folder.exists()
    for story in demo.stories():
        assert f"== {story.title}" in told
    assert told.count(", as expected") == len(demo.stories())
    assert "4 nodes joined" in told
    assert "7 nvidia.com/mig-1g.10gb" in told
    assert "kgpu lab hw inject --node" in told


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_it_takes_everything_away(number: signal.Signals, kubectl: str, tmp_path: Path) -> None:
    del kubectl
    folder = tmp_path / "demo"
    with (tmp_path / "out").open("w") as out:
        process = subprocess.Popen(command("--dir", str(folder)), stdout=out, stderr=out, text=True)
        try:
            until = time.monotonic() + 300
            while "export KUBECONFIG" not in (tmp_path / "out").read_text():
                assert process.poll() is None, (tmp_path / "out").read_text()
                assert time.monotonic() < until
                time.sleep(0.05)
            process.send_signal(number)
            assert process.wait(timeout=300) == 130
        finally:
            process.kill()
            process.wait()
            EmbeddedLab("demo", folder).down()
    assert not folder.exists()
    assert "Traceback" not in (tmp_path / "out").read_text()


class Thing:
    """May be referred to weakly."""


def lost_signal(number: signal.Signals) -> None:
    """A signal while a weak reference's callback runs, whose exceptions Python drops."""

    def end(_: object) -> None:
        os.kill(os.getpid(), number)
        time.sleep(0)

    thing = Thing()
    kept = weakref.ref(thing, end)
    del thing
    assert kept() is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_whose_exception_was_lost_ends_it_all_the_same(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)  # which prints; pytest has its own

    class Lab:
        name = "demo"
        ended = False

        def down(self) -> None:
            self.ended = True

    lab = Lab()
    with lab_demo._taken_down(lab, None) as check:  # type: ignore[arg-type]
        check()
        lost_signal(number)
        with pytest.raises(KeyboardInterrupt):
            check()
    assert lab.ended
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_story_ends_by_it_too(number: signal.Signals) -> None:
    with untraced_interrupts(), Interrupts(lambda _: None) as interrupts:
        interrupts.check()
        lost_signal(number)
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()


def test_a_signal_while_a_story_cleans_up_ends_it_afterwards() -> None:
    """It is answered with words at once; the next story must not begin all the same."""
    said: list[str] = []
    with Interrupts(said.append) as interrupts:
        interrupts.hold()
        interrupts.end()
        os.kill(os.getpid(), signal.SIGINT)
        assert said
        with pytest.raises(KeyboardInterrupt):
            interrupts.end()
