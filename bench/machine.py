"""Which machine a figure was measured on, and how much memory a process tree has there."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


def describe_machine() -> dict[str, str | int | float]:
    """Processor, cores, memory, kernel, Python and how busy it is, as shown beside every figure."""
    cpu = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.machine(),
    )
    total = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    return {
        "name": platform.node(),
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory_mib": total // 1024,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


@contextlib.contextmanager
def logged(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program until the block ends; where the block fails, the end of what it printed is shown."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
    try:
        yield process
    except BaseException:
        sys.stderr.write(log.read_text(errors="replace")[-4000:])
        raise
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(15)


@dataclass(frozen=True, slots=True)
class Memory:
    """MiB, summed over processes: resident, and proportional (shared pages counted once)."""

    rss: float
    pss: float


def memory_of(pids: Iterable[int]) -> Memory:
    """What ``smaps_rollup`` says about the processes."""
    rss = pss = 0
    for pid in pids:
        for line in _lines(f"/proc/{pid}/smaps_rollup"):
            if line.startswith("Rss:"):
                rss += int(line.split()[1])
            elif line.startswith("Pss:"):
                pss += int(line.split()[1])
    return Memory(rss / 1024, pss / 1024)


def cpu_seconds(pid: int) -> float:
    """What a process has used of all cores so far, without its children and without threads that have ended.

    By the scheduler's own count in nanoseconds: ``/proc/PID/stat`` counts whole clock ticks on many kernels, which is
    off by half and more for a process that wakes for a millisecond at a time.
    """
    try:
        tasks = [(task / "schedstat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except FileNotFoundError:  # a kernel without it
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return sum(int(text.split()[0]) for text in tasks) / 1e9


def children_of(pid: int) -> list[int]:
    """Every descendant's pid; a thread that ends meanwhile has none."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            for child in (task / "children").read_text().split():
                found += [int(child), *children_of(int(child))]
    return found


def _lines(path: str) -> list[str]:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read().splitlines()
