"""``python -m tools.suite``: every test. With paths, those alone, as pytest runs them; further options are pytest's.

``--fast`` leaves out what needs a cluster. ``--cpu``, with paths, says how much processor time each test took.
``KGPU_SKIP_REAL=1`` leaves out what needs real programs, and ``KGPU_REQUIRE_REAL=1`` fails where they can't run.
"""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests import machine_state
from tests.machine_watch import NOT_CLEAN, PATIENCE_S, settled
from tools.suite import cpu, report
from tools.suite.parts import PARTS, Part
from tools.suite.run import ENV, Suite, file_name

FOLDER = Path("build/suite")
FAST = "--fast"
CPU = "--cpu"


def main(words: list[str]) -> int:
    fast = FAST in words
    measured = CPU in words
    words = [word for word in words if word not in {FAST, CPU}]
    if any(not word.startswith("-") for word in words):
        return some(words, measured=measured)
    for number in (signal.SIGINT, signal.SIGTERM):
        # Whatever whoever started us ignores: labs are taken down before the suite ends.
        signal.signal(number, signal.default_int_handler)
    begun = time.monotonic()

    def say(text: str) -> None:
        print(f"[test {report.clock(time.monotonic() - begun)}] {text}", flush=True)

    parts = chosen(fast=fast, real=os.environ.get("KGPU_SKIP_REAL") != "1")
    required = os.environ.get("KGPU_REQUIRE_REAL") == "1"
    build = build_command() if any(part.on for part in parts) else []
    if build and not prepared(say) and required:
        return 1
    suite = Suite(parts, FOLDER, everything=PARTS, options=["-v", *words], say=say)
    run, before = machine_state.own_mark(), machine_state.take()
    for line in machine_state.dirt(before, run):
        say(f"{NOT_CLEAN}: {line}")
    try:
        with machine_state.marked(run):
            code = suite.run(build, required=required)
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    took = {
        one.name: report.Took(one.seconds, one.cpu_s, report.read(junit(one.part)) if one.part else ())
        for one in suite.done
    }
    print(report.text(took), flush=True)
    # What a part can't tell from what the parts beside it make, all of them together can.
    left, perhaps = settled(before, run, PATIENCE_S)
    for line in (
        *(f"LEFT BEHIND: {one}" for one in left),
        *(f"left behind, perhaps by others: {one}" for one in perhaps),
    ):
        print(line, flush=True)
    return code or int(bool(left))


def some(words: list[str], *, measured: bool) -> int:
    """Run pytest with these paths and options."""
    command = [sys.executable, "-m", "pytest", "-q", *words]
    group = cpu.make("some") if measured else None
    told = {**os.environ, **ENV}
    if group is None:
        return subprocess.run(command, check=False, env=told).returncode
    FOLDER.mkdir(parents=True, exist_ok=True)
    file = FOLDER / "some.xml"
    told |= {cpu.FOLDER: str(group)}
    begun = time.monotonic()
    try:
        done = subprocess.run(cpu.within(group, [*command, f"--junitxml={file}"]), env=told, check=False)
        took = report.Took(time.monotonic() - begun, cpu.seconds(group), report.read(file))
    finally:
        cpu.remove(group)
    print(report.text({"these": took}), flush=True)
    return done.returncode


def chosen(*, fast: bool, real: bool) -> list[Part]:
    """The parts to run."""
    return [part for part in PARTS if not (fast and part.on) and not (part.real and not real)]


def junit(part: Part) -> Path:
    return FOLDER / f"{file_name(part.name)}.xml"


def build_command() -> list[str]:
    """The command that builds the programs of the labs, where they can be built."""
    if platform.system() != "Linux" or os.geteuid() != 0 or os.environ.get("KGPU_SKIP_REAL") == "1":
        return []
    return [sys.executable, "-m", "kgpu", "lab", "build", "--helm", "--end-to-end"]


def prepared(say: Callable[[str], None]) -> bool:
    """Whether this machine has what every part needs: its tools, which are installed where they can be."""
    from kgpu.base.errors import LabError
    from kgpu.hw.simulator.build import native_dir
    from kgpu.lab.real.build import install_tools

    try:
        install_tools()
        native_dir()
    except LabError as error:
        say(str(error))
        return False
    return True


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
