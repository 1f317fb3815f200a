"""Runs the parts: builds what they need, starts what may run, says how far each is, ends all of them when told to."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kgpu.base import signals
from tools.suite import cpu, place, report
from tools.suite.parts import Part

# Parts that wait and run at the same time: together they need little more than one core, and 4 GiB.
LANES: Final = 3
CORES_AT_MOST: Final = 4
_NICE: Final = 10
_POLL_S: Final = 0.2
_SAY_EVERY_S: Final = 30.0
_END_S: Final = 120.0
_FAILED: Final = 1
_NONE_COLLECTED: Final = 5
_PROGRESS: Final = re.compile(r"\[ *(\d+)%\]")
_TAIL: Final = 4096
# Where pytest begins to tell of what went wrong.
_TOLD: Final = re.compile(r"^=+ (ERRORS|FAILURES) =+$", re.MULTILINE)
_LINES: Final = 100

# Go programs collect garbage a quarter as often: a fifth of the API servers' time, and of kubectl's, went into it.
# Bytecode is kept, whatever the machine's image says: the suite starts an interpreter for every agent and command.
ENV: Final = {"GOGC": "400", "PYTHONDONTWRITEBYTECODE": ""}

Say = Callable[[str], None]


@dataclass(slots=True)
class Running:
    """A process of the suite: a part's tests, or the build (``part`` None)."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    part: Part | None = None
    temp: Path | None = None
    group: Path | None = None
    cpu_s: float | None = None
    """Seconds of processor time, once it has ended; None where the machine does not tell."""
    begun: float = field(default_factory=time.monotonic)
    seconds: float = 0.0

    def ended(self) -> bool:
        if self.process.poll() is None:
            return False
        self.seconds = self.seconds or time.monotonic() - self.begun
        if self.group:
            self.cpu_s = cpu.seconds(self.group)
            cpu.remove(self.group)
            self.group = None
        return True

    def percent(self) -> str:
        """How far pytest says it is."""
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - _TAIL))
            found = _PROGRESS.findall(log.read().decode(errors="replace"))
        return f"{found[-1]} %" if found else "begins"


class Suite:
    """One run; logs and JUnit files are below ``folder``."""

    def __init__(
        self, parts: Sequence[Part], folder: Path, *, everything: Sequence[Part], options: Sequence[str], say: Say
    ) -> None:
        """``parts`` of ``everything`` are run, with pytest's ``options``."""
        self._waiting = sorted(parts, key=lambda part: -part.seconds)
        self._parts, self._folder, self._options, self._say = everything, folder, list(options), say
        self._temp = place.make()
        self._active: list[Running] = []
        self._clearing: list[subprocess.Popen[bytes]] = []
        self.done: list[Running] = []
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            if old.is_file():
                old.unlink()

    def run(self, build: Sequence[str], *, required: bool) -> int:
        """Pytest's exit status for all parts together: 0, 1, or the first that says that pytest itself failed.

        ``build`` is the command that makes the programs. Where it fails, tests that need them skip themselves, unless
        they are ``required``.
        """
        building = self._start("the build", build, nice=0) if build else None
        told = time.monotonic()
        try:
            while self._waiting or self._active:
                self._collect()
                if building and building.process.returncode:
                    if required:
                        self._end()
                        return 1
                    self._say("tests on real programs will be skipped")
                    building = None
                for part in self._startable(built=not building or building not in self._active):
                    self._begin(part)
                if time.monotonic() - told > _SAY_EVERY_S:
                    told = time.monotonic()
                    self._say("; ".join(f"{one.name}: {one.percent()}" for one in self._active))
                time.sleep(_POLL_S)
        except BaseException:
            self._end()
            raise
        finally:
            for clearing in self._clearing:
                clearing.wait()
            place.remove(self._temp)
        return status([one.process.returncode for one in self.done if one.part])

    def _startable(self, *, built: bool) -> list[Part]:
        """The waiting parts that may start: as many as there is room for, on the cores and beside them."""
        running = [one.part for one in self._active if one.part]
        cores = min(os.cpu_count() or 1, CORES_AT_MOST)
        # Where nothing runs beside them, one more fills the gaps in which the others wait.
        alone = not any(part.on for part in (*running, *self._waiting))
        room = {True: LANES, False: cores + alone}
        if not any(not part.on for part in self._waiting):
            # The cores that nothing else will use: as many parts more that wait.
            room[True] += cores - sum(not part.on for part in running)
        for part in running:
            room[bool(part.on)] -= 1
        found = []
        for part in self._waiting:
            if (built or not part.on) and room[bool(part.on)] > 0:
                room[bool(part.on)] -= 1
                found.append(part)
        return found

    def _begin(self, part: Part) -> None:
        self._waiting.remove(part)
        name = file_name(part.name)
        measured = ["-m", "coverage", "run"] if os.environ.get("KGPU_COVERAGE") == "1" else []
        command = [sys.executable, *measured, "-m", "pytest", *part.paths]
        command += [f"--ignore={path}" for path in part.ignored(self._parts)]
        # A folder of its own: pytest clears those that runs share, also of a run that is still taking its labs down.
        temp = self._temp / str(len(self.done) + len(self._active))
        command += [f"--basetemp={temp}"]
        command += [f"--junitxml={self._folder / name}.xml", "-o", f"cache_dir={self._folder / 'cache' / name}"]
        self._say(f"{part.name}: begins")
        self._start(part.name, [*command, *self._options], nice=0 if part.on else _NICE, part=part, temp=temp)

    def _start(
        self, name: str, command: Sequence[str], *, nice: int, part: Part | None = None, temp: Path | None = None
    ) -> Running:
        log = self._folder / f"{file_name(name)}.log"
        group = cpu.make(file_name(name))
        told = {cpu.FOLDER: str(group)} if group else {}
        whole = cpu.within(group, ["nice", "-n", str(nice), *command])
        with log.open("wb") as out:
            process = subprocess.Popen(
                # It has a session of its own: a hangup is not for it, whatever this process ignores.
                signals.with_defaults(whole), stdin=subprocess.DEVNULL, stdout=out,
                stderr=subprocess.STDOUT, start_new_session=True, env={**os.environ, **ENV, **told},
            )  # fmt: skip
        self._active.append(Running(name, process, log, part, temp, group))
        return self._active[-1]

    def _collect(self) -> None:
        for one in [one for one in self._active if one.ended()]:
            self._active.remove(one)
            self.done.append(one)
            if one.temp:  # tens of thousands of files: meanwhile, not after the last part
                self._clearing.append(subprocess.Popen(["nice", "-n", "19", "rm", "-rf", str(one.temp)]))
            good = one.process.returncode in {0, _NONE_COLLECTED}
            self._say(f"{one.name}: {'done' if good else 'FAILED'} in {report.clock(one.seconds)}")
            if not good:
                self._say(f"what it printed:\n{decisive(one.log.read_text(errors='replace'))}")

    def _end(self) -> None:
        """Pytest takes labs down when it is interrupted; what does not end is killed."""
        # One that has ended, and was interrupted before it was collected, has no group any more.
        running = [one.process for one in self._active if one.process.returncode is None]
        for process in running:
            os.killpg(process.pid, signal.SIGINT)
        until = time.monotonic() + _END_S
        for process in running:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def file_name(name: str) -> str:
    """A part's name in the names of its files."""
    return re.sub(r"\W+", "-", name)


def decisive(text: str) -> str:
    """The part of the output that is about failures, else its last lines."""
    found = _TOLD.search(text)
    return text[found.start() :] if found else "\n".join(text.splitlines()[-_LINES:])


def status(codes: Sequence[int]) -> int:
    """One exit status for several of pytest's: what broke pytest first, then failed tests; 5 when nobody ran any."""
    worse = [code for code in codes if code not in {0, _FAILED, _NONE_COLLECTED}]
    if worse:
        return worse[0]
    if _FAILED in codes:
        return _FAILED
    return 0 if 0 in codes else _NONE_COLLECTED
