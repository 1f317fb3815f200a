"""Runs ``e2e.test`` against a lab: the lab up, the tests in at most two processes, the lab down again.

The tests' output stays in the lab's folder only until it goes; with ``keep`` in a folder of the user's.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kgpu.base.errors import LabError
from kgpu.lab.conformance import images, plan, report
from kgpu.lab.conformance.model import Result, State, Test
from kgpu.lab.conformance.skips import PROCESSES, SKIPS
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.embedded.model import FirstNode
from kgpu.lab.nodes import manage
from kgpu.lab.nodes.spec import CPU_PROFILE
from kgpu.lab.port import EMBEDDED, Lab
from kgpu.lab.progress import Progress
from kgpu.lab.real import bootstrap, build
from kgpu.lab.real.cluster import RealLab
from kgpu.lab.real.components import AGNHOST, E2E
from kgpu.lab.real.model import LabSpec

NAME: Final = "conformance"
EMBEDDED_NODES: Final = 3
_GRACE_S: Final = 60.0  # for e2e.test to write its report after its own time limit
_LOG: Final = "output.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What came of one run on one kind of lab."""

    lab: str
    results: tuple[Result, ...]
    wall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the user asked for. ``limit_s`` is for each process of ``e2e.test``; ``keep`` where their output stays."""

    sigs: tuple[str, ...]
    focus: str = ""
    slow: str = ""
    limit_s: int = 3600
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


def run(kind: str, order: Order, progress: Progress) -> Run:
    """Run the tests of ``order`` on a lab of that kind, which is made for it. Raises LabError."""
    programs = build.ensure_end_to_end(progress)
    program = programs / E2E.name
    known = tests(program)
    plan.check_skips(known, SKIPS)
    choice = plan.choose(known, kind, order.sigs, SKIPS, focus=order.focus, slow=order.slow)
    left_out = [
        Result(lab=kind, test=test, state=State.LEFT_OUT, message=skip.reason) for test, skip in choice.left_out
    ]
    began = time.monotonic()
    results: list[Result] = []
    if choice.run:
        with _folder(order.keep, kind) as folder, _lab(kind, folder, programs, progress) as lab:
            for batch in _batches(choice.run, order.processes):
                with progress.step(f"{sum(map(len, batch))} tests in {len(batch)} processes"):
                    results += _run_batch(program, batch, lab, folder, order)
    return Run(lab=kind, results=(*results, *left_out), wall_s=time.monotonic() - began)


def _batches(chosen: Sequence[Test], processes: int) -> list[list[tuple[Test, ...]]]:
    """What runs at the same time, one after the other."""
    parts = plan.split(chosen, processes)
    alone = [part for part in parts if part[0].serial]
    beside = [part for part in parts if not part[0].serial]
    return [batch for batch in (beside, alone) if batch]


@contextmanager
def _folder(keep: Path | None, kind: str) -> Iterator[Path]:
    if keep is not None:
        folder = (keep / kind).absolute()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="kgpu-conformance-") as made:
        yield Path(made)


@contextmanager
def _lab(kind: str, folder: Path, programs: Path, progress: Progress) -> Iterator[Lab]:
    """A lab of its own, which goes again."""
    lab = _embedded(folder, progress) if kind == EMBEDDED else _real(folder, progress)
    try:
        lab.up()
        if isinstance(lab, RealLab):
            _load_images(lab, folder, programs)
        yield lab
    finally:
        lab.down()


def _embedded(folder: Path, progress: Progress) -> EmbeddedLab:
    build.ensure_kubectl(progress)
    where = folder / "lab"
    made = EmbeddedLab(NAME, where, progress, first=FirstNode(profile=CPU_PROFILE, agent=False))
    manage.add(where, CPU_PROFILE, EMBEDDED_NODES - 1, agent=False)
    return made


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


def _run_batch(program: Path, batch: Sequence[tuple[Test, ...]], lab: Lab, folder: Path, order: Order) -> list[Result]:
    about = lab.about
    nodes = EMBEDDED_NODES if about.kind == EMBEDDED else 1
    started = []
    for part in batch:
        place = Path(tempfile.mkdtemp(prefix="run-", dir=folder))
        command = plan.command(
            program, part, kubeconfig=about.kubeconfig, kubectl=about.kubectl, folder=place, nodes=nodes,
            limit_s=order.limit_s,
        )  # fmt: skip
        started.append((part, place, _start(command, place)))
    results: list[Result] = []
    until = time.monotonic() + order.limit_s + _GRACE_S
    try:
        for part, place, process in started:
            results += _finish(part, place, process, about.kind, until)
    finally:
        for _, _, process in started:
            _kill(process)
    return results


def _start(command: Sequence[str], place: Path) -> subprocess.Popen[bytes]:
    with (place / _LOG).open("wb") as out:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=place, start_new_session=True,
            env={**os.environ, "NO_PROXY": "*", "no_proxy": "*"},
        )  # fmt: skip


def _finish(
    part: Sequence[Test], place: Path, process: subprocess.Popen[bytes], kind: str, until: float
) -> list[Result]:
    """Wait for one process and read what it wrote. Raises LabError when it wrote nothing."""
    try:
        process.wait(max(1.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        _kill(process)
    try:
        raw = (place / plan.REPORT).read_bytes()
    except OSError as error:
        tail = (place / _LOG).read_text(errors="replace").strip()[-1000:]
        raise LabError(
            f"e2e.test ended with {process.returncode} and wrote no report:\n{tail}", "a report", "see the message"
        ) from error
    return report.read(raw, part, kind)


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
