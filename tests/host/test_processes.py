"""Processes by name: of this pid namespace, scripts as well as programs, and only those are told that still are there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kgpu.host.processes import named, tell
from tests.child import child

NAME = "nvidia-device-plugin"


def process(proc: Path, pid: int, *words: str, parent: int = 1, spaces: str = "") -> None:
    folder = proc / str(pid)
    folder.mkdir()
    (folder / "status").write_text(f"Name:\tx\nPPid:\t{parent}\nNSpid:\t{spaces or pid}\n")
    (folder / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in words))


@pytest.mark.parametrize(
    ("words", "called"),
    [
        ((NAME,), True),
        ((f"/usr/bin/{NAME}", "--mig-strategy=none"), True),
        (("/opt/kgpu/bin/python3", f"/opt/kgpu/bin/{NAME}"), True),
        (("python3", "other", NAME), False),
        (("sh", NAME), False),
        (("tail", f"/var/log/{NAME}"), False),
        ((f"{NAME}-2",), False),
        ((), False),
    ],
)
def test_what_counts_as_its_name(tmp_path: Path, words: tuple[str, ...], called: bool) -> None:
    process(tmp_path, 7, *words)
    for name in (NAME, f"/usr/bin/{NAME}"):
        assert named(name, tmp_path) == ((7,) if called else ())


def test_other_containers_and_what_it_has_started_are_left_alone(tmp_path: Path) -> None:
    process(tmp_path, 20, NAME)
    process(tmp_path, 21, NAME, parent=20)
    process(tmp_path, 9, NAME, spaces="9 1")
    process(tmp_path, 30, NAME)
    (tmp_path / "40").mkdir()
    (tmp_path / "self").mkdir()
    assert named(NAME, tmp_path) == (20, 30)


def test_a_script_is_found_and_told(tmp_path: Path) -> None:
    name = f"kgpu-test-{os.getpid()}"
    script = tmp_path / name
    script.write_text(
        f"#!{sys.executable}\nimport signal, sys, threading\n"
        "signal.signal(signal.SIGHUP, lambda *_: sys.exit(7))\nprint('ready', flush=True)\n"
        "while True: threading.Event().wait(0.1)\n"  # not pause: a signal just before it would be missed
    )
    script.chmod(0o755)
    with child([script], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        found = named(name)
        assert found == (running.pid,)
        assert tell(found, signal.SIGHUP, "another-name") == ()
        assert tell(found, signal.SIGHUP, name) == found
        assert running.wait(60) == 7
        assert tell(found, signal.SIGHUP, name) == ()
