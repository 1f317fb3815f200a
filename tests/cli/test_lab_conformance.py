"""``kgpu lab conformance`` takes down what it has started, whoever ends it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = """
import pathlib, sys, time
from kgpu.lab.conformance import run as running

def run(kind, order, reporter):
    lab = pathlib.Path(sys.argv[1])
    try:
        lab.touch()
        time.sleep(600)
    finally:
        lab.unlink()

running.run = run
from kgpu.cli import main
sys.exit(main.main(["kgpu", "lab", "conformance", "--lab", "embedded"]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_takes_the_lab_down(number: signal.Signals, tmp_path: Path) -> None:
    lab = tmp_path / "lab"
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(lab)], stderr=subprocess.PIPE) as process:
        while not lab.exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        said = process.communicate()[1]
    assert not lab.exists()
    assert process.returncode == 130, said
    assert b"Traceback" not in said
