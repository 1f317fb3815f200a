"""Runs ``e2e.test`` against a lab: the lab up, the tests in at most two processes, the lab down again.

The tests' output stays in the lab's folder only until it goes; with ``keep`` in a folder of the user's.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from kgpu.base.errors import LabError
from kgpu.lab.conformance import images, plan, report
from kgpu.lab.conformance.model import ConformanceResult, ResultState, Test
from kgpu.lab.conformance.skips import LIMIT_S, PROCESSES, SKIPS
from kgpu.lab.embedded import ready
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.embedded.model import FirstNode
from kgpu.lab.nodes import manage
from kgpu.lab.nodes.spec import CPU_PROFILE
from kgpu.lab.port import EMBEDDED, About, Lab
from kgpu.lab.progress import Progress
from kgpu.lab.real import bootstrap, build
from kgpu.lab.real.cluster import RealLab
from kgpu.lab.real.components import AGNHOST, E2E
from kgpu.lab.real.model import LabSpec

NAME: Final = f"conformance-{os.getpid()}"  # two runs beside each other meet in no cgroup
EMBEDDED_NODES: Final = 3
PART: Final = 12  # tests of one process: a test that hangs holds up the rest of its part
_GRACE_S: Final = 60.0  # for e2e.test to write its report after its own time limit
_NODES_S: Final = 60.0
_LOG: Final = "output.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What came of one run on one kind of lab."""

    lab: str
    results: tuple[ConformanceResult, ...]
    wall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformanceOptions:
    """What the user asked for: tests in whose names ``of`` is found. ``limit_s`` is for each process of ``e2e.test``;
    ``keep`` where their output stays.
    """

    sigs: tuple[str, ...]
    of: str = plan.CONFORMANCE_TESTS
    focus: str = ""
    slow: str = ""
    limit_s: int = LIMIT_S
    processes: int = PROCESSES
    keep: Path | None = None


def tests(program: Path) -> list[Test]:
    """Every test that the program has. Raises LabError."""
    return plan.parse_list(_ask(program, "--list-tests"))


def _ask(program: Path, flag: str) -> str:
    done = subprocess.run([program, flag], capture_output=True, text=True, check=False, timeout=120, cwd="/")
    if done.returncode != 0:
        raise LabError(f"e2e.test {flag}: {done.stderr.strip()[-300:]}", "a list", "see the message")
    return done.stdout


def run(kind: str, order: ConformanceOptions, progress: Progress) -> Run:
    """Run the tests of ``order`` on a lab of that kind, which is made for it. Raises LabError."""
    programs = build.ensure_end_to_end(progress)
    program = programs / E2E.name
    known = tests(program)
    plan.check_skips(known, SKIPS)
    choice = plan.choose(known, kind, order.sigs, SKIPS, of=order.of, focus=order.focus, slow=order.slow)
    left_out = [
        ConformanceResult(lab=kind, test=test, state=ResultState.LEFT_OUT, message=skip.reason)
        for test, skip in choice.left_out
    ]
    began = time.monotonic()
    results: list[ConformanceResult] = []
    if choice.run:
        with _folder(order.keep, kind) as folder, _lab(kind, folder, programs, progress) as lab:
            results += Runner(program, lab, folder, order).run(choice.run)
    return Run(lab=kind, results=(*results, *left_out), wall_s=time.monotonic() - began)


@contextmanager
def _folder(keep: Path | None, kind: str) -> Iterator[Path]:
    if keep is not None:
        folder = (keep / kind).absolute()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="kgpu-conformance-") as path:
        yield Path(path)


@contextmanager
def _lab(kind: str, folder: Path, programs: Path, progress: Progress) -> Iterator[Lab]:
    """A lab of its own, which is taken down afterwards."""
    lab = _embedded(folder, progress) if kind == EMBEDDED else _real(folder, progress)
    try:
        lab.up()
        if isinstance(lab, RealLab):
            _load_images(lab, folder, programs)
        else:
            _add_nodes(lab)
        yield lab
    finally:
        lab.down()


def _embedded(folder: Path, progress: Progress) -> EmbeddedLab:
    build.ensure_kubectl(progress)
    return EmbeddedLab(NAME, folder / "lab", progress, first=FirstNode(profile=CPU_PROFILE, agent=False))


def _add_nodes(lab: EmbeddedLab) -> None:
    folder = lab.about.folder
    with lab.progress.step(f"add nodes, {EMBEDDED_NODES} in all"):
        names = manage.add_to_running(folder, CPU_PROFILE, EMBEDDED_NODES - 1, agent=False)
        ready.wait_for_nodes(lab.kubeconfig, dict.fromkeys(names, False), _NODES_S, manage.nodes_dir(folder))


def _real(folder: Path, progress: Progress) -> RealLab:
    return RealLab(LabSpec(name=NAME, agent=False), folder=folder / "lab", progress=progress)


def _load_images(lab: RealLab, folder: Path, programs: Path) -> None:
    names = _ask(programs / E2E.name, "--list-images").split()
    with lab.progress.step("make and import the images of the tests"):
        place = folder / "images"
        place.mkdir()
        for archive in images.write(place, names, programs / AGNHOST.name):
            bootstrap.import_archive(lab, archive)
        shutil.rmtree(place)


class Up(Protocol):
    """The part of a running lab that the tests need."""

    @property
    def progress(self) -> Progress: ...

    @property
    def about(self) -> About: ...


class Runner:
    """Runs parts of the tests, each in a process of its own; ``end`` kills those that still run, and starts no more."""

    def __init__(self, program: Path, lab: Up, folder: Path, order: ConformanceOptions) -> None:
        self._program, self._about, self._folder, self._order = program, lab.about, folder, order
        self._progress = lab.progress
        self._running: set[subprocess.Popen[bytes]] = set()
        self._over = False

    def run(self, chosen: Sequence[Test]) -> list[ConformanceResult]:
        """All of them: side by side what can be, then the others. Raises LabError."""
        beside, alone = plan.split(chosen, PART)
        pool = ThreadPoolExecutor(self._order.processes)
        try:
            parts = list(pool.map(self._part, beside))
            parts += [self._part(part) for part in alone]
        finally:
            # Also when interrupted: the threads end with their processes.
            pool.shutdown(wait=False, cancel_futures=True)
            self.end()
        return [result for results in parts for result in results]

    def _part(self, part: Sequence[Test]) -> list[ConformanceResult]:
        """Run a part, and run again those of its tests that were not reached because one took all the time."""
        results: list[ConformanceResult] = []
        while part and not self._over:
            began = time.monotonic()
            latest = self._once(part)
            reached = [result for result in latest if result.message != report.NOT_RUN]
            rest = [result.test for result in latest if result.message == report.NOT_RUN] if reached else []
            results += reached or latest
            failed = [result.test.title for result in reached or latest if result.state is ResultState.FAILED]
            summary = "; ".join([f"{len(failed)} failed", *failed])
            self._progress.note(f"  {len(reached or latest)} tests in {time.monotonic() - began:.0f} s, {summary}")
            part = rest
        return results

    def _once(self, part: Sequence[Test]) -> list[ConformanceResult]:
        place = Path(tempfile.mkdtemp(prefix="run-", dir=self._folder))
        command = plan.command(
            self._program, part, kubeconfig=self._about.kubeconfig, kubectl=self._about.kubectl, folder=place,
            nodes=EMBEDDED_NODES if self._about.kind == EMBEDDED else 1, limit_s=self._order.limit_s,
        )  # fmt: skip
        with (place / _LOG).open("wb") as out:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=place,
                start_new_session=True, env={**os.environ, "NO_PROXY": "*", "no_proxy": "*"},
            )  # fmt: skip
        self._running.add(process)
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self._order.limit_s + _GRACE_S)
        finally:
            _kill(process)  # also where an interrupt comes while it is waited for
            self._running.discard(process)
        return self._read(place, process.returncode, part)

    def _read(self, place: Path, code: int, part: Sequence[Test]) -> list[ConformanceResult]:
        try:
            raw = (place / plan.REPORT).read_bytes()
        except OSError as error:
            tail = (place / _LOG).read_text(errors="replace").strip()[-1000:]
            raise LabError(
                f"e2e.test ended with {code} and wrote no report:\n{tail}", "a report", "see the message"
            ) from error
        return report.read(raw, part, self._about.kind)

    def end(self) -> None:
        """Kill what still runs, and start no more."""
        self._over = True
        for process in tuple(self._running):
            _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
